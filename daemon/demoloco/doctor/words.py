"""What the doctor says: a verdict for each check, from facts.

Rule: facts are what a probe found, as JSON holds them; a judge turns them into a verdict and
touches nothing else.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

Facts = Mapping[str, Any]
Judge = Callable[..., "Verdict"]
"""Takes the facts that its check needs, in their order; None for those that were not looked for."""


class Level(StrEnum):
    """How bad it is; only `fail` keeps a node from its work."""

    OK = "ok"
    WARN = "warn"
    FAIL = "fail"


@dataclass(frozen=True, slots=True)
class Verdict:
    """One line for people, and what they can do about it."""

    level: Level
    summary: str
    fix: str = ""


def ok(summary: str) -> Verdict:
    return Verdict(Level.OK, summary)


def warn(summary: str, fix: str) -> Verdict:
    return Verdict(Level.WARN, summary, fix)


def fail(summary: str, fix: str) -> Verdict:
    return Verdict(Level.FAIL, summary, fix)


def byte_size(count: float) -> str:
    """12.3 MB, as people read it."""
    for unit in ("bytes", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:.4g} TB"


def span(seconds: float) -> str:
    """83 ms, or 2.1 s."""
    return f"{seconds * 1000:.3g} ms" if abs(seconds) < 1 else f"{seconds:.1f} s"
