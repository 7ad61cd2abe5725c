"""Keeps the records of one course up to date: logs, statuses, processes.

Rule: everything is stamped when it is seen, on one clock; so `tick` is called often.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import suppress

from benchmarks.daemons import Daemon
from benchmarks.leaks import take_samples
from benchmarks.records import Course, Line, Word
from demoloco_proto.v1.control_pb2 import StatusReply

SAMPLE_SECONDS = 5.0


class Watcher:
    """Sees what daemons write, say and hold."""

    def __init__(self, daemons: Sequence[Daemon], course: Course) -> None:
        self._daemons = daemons
        self._course = course
        self._read = [0] * len(daemons)
        self._rest = [b""] * len(daemons)
        self._last: list[StatusReply | None] = [None] * len(daemons)
        self._sampled = 0.0

    def tick(self, now: float) -> None:
        for node, daemon in enumerate(self._daemons):
            self._read_log(node, daemon, now)
            self._hear(node, daemon, now)
        if now - self._sampled >= SAMPLE_SECONDS:
            self._sampled = now
            for daemon in self._daemons:
                self._course.samples.extend(take_samples(daemon, now))

    def _read_log(self, node: int, daemon: Daemon, now: float) -> None:
        if not daemon.log.exists():
            return
        with daemon.log.open("rb") as log:
            log.seek(self._read[node])
            news = log.read()
        self._read[node] += len(news)
        *whole, self._rest[node] = (self._rest[node] + news).split(b"\n")
        for text in whole:
            with suppress(ValueError):
                facts = json.loads(text)
                if isinstance(facts, dict):
                    self._course.lines.append(Line(now, node, daemon.lives, facts))

    def _hear(self, node: int, daemon: Daemon, now: float) -> None:
        status = daemon.newest() if daemon.alive() else None
        if status is None or status is self._last[node]:
            return
        self._last[node] = status
        self._course.words.append(
            Word(
                at=now,
                node=node,
                life=daemon.lives,
                phase=status.phase,
                step=status.inner_step,
                round=status.round,
                head=status.head,
                told=status.samples_told,
                owed=status.samples_owed,
            )
        )
