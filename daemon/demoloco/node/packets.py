"""A peer's packet from bytes to coefficients, with every check that its bytes allow. Pure.

Rule: shape, k and limits come from this run's own spec, never from the packet.
"""

from __future__ import annotations

from dataclasses import dataclass

from demoloco.codec.packet import PacketSpec, Sparse, decode, max_bytes, norm
from demoloco.errors import PacketError
from demoloco.types import Digest, Offer, PacketHeader
from demoloco.wire import Verify, open_packet

MAX_ENVELOPE_BYTES = 512
"""Header, signature and framing around the coefficients."""


@dataclass(frozen=True, slots=True)
class Expected:
    """What every packet of a run has in common."""

    run: Digest
    spec: PacketSpec
    verify: Verify

    @property
    def max_packet_bytes(self) -> int:
        """No packet of this run is larger as it travels."""
        return max_bytes(self.spec) + MAX_ENVELOPE_BYTES


@dataclass(frozen=True, slots=True)
class Packet:
    """A packet that passed."""

    header: PacketHeader
    body: bytes
    sparse: Sparse

    @property
    def norm(self) -> float:
        return norm(self.sparse)


def read_packet(sealed: bytes, expected: Expected, offer: Offer | None = None) -> Packet:
    """Check a packet; with `offer`, that it is the one that was announced.

    Raises: PacketError that names the first thing that is wrong.
    """
    if len(sealed) > expected.max_packet_bytes:
        raise PacketError(
            f"{len(sealed)} bytes; this run's packets have {expected.max_packet_bytes}"
        )
    header, body = open_packet(sealed, expected.verify)
    if header.run != expected.run:
        raise PacketError("a packet of another run")
    if header.spec != expected.spec.digest:
        raise PacketError("a packet for another model or other settings")
    if offer is not None:
        _compare(header, offer)
    sparse = decode(body, expected.spec)
    if sparse.k != header.k:
        raise PacketError(f"the header says k = {header.k}, the coefficients k = {sparse.k}")
    return Packet(header, body, sparse)


def _compare(header: PacketHeader, offer: Offer) -> None:
    for name in ("round", "parent", "contributor", "samples"):
        if getattr(header, name) != getattr(offer, name):
            raise PacketError(f"the packet's {name} is not the one that was announced")
