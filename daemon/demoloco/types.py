"""The nouns of the protocol: plain values, equal on all peers where they are agreed.

Nothing here knows bytes on the wire (`wire.py`), arrays or tensors (`codec/`).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import NewType

PeerId = NewType("PeerId", str)
"""A libp2p peer id in base58; for Ed25519 identities it contains the public key."""

Round = NewType("Round", int)
"""Height in the log; 0 is the genesis, the first manifest makes round 1."""

Digest = NewType("Digest", bytes)
"""BLAKE3 digest, 32 bytes, of bytes as received."""

DIGEST_BYTES = 32
NO_DIGEST = Digest(bytes(DIGEST_BYTES))


def short(name: PeerId | Digest) -> str:
    """The few characters that people read: the end of a peer id, the start of a digest."""
    return name.hex()[:8] if isinstance(name, bytes) else name[-6:]


class Phase(StrEnum):
    """What a node does, as its peers and its operator see it."""

    JOINING = "joining"  # has no agreed state yet
    CATCHING_UP = "catching up"  # knows of a better head than its own
    TRAINING = "training"  # inner steps of the open round
    EXCHANGING = "exchanging"  # its packet is out; the manifest is not in
    LEAVING = "leaving"


@dataclass(frozen=True, kw_only=True, slots=True)
class Offer:
    """One contributor's packet for one round, as announced: enough to want it, not to trust it."""

    packet: Digest
    contributor: PeerId
    round: Round
    parent: Digest
    samples: int
    size: int  # bytes of the whole packet as it travels


@dataclass(frozen=True, kw_only=True, slots=True)
class PacketHeader:
    """What a packet says about itself, apart from its coefficients."""

    run: Digest
    round: Round
    parent: Digest
    contributor: PeerId
    samples: int
    spec: bytes  # start of the digest of the packet spec
    k: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Entry:
    """One packet's place in a manifest.

    `weight` is exactly representable in float32 and already divided by the sum of all weights.
    """

    packet: Digest
    contributor: PeerId
    samples: int
    weight: float
    size: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Draft:
    """What a proposer decides; sealing (sign, serialise, digest) makes it a Manifest."""

    run: Digest
    round: Round
    parent: Digest
    state: Digest  # fingerprint of the agreed state that this round starts from
    proposer: PeerId
    rank: int  # the proposer's place in the order of succession
    samples_total: int  # samples in the chain up to and including this round: its weight
    entries: tuple[Entry, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Manifest(Draft):
    """A sealed draft; `digest` names the signed bytes."""

    digest: Digest

    def entry_of(self, peer: PeerId) -> Entry | None:
        """This contributor's entry, or None if it was left out."""
        return next((entry for entry in self.entries if entry.contributor == peer), None)


@dataclass(frozen=True, kw_only=True, slots=True)
class Head:
    """The tip of a chain as one node claims or knows it."""

    digest: Digest  # of the manifest, or of the genesis for round 0
    round: Round
    samples_total: int
    rank: int = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class Member:
    """A peer live now, in its own signed words; `sequence` orders the words of one peer."""

    peer: PeerId
    run: Digest
    addresses: tuple[str, ...]  # multiaddrs without /p2p/…
    head: Head | None  # None while joining
    phase: Phase
    sequence: int  # milliseconds since the epoch at which the record was made, per peer increasing
    samples_per_second: float = 0.0
    version: str = ""
    direct: tuple[str, ...] = ()  # host:port at which its gRPC road listens
    up: float = 0.0  # bytes a second that its link carries, as measured; 0 = not known
    down: float = 0.0


@dataclass(frozen=True, kw_only=True, slots=True)
class BlobRef:
    """A blob by name and size in bytes."""

    digest: Digest
    size: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Snapshot:
    """The agreed state after a round, cut into blobs; its fingerprint is the digest of their
    digests."""

    head: Head
    blobs: tuple[BlobRef, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Gift:
    """What a member gives a joiner (`codec/gift.py`), cut into blobs.

    `lenders`: whose untold learning is in it, the giver among them; what these tell is no longer
    borrowed by who starts with it.
    """

    head: Head  # the agreed state that the giver's model stood on
    blobs: tuple[BlobRef, ...]
    lenders: tuple[PeerId, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Loan:
    """Whose untold learning a node's model still holds, and from which round on it goes."""

    lenders: tuple[PeerId, ...]
    since: Round


@dataclass(frozen=True, kw_only=True, slots=True)
class TensorShape:
    """One tensor of the model that is part of the agreed state."""

    name: str
    shape: tuple[int, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Genesis:
    """A run's birth; the digest of its bytes is the run's id.

    `config` and `layout` are canonical bytes (`config.py`, `codec/layout.py`).
    """

    config: bytes
    layout: bytes
    creator: PeerId
    snapshot: tuple[BlobRef, ...]  # the agreed state of round 0
    nonce: bytes
