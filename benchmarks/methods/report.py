"""Figures from recorded runs.

Rule: a pure function of the records; runs that differ in the seed alone are one row.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from math import nan

from benchmarks.methods import plans
from benchmarks.methods.records import Record
from benchmarks.methods.settings import Setting
from benchmarks.methods.swarm import Point

FLOAT_BITS = 32


@dataclass(frozen=True)
class Row:
    """All recorded seeds of one setting; the setting's seed is 0."""

    setting: Setting
    records: tuple[Record, ...]

    def values(self, read: Callable[[Point], float]) -> list[float]:
        """Of the last points, seed by seed."""
        return [read(record.last) for record in self.records]

    def mean(self, read: Callable[[Point], float]) -> float:
        return statistics.fmean(self.values(read)) if self.records else nan

    def shown(self, read: Callable[[Point], float], digits: int = 3) -> str:
        """Mean ± standard deviation over the seeds; one seed has none."""
        if not self.records:
            return "–"
        values = self.values(read)
        if len(values) == 1:
            return f"{values[0]:.{digits}f}"
        return f"{statistics.fmean(values):.{digits}f} ± {statistics.stdev(values):.{digits}f}"

    @property
    def told_a_round(self) -> float:
        """Bytes that one node tells a round."""
        return self.mean(lambda last: last.told_bytes / last.round)

    @property
    def dense_bytes(self) -> float:
        """Of all parameters as float32."""
        return self.records[0].course.parameters * FLOAT_BITS / 8 if self.records else nan


def own(point: Point) -> float:
    return point.own


def merged(point: Point) -> float:
    return point.merged


def agreed(point: Point) -> float:
    return point.agreed


def row(found: Iterable[Record], setting: Setting) -> Row:
    """What is recorded of a setting, whatever its seed."""
    wanted = replace(setting, seed=0)
    fitting = [one for one in found if replace(one.setting, seed=0) == wanted]
    return Row(wanted, tuple(sorted(fitting, key=lambda one: one.setting.seed)))


def figures(found: Sequence[Record], base: Setting) -> dict[str, float]:
    """See the text of `__main__.py`; of the seeds that are recorded of every method that is; what
    was not measured is not a number."""
    best = plans.diloco(base, *plans.tuned(base, found), seed=0)
    methods = {
        "dense": replace(base, method="local"),
        "diloco_tuned": best,
        "synced": replace(base, method="synced"),
        "decoupled": replace(base, method="decoupled"),
        "paper": plans.of(base, "paper"),
    }
    rows = _paired({name: row(found, setting) for name, setting in methods.items()})
    decoupled = rows.pop("decoupled")
    return {
        **{f"loss_{name}": one.mean(merged) for name, one in rows.items()},
        "loss_decoupled_own": decoupled.mean(own),
        "loss_decoupled_merged": decoupled.mean(merged),
        "bytes_ratio_to_diloco": decoupled.dense_bytes / decoupled.told_a_round,
    }


def _paired(rows: dict[str, Row]) -> dict[str, Row]:
    """Only the seeds that all have which have any, so that means can be compared."""
    seeds = [{one.setting.seed for one in row.records} for row in rows.values() if row.records]
    common = set.intersection(*seeds) if seeds else set()
    return {
        name: Row(one.setting, tuple(each for each in one.records if each.setting.seed in common))
        for name, one in rows.items()
    }
