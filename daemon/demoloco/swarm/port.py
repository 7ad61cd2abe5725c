"""What the node needs of a swarm: who is there, small words to all, blobs from anyone who has them.

Rules for every adapter: each call has a deadline; a foreign exception ends here as SwarmError;
bytes that a peer sends are decoded and bounded before anyone above sees them, and what fails is
dropped and counted, never raised at the node. Signatures of members and manifests are checked here;
packets are blobs, checked above.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from demoloco.types import (
    BlobRef,
    Digest,
    Genesis,
    Gift,
    Manifest,
    Member,
    Offer,
    PeerId,
    Round,
    Snapshot,
)


@dataclass(frozen=True, slots=True)
class MemberSeen:
    """A peer's newest record arrived, from itself or through another."""

    member: Member


@dataclass(frozen=True, slots=True)
class MemberLost:
    """A peer did not answer for the time-out, or said goodbye."""

    peer: PeerId
    why: str


@dataclass(frozen=True, slots=True)
class OffersHeard:
    """`holder` says that it holds these packets."""

    holder: PeerId
    offers: tuple[Offer, ...]


@dataclass(frozen=True, slots=True)
class ManifestHeard:
    """`holder` sent this manifest; its signature is good, its claims are not checked."""

    holder: PeerId
    manifest: Manifest
    sealed: bytes  # the signed bytes whose digest names the manifest


SwarmEvent = MemberSeen | MemberLost | OffersHeard | ManifestHeard


@dataclass(frozen=True, slots=True)
class Traffic:
    """Bytes of messages as given to and taken from the transport, since start."""

    sent: int = 0
    received: int = 0
    blobs_sent: int = 0  # the part of `sent` that carried blobs, framing included
    blobs_received: int = 0
    dropped: int = 0  # messages of peers that failed a check
    failed_calls: int = 0


@dataclass(frozen=True, slots=True)
class Link:
    """What this node's link carries, in bytes a second, as its transfers taught; 0 = not known."""

    up: float = 0.0
    down: float = 0.0


class Library(Protocol):
    """What this node serves to others; implemented by the node over its store. Called in the node's
    loop."""

    def genesis(self) -> Genesis | None: ...

    def open_blob(self, blob: Digest) -> BlobReader | None:
        """A reader of an immutable blob, or None if it is not held."""
        ...

    def manifests(self, head: Digest, count: int) -> Sequence[bytes]:
        """Sealed manifests from `head` towards the genesis, head first; none if it is unknown."""
        ...

    def snapshot(self) -> Snapshot | None:
        """The newest snapshot that this node serves."""
        ...

    def gift(self) -> Gift | None:
        """The newest that this node has for joiners; its blobs can be opened for a while."""
        ...


class BlobReader(Protocol):
    """A blob opened for reading; stays valid when the blob is deleted meanwhile."""

    size: int

    def read(self, offset: int, length: int) -> bytes: ...

    def close(self) -> None: ...


class Swarm(Protocol):
    """One node's view of its peers."""

    @property
    def peer_id(self) -> PeerId: ...

    @property
    def addresses(self) -> tuple[str, ...]:
        """Multiaddrs at which others reach this node, without /p2p/."""
        ...

    @property
    def traffic(self) -> Traffic: ...

    @property
    def link(self) -> Link: ...

    def road(self, peer: PeerId) -> str:
        """How blobs come from this peer now: libp2p | grpc."""
        ...

    def packets_received(self) -> tuple[int, int]:
        """Number of packets fetched, and their bytes on the wire with framing (as in Traffic)."""
        ...

    def known_addresses(self) -> tuple[str, ...]:
        """Full multiaddrs of all peers ever met, newest last: to be dialled at the next start."""
        ...

    async def start(self, emit: Callable[[SwarmEvent], None], library: Library) -> None:
        """Listen, dial the seeds, keep healing. Returns when others could reach us; seeds may still
        be away.

        Raises: ConfigError (port in use, bad address), SwarmError (the transport does not start).
        """
        ...

    async def find_genesis(self, timeout_seconds: float) -> Genesis:
        """Ask the seeds for the run.

        Raises: ConfigError that says for each seed why it could not be asked.
        """
        ...

    def enter(self, run: Digest) -> None:
        """From now on speak for this run and refuse peers of others."""
        ...

    def say(self, member: Member) -> None:
        """This is my record now; it is signed here and reaches all members within a heartbeat."""
        ...

    async def announce(self, offers: Sequence[Offer]) -> None:
        """Tell all members which packets I hold."""
        ...

    def pass_on(self, offer: Offer) -> None:
        """This packet came from others and is durable here now: members that may lack it hear of
        it in a moment, without waiting for `announce`."""
        ...

    async def publish(self, sealed: bytes) -> None:
        """Send a sealed manifest to all members."""
        ...

    def fastest(self, peers: Sequence[PeerId]) -> tuple[PeerId, ...]:
        """The same peers, those first who can send most, as far as this node knows."""
        ...

    async def fetch(
        self,
        blob: BlobRef,
        holders: Sequence[PeerId],
        *,
        packet: bool = False,
        round: Round | None = None,
    ) -> bytes:
        """Get a blob from these holders, from those they name and those that are known to have it,
        as each is free and fast, going on with another where one fails; digest checked. Packets go
        before other blobs, those for the open round first.

        Raises: SwarmError when no holder delivered it.
        """
        ...

    async def manifests(
        self, holder: PeerId, head: Digest, count: int
    ) -> tuple[tuple[Manifest, bytes], ...]:
        """Manifests from `head` towards the genesis, head first, signatures and linkage checked;
        may be fewer.

        Raises: SwarmError if the holder does not have `head` or does not answer.
        """
        ...

    async def snapshot(self, holder: PeerId) -> Snapshot:
        """The newest snapshot that this peer serves.

        Raises: SwarmError.
        """
        ...

    async def gift(self, holder: PeerId) -> Gift:
        """The newest gift for joiners that this peer has; it is itself among the lenders.

        Raises: SwarmError, also where the peer has none.
        """
        ...

    def seal(self, kind: str, body: bytes) -> bytes:
        """Sign `body` with this node's identity; the bytes of a Signed envelope. `kind`: packet |
        manifest | member."""
        ...

    async def stop(self) -> None:
        """Say goodbye to all members and end; idempotent."""
        ...
