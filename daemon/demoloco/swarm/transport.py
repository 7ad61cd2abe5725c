"""The road under a swarm: it carries bytes between peers and knows nothing of what they mean.

Rule: every call has a deadline, and every foreign exception ends here as Unreachable or Refused.
libp2p, gRPC beside it and the memory network are the roads; `mesh.py` is the same over all.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol

from demoloco.errors import SwarmError
from demoloco.swarm.links.access import Access
from demoloco.swarm.port import Traffic
from demoloco.swarm.roads.direct import DirectOffer
from demoloco.types import Digest, PeerId

FRAME_HEADER_BYTES = 5  # kind and length before each frame of a stream
MAX_FRAME_BYTES = (256 << 10) + 64
MAX_REFUSAL_CHARACTERS = 300


class Fault(StrEnum):
    """Why a peer could not be reached, as far as the road can tell."""

    REFUSED = "connection refused"
    TIMEOUT = "no answer in time"
    SLOW = "it sends too slowly"
    OTHER_PEER = "another peer answers at this address"
    PROTOCOL = "it speaks no protocol of this version"
    UNKNOWN = "no way to it is known"
    BROKEN = "the connection broke"
    BACKOFF = "it was dialled in vain a moment ago"
    DOWN = "this node's own transport is restarting"
    NO_ROAD = "there is no direct road"


class Unreachable(SwarmError):
    """The peer gave no answer."""

    def __init__(self, fault: Fault, detail: str = "") -> None:
        super().__init__(f"{fault.value}{': ' if detail else ''}{detail}")
        self.fault = fault


class Refused(SwarmError):
    """The peer answered that it will not; the text is the peer's own, cut and made printable."""

    def __init__(self, text: str) -> None:
        clean = "".join(c if c.isprintable() else " " for c in text[:MAX_REFUSAL_CHARACTERS])
        super().__init__(clean)


class Busy(Refused):
    """No upload slot is free; `body` (of `calls.encode_busy`) says who else holds the blob."""

    def __init__(self, body: bytes = b"") -> None:
        super().__init__("busy: no upload slot is free")
        self.body = body


class Method(StrEnum):
    """The calls that peers answer; part of the protocol."""

    HELLO = "hello"
    GENESIS = "genesis"
    ANNOUNCE = "announce"
    PUBLISH = "publish"
    MANIFESTS = "manifests"
    SNAPSHOT = "snapshot"
    GIFT = "gift"
    PROBE = "probe"
    DIAL_BACK = "dial_back"
    DIRECT = "direct"
    PUSH = "push"


class Outgoing(Protocol):
    """A stream that this node serves; the road asks for frames as fast as the peer takes them."""

    def frames(self) -> Iterator[bytes]: ...

    def close(self) -> None: ...


class Service(Protocol):
    """What answers when others call; raises Refused for what the caller should read,
    Busy where others may have it."""

    direct: Callable[[PeerId, DirectOffer], bytes] | None
    """Set by a road that has a direct one beside it: what to answer to a peer's offer."""

    def answer(self, peer: PeerId, method: Method, body: bytes) -> bytes: ...

    def open_stream(self, peer: PeerId, body: bytes) -> Outgoing: ...


@dataclass(slots=True)
class Meter:
    """Counts bytes where they are given to and taken from the transport; all roads share one, and
    with it the access that blobs pass and words are noted at."""

    access: Access = field(default_factory=Access)
    sent: int = 0
    received: int = 0
    blobs_sent: int = 0
    blobs_received: int = 0

    def traffic(self, dropped: int, failed_calls: int) -> Traffic:
        return Traffic(
            sent=self.sent,
            received=self.received,
            blobs_sent=self.blobs_sent,
            blobs_received=self.blobs_received,
            dropped=dropped,
            failed_calls=failed_calls,
        )

    def word_sent(self, size: int) -> None:
        self.sent += size
        self.access.up.note(size)

    def word_received(self, size: int) -> None:
        self.received += size
        self.access.down.note(size)

    def call_sent(self, name: str, body: bytes) -> None:
        """A piece of a packet is part of a blob, and has passed the access as such."""
        if name.endswith(Method.PUSH):
            self.frame_sent(body)
        else:
            self.word_sent(len(body))

    def call_received(self, name: str, body: bytes) -> None:
        if name.endswith(Method.PUSH):
            self.frame_received(body)
        else:
            self.word_received(len(body))

    def frame_sent(self, frame: bytes) -> None:
        self.sent += len(frame) + FRAME_HEADER_BYTES
        self.blobs_sent += len(frame) + FRAME_HEADER_BYTES

    def frame_received(self, frame: bytes) -> None:
        self.received += len(frame) + FRAME_HEADER_BYTES
        self.blobs_received += len(frame) + FRAME_HEADER_BYTES


class Transport(Protocol):
    """Carries calls and streams between this node and peers that are named by their keys."""

    @property
    def addresses(self) -> tuple[str, ...]: ...

    @property
    def meter(self) -> Meter: ...

    @property
    def restarts(self) -> int:
        """How often the road itself died and was rebuilt."""
        ...

    async def start(self, service: Service) -> None:
        """Raises: ConfigError, SwarmError."""
        ...

    async def connect(self, peer: PeerId, addresses: Sequence[str], seconds: float) -> None:
        """Dial these addresses; the peer that answers is checked. Raises: Unreachable."""
        ...

    async def call(self, peer: PeerId, method: Method, body: bytes, seconds: float) -> bytes:
        """Raises: Unreachable, Refused."""
        ...

    def stream(
        self, peer: PeerId, body: bytes, frame_seconds: float
    ) -> AsyncGenerator[bytes, None]:
        """Frames, none longer than MAX_FRAME_BYTES; ends only where the peer says that it ends.

        Raises: Unreachable, Refused.
        """
        ...

    async def observed(self, peer: PeerId) -> str | None:
        """The multiaddr from which a connected peer is seen; None if the road cannot tell."""
        ...

    async def advertise(self, run: Digest, record: bytes) -> None:
        """Leave this record where strangers of the same run look; a hint, never needed."""
        ...

    async def find(self, run: Digest) -> Sequence[bytes]:
        """Records that others left; hostile until decoded."""
        ...

    async def stop(self) -> None: ...
