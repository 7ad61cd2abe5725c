"""What was seen of a run of daemons, as plain values: figures follow from these alone.

Rule: times are seconds on one clock that only goes forward; a node is named by its number.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from benchmarks.faults import Kind


@dataclass(frozen=True, slots=True)
class Line:
    """A line of a node's log, when it was read."""

    at: float
    node: int
    life: int
    facts: Mapping[str, Any]

    @property
    def event(self) -> str:
        return str(self.facts.get("event", ""))


@dataclass(frozen=True, slots=True)
class Word:
    """A node's status."""

    at: float
    node: int
    life: int
    phase: str
    step: int  # of the inner steps under way
    round: int
    head: str
    told: int  # samples
    owed: int


@dataclass(frozen=True, slots=True)
class Sample:
    """One process: `role` is node, worker or p2pd, `life` names the process."""

    at: float
    role: str
    life: str
    megabytes: float  # its own memory, shared pages not counted (USS)
    descriptors: int


@dataclass(slots=True)
class Stroke:
    """A fault that was carried out."""

    at: float
    kind: Kind
    node: int
    life: int  # that it hit
    mended: float | None = None  # cable, SIGCONT, or exec of the next life


@dataclass(slots=True)
class Outage:
    """A node could not work, and was not meant to: dead, stopped or told to leave."""

    node: int
    began: float
    ended: float | None = None


@dataclass(slots=True)
class Course:
    """One run, from the first round to be counted on to the last."""

    nodes: int
    inner_steps: int
    batch_size: int
    pace: float  # seconds an inner step
    first: int = 0  # figures are of the rounds after this one …
    last: int = 0  # … up to this one
    lines: list[Line] = field(default_factory=list)
    words: list[Word] = field(default_factory=list)
    samples: list[Sample] = field(default_factory=list)
    strokes: list[Stroke] = field(default_factory=list)
    outages: list[Outage] = field(default_factory=list)
