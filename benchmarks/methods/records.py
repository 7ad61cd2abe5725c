"""Finished runs as JSON lines: one line a run, written when it ends, never changed.

Rule: a run is known by its name alone; of two lines with one name the later counts.
"""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from benchmarks.methods.settings import Setting, setting_of
from benchmarks.methods.swarm import Course, Point
from demoloco.codec.packet import VERSION

DIGITS = 6  # significant ones that a record keeps


@dataclass(frozen=True)
class Record:
    """One finished run."""

    setting: Setting
    course: Course

    @property
    def name(self) -> str:
        return self.setting.name

    @property
    def last(self) -> Point:
        return self.course.points[-1]


def read(folder: Path) -> list[Record]:
    """All runs of a folder's .jsonl files, in the order of their names.

    Raises: SystemExit for a line that is no record.
    """
    found: dict[str, Record] = {}
    for path in sorted(folder.glob("*.jsonl")):
        for number, line in enumerate(path.read_text().splitlines(), 1):
            try:
                record = _record(json.loads(line))
            except (ValueError, TypeError, KeyError) as error:
                raise SystemExit(f"{path}:{number} is no record of a run: {error!r}") from error
            found[record.name] = record
    return [found[name] for name in sorted(found)]


def append(path: Path, record: Record) -> None:
    """Add a run; on the disk when this returns."""
    told = {
        "name": record.name,
        "setting": record.setting.as_dict(),
        "course": _rounded(record.course.as_dict()),
        "versions": versions(),
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as file:
        file.write(json.dumps(told, ensure_ascii=False, separators=(",", ":")) + "\n")
        file.flush()
        os.fsync(file.fileno())


def versions() -> dict[str, str]:
    """What a run's numbers may depend on beside its setting."""
    return {
        "python": platform.python_version(),
        "torch": version("torch"),
        "numpy": version("numpy"),
        "packet": str(VERSION),
    }


def missing(wanted: Iterable[Setting], folder: Path) -> Iterator[Setting]:
    """Those that have no record yet, asked anew each time, so that two may share a folder."""
    for setting in wanted:
        if setting.name not in {record.name for record in read(folder)}:
            yield setting


def _record(told: dict[str, Any]) -> Record:
    course = dict(told["course"])
    points = [Point(**one) for one in course.pop("points")]
    return Record(setting_of(told["setting"]), Course(points, **course))


def _rounded(value: Any) -> Any:
    match value:
        case dict():
            return {name: _rounded(one) for name, one in value.items()}
        case list():
            return [_rounded(one) for one in value]
        case float():
            return float(f"{value:.{DIGITS}g}")
    return value
