"""What the node asks of the worker when a model is to leave it, and what it hears.

Rule: a part of `port.py`; values alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path


class Which(StrEnum):
    """The models that a node can give away."""

    OWN = "own"
    AGREED = "agreed"
    MERGED = "merged"


FORMATS = ("torch",)
"""In which a model can be written."""


@dataclass(frozen=True, slots=True)
class Share:
    """A member's part in a merged model. `owed`: what `codec.gift.read_owed` reads; `told`: bodies
    of what it and its lenders told since."""

    owed: Path
    told: tuple[bytes, ...]
    weight: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Export:
    """Evaluate a model and write it to `path`, as far as it is wanted; training goes on from the
    very bits that it had. Answered by Exported or NotExported; `ticket` comes back."""

    ticket: int
    which: Which
    agreed: Path  # the state that the own model stands on
    shares: tuple[Share, ...] = ()  # the rest of the weight, to 1, is the own model's
    path: Path | None = None
    format: str = "torch"
    evaluate: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class Exported:
    """`loss`: None where it was not asked for, or for the reason `why`."""

    ticket: int
    loss: float | None = None
    why: str = ""
    size: int = 0  # bytes of the file


@dataclass(frozen=True, kw_only=True, slots=True)
class NotExported:
    """Nothing usable was written; the model is as it was, and training goes on."""

    ticket: int
    why: str
