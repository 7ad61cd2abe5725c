"""Sending a fresh packet to all members of a small swarm before they ask for it, and passing on
pieces of others' packets.

Rule: what a member does not take, or what is lost with it, is fetched as any blob is; nothing here
is tried twice, but for the share that a member would have passed on.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager

from demoloco.errors import DemolocoError, PacketError
from demoloco.swarm.blobs.pieces import Errand, Piece, decode_piece, encode_piece, errands
from demoloco.swarm.blobs.spacing import Spacing
from demoloco.swarm.links.access import Access, Passage
from demoloco.swarm.links.pacing import FAT
from demoloco.swarm.port import Link
from demoloco.swarm.standing import Standing
from demoloco.swarm.tasks import Tasks
from demoloco.swarm.transport import Method, Refused, Transport, Unreachable
from demoloco.types import Digest, Offer, PeerId, short

log = logging.getLogger(__name__)

SECONDS = 30.0
"""A piece that is not taken in so long a time is given up."""
MAX_UNDER_WAY = 64
"""Pieces that wait for their answers."""
RELAY_SHARE = 0.35
"""Of this node's own rate: who can send so much passes pieces on."""
MAX_PASSING = 256
"""Others' pieces that wait for the link; of what comes beyond, others are told and fetch it."""
MAX_PUSHED = 64
UNWILLING = "its download is limited: it asks for packets when they may come"


