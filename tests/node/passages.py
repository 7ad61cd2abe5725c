"""Stretches of a node's life, and what one life in them has shown."""

from __future__ import annotations

from dataclasses import dataclass, field

from demoloco.types import Digest, Head
from tests.node.recorder import Coefficients

NOWHERE = Digest(b"")
Point = tuple[str, int]
"""A name, and how often it had been reached before in this passage."""


class Passage:
    """Some stretch of a node's life, walked again and again until each of its points was met."""

    def __init__(self, begins: str = "", ends: str = "", *, alike: int = 12) -> None:
        self.begins = begins
        """The point with which it begins; empty: at once."""
        self.ends = ends or begins
        """The one that ends it."""
        self.alike = alike
        """Of points that are called alike so many."""
        self.cut = True
        """A power cut, not a SIGKILL."""
        self.met: dict[Point, None] = {}
        self.quiet = 0
        """Walks in a row without a new point."""

    @property
    def names(self) -> set[str]:
        """What its points are called."""
        return {name for name, _ in self.met}


@dataclass
class Life:
    """What one life of a victim has shown."""

    number: int
    errors: list[BaseException] = field(default_factory=list)
    written: int = 0  # number of the newest checkpoint
    saved: int = 0  # number of the newest checkpoint that the node heard of
    base: Coefficients | None = None  # told + owed when the worker was put on a state
    learnt_before: Coefficients | float = 0.0
    ahead: frozenset[bytes] = frozenset()  # packets that are out of the model already
    told_since: tuple[bytes, ...] = ()
    since: Digest = NOWHERE  # head on which the worker was put
    bodies: set[bytes] = field(default_factory=set)  # packets made in this life
    checks: int = 0
    contributed_before: int = 0  # rounds that had a packet of mine when this life began
    first_chain: frozenset[Digest] = frozenset()  # where the home stood when it was opened
    first_head: Head | None = None
    last_head: Head | None = None
