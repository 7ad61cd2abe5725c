"""What happened. The machine hears these and nothing else; each is past tense and carries all that
it needs.

Whoever makes an event has checked what only bytes can show (signatures, digests, a packet's
numbers); the machine checks what only the protocol can show (parents, rounds, ranks, sums).
"""

from __future__ import annotations

from dataclasses import dataclass

from demoloco.types import Digest, Head, Manifest, Member, Offer, PeerId, Round


@dataclass(frozen=True, slots=True)
class Started:
    """The node has an agreed state on disk. `chain`: the manifests before and up to `head`, oldest
    first, as far as kept; `pending`: my stored packet for the open round, if there is one."""

    head: Head
    fingerprint: Digest
    chain: tuple[Manifest, ...] = ()
    pending: Offer | None = None
    pending_norm: float = 0.0
    owed_samples: int = 0


@dataclass(frozen=True, slots=True)
class WorkerCame:
    """A worker is there and can be told to stand on the agreed state."""


@dataclass(frozen=True, slots=True)
class WorkerLost:
    """The worker is gone; what it had trained since its checkpoint is gone with it.

    `owed_samples`: what a worker restored from the checkpoint will owe."""

    owed_samples: int


@dataclass(frozen=True, slots=True)
class MemberSeen:
    member: Member


@dataclass(frozen=True, slots=True)
class MemberLost:
    peer: PeerId


@dataclass(frozen=True, slots=True)
class OffersHeard:
    holder: PeerId
    offers: tuple[Offer, ...]


@dataclass(frozen=True, slots=True)
class ManifestHeard:
    """From a peer, or from myself: then it is my own proposal, sealed."""

    holder: PeerId
    manifest: Manifest


@dataclass(frozen=True, slots=True)
class ManifestsFetched:
    """Linked manifests, newest first; the first is what was asked for."""

    holder: PeerId
    manifests: tuple[Manifest, ...]


@dataclass(frozen=True, slots=True)
class ManifestsFailed:
    holder: PeerId
    head: Digest


@dataclass(frozen=True, slots=True)
class PacketFetched:
    """The packet is checked and durable here; `norm` is the L2 norm of its coefficients."""

    packet: Digest
    norm: float


@dataclass(frozen=True, slots=True)
class PacketRefused:
    """The bytes match the digest; they are not what the Fetch said, or their content is bad."""

    packet: Digest


@dataclass(frozen=True, slots=True)
class FetchFailed:
    """Nobody delivered the packet this time."""

    packet: Digest


@dataclass(frozen=True, slots=True)
class SnapshotFetched:
    """The agreed state after `head` is whole on disk; `manifest` is the one that led to it, None
    for the genesis."""

    head: Head
    fingerprint: Digest
    manifest: Manifest | None


@dataclass(frozen=True, slots=True)
class SnapshotFailed:
    why: str


@dataclass(frozen=True, slots=True)
class Trained:
    samples: int


@dataclass(frozen=True, slots=True)
class Contributed:
    """My packet is durable here; nobody else knows of it yet."""

    offer: Offer
    norm: float


@dataclass(frozen=True, slots=True)
class Applied:
    """The agreed state after `head` is durable and is the node's own now.

    `lost`: samples that the node owes after this, and its model has not, for the packets that it
    needed are gone. Of a snapshot also what the log tells of the way to it, in samples: `told` on
    it and `untold` by it; where the log does not reach, `unknown` is the newest round that lacks.
    """

    head: Head
    fingerprint: Digest
    lost: int = 0
    told: int = 0
    untold: int = 0
    unknown: Round | None = None


@dataclass(frozen=True, slots=True)
class ApplyFailed:
    """The manifest does not start from the state that I have: one of us is wrong.

    `lacking`: nobody is wrong, but what it starts from, or a packet of it, is not on this disk.
    """

    manifest: Digest
    why: str
    lacking: bool = False


@dataclass(frozen=True, slots=True)
class LeaveRequested:
    """`now`: do not contribute what is trained so far."""

    now: bool = False


@dataclass(frozen=True, slots=True)
class Woken:
    """The time that WakeMe named has come."""


Word = MemberSeen | MemberLost | OffersHeard | ManifestHeard
"""What peers say."""

ErrandEnd = (
    ManifestsFetched
    | ManifestsFailed
    | PacketFetched
    | PacketRefused
    | FetchFailed
    | SnapshotFetched
    | SnapshotFailed
)
"""How something that was wanted from peers ends."""

Doing = (
    Started
    | WorkerCame
    | WorkerLost
    | Trained
    | Contributed
    | Applied
    | ApplyFailed
    | LeaveRequested
    | Woken
)
"""What happens on this node."""

Event = Word | ErrandEnd | Doing
