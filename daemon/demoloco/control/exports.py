"""What an operator asks and hears when a model is to leave the node: plain words, as control.proto
has them, which says the units."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class ExportWish:
    """Which model, how it is written, and how long members may take to give theirs."""

    which: str = "own"
    merge: bool = False
    format: str = "torch"
    patience_seconds: float = 300.0


@dataclass(frozen=True, kw_only=True, slots=True)
class ExportProgress:
    """What is being done; `of` 0 = there is nothing to count."""

    doing: str
    done: int = 0
    of: int = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class ExportMember:
    """One whose model is in the mean."""

    peer_id: str
    me: bool
    weight: float
    round: int


@dataclass(frozen=True, kw_only=True, slots=True)
class ExportLeftOut:
    """A member whose model is not in the mean."""

    peer_id: str
    why: str


@dataclass(frozen=True, kw_only=True, slots=True)
class ExportResult:
    """What the file holds, and what the models lose on the held-out part."""

    which: str
    format: str
    run_id: str
    round: int
    head: str
    file_bytes: int = 0
    own_loss: float | None = None
    agreed_loss: float | None = None
    merged_loss: float | None = None
    why_no_loss: str = ""
    weighted_by: str = ""
    members: tuple[ExportMember, ...] = ()
    left_out: tuple[ExportLeftOut, ...] = ()
    note: str = ""


ExportStep = ExportProgress | ExportResult | bytes
"""In the order of control.proto: progress, the result, the file."""
