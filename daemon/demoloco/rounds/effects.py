"""What is wanted. The driver carries these out in the order in which they are given, and reports
back as events.

Order is part of the contract: what must survive a crash stands before what tells others about it.
"""

from __future__ import annotations

from dataclasses import dataclass

from demoloco.types import Digest, Draft, Head, Manifest, Offer, PeerId, Phase, Round


@dataclass(frozen=True, slots=True)
class Settle:
    """Make the worker's model stand on my head's agreed state, from the checkpoint if it can."""


@dataclass(frozen=True, slots=True)
class Train:
    """→ Trained. `steps`: None = until the Cut."""

    round: Round
    steps: int | None


@dataclass(frozen=True, slots=True)
class Cut:
    """End the inner steps under way, once so many of them are made. → Trained."""

    least: int = 0


@dataclass(frozen=True, slots=True)
class Contribute:
    """Make and store my packet. → Contributed."""

    round: Round
    parent: Digest
    samples: int


@dataclass(frozen=True, slots=True)
class Announce:
    """Tell all members that I hold these packets."""

    offers: tuple[Offer, ...]


@dataclass(frozen=True, slots=True)
class Fetch:
    """→ PacketFetched | PacketRefused | FetchFailed."""

    packet: Digest
    size: int
    holders: tuple[PeerId, ...]
    offer: Offer  # what its header must say, as announced or as a manifest has it


@dataclass(frozen=True, slots=True)
class FetchManifests:
    """→ ManifestsFetched | ManifestsFailed."""

    holder: PeerId
    head: Digest


@dataclass(frozen=True, slots=True)
class FetchSnapshot:
    """→ SnapshotFetched | SnapshotFailed."""

    holders: tuple[PeerId, ...]


@dataclass(frozen=True, slots=True)
class Propose:
    """Seal this draft. → ManifestHeard from myself."""

    draft: Draft


@dataclass(frozen=True, slots=True)
class Commit:
    """Make the manifest durable."""

    manifest: Manifest


@dataclass(frozen=True, slots=True)
class Publish:
    """Tell all members."""

    manifest: Manifest


@dataclass(frozen=True, slots=True)
class Apply:
    """Move the agreed state: take `undo` back (newest first), then apply `redo` in order; the
    worker follows.

    → Applied | ApplyFailed.
    """

    undo: tuple[Manifest, ...]
    redo: tuple[Manifest, ...]


@dataclass(frozen=True, slots=True)
class Adopt:
    """Take the fetched snapshot of `head` as the agreed state; the worker follows. → Applied."""

    head: Head
    fingerprint: Digest


@dataclass(frozen=True, slots=True)
class Say:
    """This is what I am now; members learn it with the next heartbeat."""

    phase: Phase
    head: Head | None


@dataclass(frozen=True, slots=True)
class Note:
    """A line for the operator."""

    text: str
    warning: bool = False


@dataclass(frozen=True, slots=True)
class WakeMe:
    """→ Woken at this time. A later WakeMe replaces an earlier one."""

    at: float  # seconds, on the clock that `handle` is given


@dataclass(frozen=True, slots=True)
class Stop:
    """All that can be told is told: say goodbye and end."""


Effect = (
    Settle
    | Train
    | Cut
    | Contribute
    | Announce
    | Fetch
    | FetchManifests
    | FetchSnapshot
    | Propose
    | Commit
    | Publish
    | Apply
    | Adopt
    | Say
    | Note
    | WakeMe
    | Stop
)
