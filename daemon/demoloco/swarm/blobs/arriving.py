"""Packets that come unasked, piece by piece, until somebody here wants them.

Rule: one of each contributor for each round, the one that it says itself; what is passed on may be
here before its word. The bytes are checked like fetched ones, and what does not come is fetched.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from demoloco.errors import PacketError
from demoloco.swarm.blobs.pieces import MAX_PUSHED_BYTES, Piece
from demoloco.swarm.blobs.transfer import Transfer
from demoloco.swarm.links.access import Passage
from demoloco.types import BlobRef, Offer, PeerId, Round, short

if TYPE_CHECKING:
    from demoloco.swarm.standing import Standing

log = logging.getLogger(__name__)

AHEAD = 2
"""Rounds above the head for which packets are taken."""
MAX_ARRIVING = 32
QUIET_SECONDS = 1.5
"""What lacks of a packet is fetched when no piece came for so long, and for as long as its
contributor's link takes for all of it, but no longer than MAX_QUIET_SECONDS."""
MAX_QUIET_SECONDS = 10.0
LEAST_RATE = 62_500.0
"""Bytes a second: what another member has whole is fetched from it when it comes more slowly."""


@dataclass(eq=False, slots=True)
class _Coming:
    """One packet on its way here."""

    offer: Offer
    last: float  # when something of it came
    passage: Passage
    pieces: dict[int, tuple[bytes, PeerId]] = field(default_factory=dict)  # by their offset
    lacks: int = 0
    closed: bool = False
    elsewhere: float | None = None  # since when another member is known to have all of it
    complete: asyncio.Event = field(default_factory=asyncio.Event)

    def overlaps(self, piece: Piece) -> bool:
        return any(
            start < piece.end and piece.offset < start + len(data)
            for start, (data, _) in self.pieces.items()
        )

    def close(self) -> None:
        """Nothing more of it is taken."""
        self.closed = True
        self.passage.end()
        self.complete.set()


class Arriving:
    """The packets of the next rounds that came, or begin to come."""

    def __init__(self, standing: Standing) -> None:
        self._standing = standing
        self._of: dict[tuple[PeerId, Round], _Coming] = {}
        self.receive: Callable[[PeerId], Passage] | None = None
        """What counts the bytes of this contributor's packet; None: packets are not taken."""

    def begin(self, offer: Offer, teller: PeerId) -> None:
        """The teller says that it sends this packet of its own."""
        if offer.contributor == teller and offer.size <= MAX_PUSHED_BYTES:
            self._coming(offer, own=True)

    def accept(self, piece: Piece, sender: PeerId) -> bool:
        """Keep this piece; whether it is one that was lacking.

        Raises: PacketError if the sender may not send it."""
        own = sender == piece.offer.contributor
        if piece.pass_on and not own:
            raise PacketError("a piece of another's packet that is to be passed on")
        coming = self._coming(piece.offer, own=own)
        if coming is None or coming.closed or coming.overlaps(piece):
            return False
        coming.pieces[piece.offset] = piece.data, sender
        coming.lacks -= len(piece.data)
        coming.last = self._standing.now()
        coming.passage.came(len(piece.data))
        if not coming.lacks:
            coming.passage.arrived()
            coming.complete.set()
        return True

    async def rest(self, blob: BlobRef) -> Transfer | None:
        """Wait while it comes; then what came of it, or None if nothing did."""
        coming = next((one for one in self._of.values() if one.offer.packet == blob.digest), None)
        if coming is None or coming.offer.size != blob.size:
            return None
        while coming.lacks and not coming.closed and (left := self._patience(coming)) > 0:
            with suppress(TimeoutError):
                async with asyncio.timeout(left):
                    await coming.complete.wait()
        coming.close()
        pieces, coming.pieces = coming.pieces, {}
        if coming.lacks:
            log.info("push=cut blob=%s lacks=%d of=%d", short(blob.digest), coming.lacks, blob.size)
        return Transfer.resumed(blob, pieces) if pieces else None

    def _patience(self, coming: _Coming) -> float:
        """For how many seconds it may still be waited for another piece."""
        here, offer = self._standing, coming.offer
        up = here.claims(offer.contributor).up
        slow = offer.size / up if up else 0.0
        until = coming.last + min(MAX_QUIET_SECONDS, QUIET_SECONDS + slow)
        if set(here.holders.of(offer.packet)) - {offer.contributor}:
            coming.elsewhere = coming.elsewhere or here.now()
            until = min(until, coming.elsewhere + MAX_QUIET_SECONDS + offer.size / LEAST_RATE)
        return until - here.now()

    def _coming(self, offer: Offer, *, own: bool) -> _Coming | None:
        """Its place here, if there is one for it; its contributor's word is the one that counts."""
        key = offer.contributor, offer.round
        before = self._of.get(key)
        if before is not None and before.offer == offer:
            return before
        if self.receive is None or not self._is_due(offer) or (before is not None and not own):
            return None
        self._forget()
        if before is not None:
            before.close()
        elif len(self._of) >= MAX_ARRIVING:
            return None
        now, passage = self._standing.now(), self.receive(offer.contributor)
        self._of[key] = _Coming(offer, now, passage, lacks=offer.size)
        return self._of[key]

    def _is_due(self, offer: Offer) -> bool:
        """Whether it may be wanted, as far as this node knows."""
        here = self._standing
        head = here.record.head if here.record is not None else None
        if head is None or offer.contributor not in here.roster:
            return False
        return head.round < offer.round <= head.round + AHEAD

    def _forget(self) -> None:
        """Rounds that are over, and members that left."""
        gone = [key for key, one in self._of.items() if not self._is_due(one.offer)]
        for key in gone:
            self._of.pop(key).close()
