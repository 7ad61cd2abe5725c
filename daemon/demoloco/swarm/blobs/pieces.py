"""Pieces of a packet that its contributor sends unasked: their bytes, and who is sent which. Pure.

Rule: every member gets each piece once. Where one link would carry all copies for too long, each
member is sent a share of its own and passes it on to the others, so that all links carry it.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

from demoloco.bounds import to_digest, within
from demoloco.swarm.calls import MAX_OFFSET
from demoloco.types import Digest, Offer, PeerId
from demoloco.wire import offer_message, parse, to_offer
from demoloco_proto.v1 import round_pb2

MAX_PUSHED_BYTES = 2 << 20
"""A larger packet is fetched."""
BLIND_BYTES = 64 << 10
"""So much is sent to all while nobody knows what the link carries."""
MIN_PIECE_BYTES, MAX_PIECE_BYTES = 8 << 10, 48 << 10
PIECE_SECONDS = 0.06
"""A link carries a piece in about so long, as far as MIN and MAX allow: a cold connection sends a
small one without waiting for receipts, and what is lost of a thin link's queue is little."""
PIECES_A_SHARE = 4
"""What is passed on begins to arrive when the first of them has come."""
SHORT_SECONDS = 0.05
"""All copies go from one link if that takes no longer, or no longer than half a round trip."""


@dataclass(frozen=True, slots=True)
class Piece:
    """Some bytes of the packet that `offer` tells of."""

    offer: Offer
    offset: int
    data: bytes
    pass_on: bool  # the receiver sends it to the other members

    @property
    def end(self) -> int:
        return self.offset + len(self.data)


@dataclass(frozen=True, slots=True)
class Errand:
    """A stretch of a packet to send to one member."""

    to: PeerId
    offset: int
    end: int
    pass_on: bool


def encode_piece(run: Digest, piece: Piece) -> bytes:
    return round_pb2.Piece(
        run=run,
        offer=offer_message(piece.offer),
        offset=piece.offset,
        data=piece.data,
        pass_on=piece.pass_on,
    ).SerializeToString()


def decode_piece(data: bytes) -> tuple[Digest, Piece]:
    """Raises: PacketError for what is no piece of a packet of at most MAX_PUSHED_BYTES."""
    told = parse(round_pb2.Piece, data)
    offer = to_offer(told.offer)
    within("size of a packet that comes unasked", offer.size, 1, MAX_PUSHED_BYTES)
    offset = within("offset", told.offset, 0, MAX_OFFSET)
    length, rest = len(told.data), max(1, offer.size - offset)
    within("length of a piece", length, min(MIN_PIECE_BYTES, rest), MAX_PIECE_BYTES)
    within("end of a piece", offset + length, 1, offer.size)
    return to_digest("run", told.run), Piece(offer, offset, told.data, told.pass_on)


def errands(
    size: int, members: Sequence[PeerId], relays: Sequence[PeerId], up: float, trip: float
) -> list[Errand]:
    """Who is sent what of a packet of `size` bytes, in this order; none: it is to be fetched.

    `relays`: the members whose links carry enough to pass something on. `up`: bytes a second that
    the own link carries, 0 if nobody knows; `trip`: seconds there and back."""
    if size > MAX_PUSHED_BYTES or (not up and size > BLIND_BYTES):
        return []
    most = max(MIN_PIECE_BYTES, min(MAX_PIECE_BYTES, int(up * PIECE_SECONDS) or MAX_PIECE_BYTES))
    extra = (len(members) - 1) * size / up if up else 0.0
    if extra <= max(SHORT_SECONDS, trip / 2):
        return [
            Errand(member, start, end, pass_on=False)
            for start, end in _cut(0, size, most)
            for member in members
        ]
    if not relays:
        return []
    return _shared(size, relays, most)


def _shared(size: int, relays: Sequence[PeerId], most: int) -> list[Errand]:
    """Each relay's share in pieces, the first of each before the second of any."""
    share = max(MIN_PIECE_BYTES, math.ceil(size / len(relays)))
    piece = max(MIN_PIECE_BYTES, min(most, math.ceil(share / PIECES_A_SHARE)))
    rows = [
        [Errand(relay, start, end, pass_on=True) for start, end in _cut(begin, upto, piece)]
        for relay, (begin, upto) in zip(relays, _cut(0, size, share), strict=False)
    ]
    longest = max(map(len, rows))
    return [row[turn] for turn in range(longest) for row in rows if turn < len(row)]


def _cut(start: int, end: int, length: int) -> list[tuple[int, int]]:
    """Pieces of about equal length, none longer than this and none short of MIN_PIECE_BYTES
    unless all is."""
    count = max(1, math.ceil((end - start) / length))
    while count > 1 and (end - start) // count < MIN_PIECE_BYTES:
        count -= 1
    marks = [start + (end - start) * number // count for number in range(count + 1)]
    return list(itertools.pairwise(marks))
