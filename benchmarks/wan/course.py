"""What some rounds of real nodes were, read from their logs.

Rule: all times are of one machine's clock, to the microsecond, as the nodes logged them.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

Facts = dict[str, Any]


@dataclass
class Round:
    """One round of the winning chain, by node."""

    number: int
    made: dict[str, float] = field(default_factory=dict)  # when its packet was sealed and stored
    sizes: dict[str, int] = field(default_factory=dict)  # of that packet, bytes
    k: dict[str, int] = field(default_factory=dict)
    kept: dict[str, float] = field(default_factory=dict)  # manifest and packets there, durable
    applied: dict[str, float] = field(default_factory=dict)  # also in the worker's model
    packets: int = 0
    samples: dict[str, int] = field(default_factory=dict)  # of each one's packet, 0 if left out

    @property
    def last_made(self) -> float:
        return max(self.made.values())

    def whole(self, nodes: Sequence[str]) -> bool:
        """Each node's packet is in it, and each saw all of it."""
        seen = (self.made, self.kept, self.applied)
        return self.packets == len(nodes) and all(set(one) >= set(nodes) for one in seen)

    def exchange_seconds(self) -> list[float]:
        """From the last packet made to the round kept, on each node."""
        return [at - self.last_made for at in self.kept.values()]

    def apply_seconds(self) -> list[float]:
        """From the round kept to the model corrected, on each node: computing, no network."""
        return [at - self.kept[node] for node, at in self.applied.items()]


def read(logs: Mapping[str, Iterable[Facts]]) -> list[Round]:
    """All rounds that the nodes' log lines tell of, in order."""
    rounds: dict[int, Round] = {}
    for node, lines in logs.items():
        for facts in lines:
            number = facts.get("round")
            if not isinstance(number, int):
                continue
            one = rounds.setdefault(number, Round(number))
            match facts.get("event"):
                case "packet made":
                    one.made[node] = moment(facts)
                    one.sizes[node], one.k[node] = facts["bytes"], facts["k"]
                case "manifest kept":
                    one.kept[node] = moment(facts)
                case "round committed":
                    one.applied[node] = moment(facts)
                    one.packets = facts["packets"]
                    one.samples[node] = facts["own_samples"]
    return [rounds[number] for number in sorted(rounds)]


def moment(facts: Facts) -> float:
    """When the line was written, in seconds since the epoch."""
    return datetime.fromisoformat(facts["time"]).timestamp()


def training_share(rounds: Sequence[Round], node: str, step_seconds: float, batch: int) -> float:
    """Of the time between a node's first packet and its last: the part spent in inner steps."""
    mine = [one for one in rounds if node in one.made]
    elapsed = mine[-1].made[node] - mine[0].made[node]
    samples = sum(one.samples.get(node, 0) for one in mine[1:])
    return samples / batch * step_seconds / elapsed


def median(values: Iterable[float]) -> float:
    found = list(values)
    return statistics.median(found) if found else float("nan")