class Pushes:
    """What one node sends unasked."""

    def __init__(
        self, standing: Standing, transport: Transport, tasks: Tasks, link: Callable[[], Link]
    ) -> None:
        self._standing = standing
        self._transport = transport
        self._tasks = tasks
        self._link = link
        self._pushed: OrderedDict[Digest, None] = OrderedDict()
        self._room = asyncio.Semaphore(MAX_UNDER_WAY)
        self._spacing = Spacing(standing.now)
        self._own: dict[Passage, None] = {}
        self._passing = 0
        self._unwilling: set[PeerId] = set()
        self._takes = not self._access.down.gate.rate
        if self._takes:
            standing.arriving.receive = self._access.down.unasked

    # -- own packets -------------------------------------------------------------------------------
    def begin(self, offers: Sequence[Offer]) -> bool:
        """Send those of these packets that are new and this node's own; whether there are any."""
        begun = False
        for offer in offers if self._standing.tidings.direct else ():
            if offer.contributor != self._standing.identity.peer_id or offer.packet in self._pushed:
                continue
            self._pushed[offer.packet] = None
            if len(self._pushed) > MAX_PUSHED:
                self._pushed.popitem(last=False)
            if plan := self._plan(offer):
                told = "push=begun blob=%s pieces=%d passed_on=%s up=%.0f"
                log.debug(told, short(offer.packet), len(plan), plan[0].pass_on, self._link().up)
                self._tasks.spawn(self._send(offer, plan))
                begun = True
        return begun

    def _plan(self, offer: Offer) -> list[Errand]:
        up, members = self._link().up, self._members()
        trips = [self._access.round_trips.of(member) for member in members]
        relays = [member for member in members if self._may_pass(member, up)]
        return errands(offer.size, members, relays, up, max(trips, default=0.0)) if members else []

    def _may_pass(self, member: PeerId, up: float) -> bool:
        claimed = self._standing.claims(member).up
        return not claimed or claimed >= RELAY_SHARE * up

    async def _send(self, offer: Offer, plan: Sequence[Errand]) -> None:
        try:
            reader = self._standing.library.open_blob(offer.packet)
            if reader is None:
                return
            try:
                data = reader.read(0, offer.size)
            finally:
                reader.close()
        except (DemolocoError, OSError) as error:
            log.warning("push=unreadable blob=%s why=%s", short(offer.packet), error)
            return
        failed: set[PeerId] = set()
        for one in plan:
            piece = Piece(offer, one.offset, data[one.offset : one.end], one.pass_on)
            await self._launch(one.to, piece, failed)

    # -- others' packets ---------------------------------------------------------------------------
    def hear(self, sender: PeerId, body: bytes) -> Digest:
        """A peer sends a piece; of which run.

        Raises: PacketError."""
        run, piece = decode_piece(body)
        here = self._standing
        if run != here.run:
            return run
        if sender not in here.roster:
            raise PacketError("it sends a piece of a packet and is no member")
        if not self._takes:  # it cannot limit what comes by itself
            raise Refused(UNWILLING)
        kept = here.arriving.accept(piece, sender)
        if kept and piece.pass_on and self._passing < MAX_PASSING:
            self._passing += 1
            self._tasks.spawn(self._relay(piece, sender))
        return run

    async def _relay(self, piece: Piece, sender: PeerId) -> None:
        try:
            await self._pass_on(piece, {sender})
        finally:
            self._passing -= 1

    async def _pass_on(self, piece: Piece, but: set[PeerId]) -> None:
        plain = Piece(piece.offer, piece.offset, piece.data, pass_on=False)
        for member in self._members():
            if member not in but and member != piece.offer.contributor:
                await self._launch(member, plain, set())

    # -- the way out -------------------------------------------------------------------------------
    async def _launch(self, to: PeerId, piece: Piece, failed: set[PeerId]) -> None:
        """Give it to the link when it is its turn; its answer comes later."""
        await self._room.acquire()
        self._tasks.spawn(self._deliver(to, piece, failed, began := asyncio.Event()))
        await began.wait()

    async def _deliver(
        self, to: PeerId, piece: Piece, failed: set[PeerId], began: asyncio.Event
    ) -> None:
        """`failed`: who took nothing of this packet."""
        body = encode_piece(self._standing.own_run, piece)
        try:
            if to in failed:
                raise Refused("it took none before")
            async with self._spaced(to, len(body)):
                if piece.offer.contributor == self._standing.identity.peer_id:
                    await self._deliver_own(to, body, began)
                else:
                    await self._deliver_others(to, body, began)
        except (Refused, Unreachable) as error:
            log.debug("push=failed peer=%s why=%s", short(to), error)
            if piece.pass_on:
                self._tasks.spawn(self._pass_on(piece, {to, *failed}))
            failed.add(to)
            if str(error) == UNWILLING:
                self._unwilling.add(to)
        finally:
            began.set()
            self._room.release()

    async def _deliver_own(self, to: PeerId, body: bytes, began: asyncio.Event) -> None:
        with self._access.up.begin(to) as passage:
            self._own[passage] = None
            try:
                await passage.pass_(len(body), paced=False)
                began.set()
                await self._transport.call(to, Method.PUSH, body, SECONDS)
                passage.arrived()
            finally:
                del self._own[passage]

    async def _deliver_others(self, to: PeerId, body: bytes, began: asyncio.Event) -> None:
        """How fast it goes tells nothing of the link: it goes as it comes."""
        beside = next(iter(self._own), None)
        if beside is not None:
            await beside.pass_(len(body), paced=False)
        else:
            await self._access.up.gate.pass_(len(body), paced=False)
        began.set()
        await self._transport.call(to, Method.PUSH, body, SECONDS)

    @asynccontextmanager
    async def _spaced(self, to: PeerId, size: int) -> AsyncIterator[None]:
        """While a piece is under way; it waits where the link may have a queue to fill."""
        up = self._link().up
        thin = up < FAT and not self._access.up.gate.rate
        trip = self._access.round_trips.of(to)
        async with self._spacing.room(size, up if thin else 0.0, trip):
            yield

    @property
    def _access(self) -> Access:
        return self._transport.meter.access

    def _members(self) -> list[PeerId]:
        """Those that stand on some state, in any order."""
        here = self._standing
        rows = {peer: here.roster.row(peer) for peer in here.roster if peer not in self._unwilling}
        chosen = [peer for peer, row in rows.items() if row and row.member.head is not None]
        here.rng.shuffle(chosen)
        return chosen
