"""Learnt = told + owed, held against all that a daemon showed and logged.

Rule: no status is excused, whatever happened around it: each shows the three figures of one
moment. What is told is added up once more, from the lines about rounds that entered and left the
winning chain.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from demoloco_proto.v1.control_pb2 import StatusReply

STANDING = re.compile(r"standing at round \d+, head (\w+)")


class Law:
    """One node's figures through all its lives."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._told: dict[str, int] = {}  # head, as logged → told up to there
        self.breaches: list[str] = []

    def check(self, statuses: Sequence[StatusReply], lines: Iterable[dict[str, Any]]) -> None:
        """Hold it against one life."""
        self.breaches += [f"{self._name}: {one}" for one in self._unbalanced(statuses)]
        self.breaches += [f"{self._name}: {one}" for one in self._untold(statuses, lines)]

    @staticmethod
    def _unbalanced(statuses: Sequence[StatusReply]) -> Iterator[str]:
        for status in statuses:
            learnt, told, owed = status.samples_learnt, status.samples_told, status.samples_owed
            if learnt != told + owed:
                yield f"at round {status.round} {learnt} learnt, but {told} told and {owed} owed"

    def _untold(
        self, statuses: Sequence[StatusReply], lines: Iterable[dict[str, Any]]
    ) -> Iterator[str]:
        since = told_since(lines)
        width = max(map(len, since), default=0)
        for status in statuses:
            head = status.head[:width]
            if head not in since:
                continue
            base = status.samples_told - since[head]
            for other, more in since.items():
                told = self._told.setdefault(other, base + more)
                if told != base + more:
                    yield (
                        f"at round {status.round} {status.samples_told} told, but by its own lines"
                        f" it is {self._told[head]}"
                    )
                    return


def told_since(lines: Iterable[dict[str, Any]]) -> dict[str, int]:
    """Head → samples of this node that entered the winning chain on the way from the first one."""
    told, found = 0, {}
    for line in lines:
        event = str(line.get("event"))
        if event == "round undone":
            told -= line["own_samples"]
        elif event == "round committed":
            told += line["own_samples"]
            found[line["head"]] = told
        elif event == "took a snapshot":
            found[line["head"]] = told
        elif (standing := STANDING.match(event)) is not None:
            found.setdefault(standing[1], told)
    return found
