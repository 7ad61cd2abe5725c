"""Processes over time: what they hold, and whether it grows.

Rule: each process has an intercept of its own, for what it holds at first is no leak, and its first
minutes are left out, in which it imports, connects and fills its caches and heaps.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from math import nan, sqrt

import psutil

from benchmarks.daemons import Daemon
from benchmarks.records import Sample

FIRST_SECONDS = (60.0, 360.0)
"""At least, at most: so long a p2pd's heap grows before it stays. Between them, half of the longest
life."""

ROLES = ("node", "worker", "p2pd")


@dataclass(frozen=True, slots=True)
class Slope:
    """Growth an hour and its standard error, pooled over processes."""

    per_hour: float
    error: float
    lives: int


def take_samples(daemon: Daemon, now: float) -> Iterator[Sample]:
    """Of a node's processes that are there now."""
    with suppress(psutil.Error, OSError):
        if daemon.alive():
            node = psutil.Process(daemon.pid)
            for process in (node, *node.children(recursive=True)):
                if (role := _role(process, node)) is not None:
                    yield _sample(process, role, now)


def _role(process: psutil.Process, node: psutil.Process) -> str | None:
    if process.pid == node.pid:
        return "node"
    if process.name() == "p2pd":
        return "p2pd"
    return "worker" if is_worker(process) else None


def is_worker(process: psutil.Process) -> bool:
    """Whether this is the child that trains."""
    return "demoloco.worker.child" in process.cmdline()


def _sample(process: psutil.Process, role: str, now: float) -> Sample:
    with process.oneshot():
        life = f"{process.pid} {process.create_time()}"
        megabytes = process.memory_full_info().uss / 1e6
        return Sample(now, role, life, megabytes, process.num_fds())


def slope(times: Sequence[Sequence[float]], values: Sequence[Sequence[float]]) -> Slope:
    """Least squares: one slope, an hour where times are seconds, and an intercept a series."""
    spread = covered = left = 0.0
    count = lives = 0
    for at, value in zip(times, values, strict=True):
        if len(at) > 2:
            lives, count = lives + 1, count + len(at)
            dt, dv = _about_mean(at), _about_mean(value)
            spread += sum(t * t for t in dt)
            covered += sum(t * v for t, v in zip(dt, dv, strict=True))
            left += sum(v * v for v in dv)
    if not spread:
        return Slope(nan, nan, 0)
    steep = covered / spread
    free = count - lives - 1
    error = sqrt(max(0.0, left - steep * covered) / free / spread) if free > 0 else nan
    return Slope(3600 * steep, 3600 * error, lives)


def _about_mean(values: Sequence[float]) -> list[float]:
    mean = sum(values) / len(values)
    return [value - mean for value in values]


def memory_slope(samples: Sequence[Sample], role: str) -> Slope:
    """MB an hour."""
    lives = _lives(samples, role)
    times = [[one.at for one in life] for life in lives]
    return slope(times, [[one.megabytes for one in life] for life in lives])


def descriptor_slope(samples: Sequence[Sample], role: str) -> Slope:
    """File descriptors an hour."""
    lives = _lives(samples, role)
    times = [[one.at for one in life] for life in lives]
    return slope(times, [[float(one.descriptors) for one in life] for life in lives])


def _lives(samples: Sequence[Sample], role: str) -> list[list[Sample]]:
    by_life: dict[str, list[Sample]] = defaultdict(list)
    for sample in samples:
        if sample.role == role:
            by_life[sample.life].append(sample)
    longest = max((life[-1].at - life[0].at for life in by_life.values()), default=0.0)
    least, most = FIRST_SECONDS
    first = max(least, min(most, longest / 2))
    return [[one for one in life if one.at - life[0].at >= first] for life in by_life.values()]
