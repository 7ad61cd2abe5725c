"""Passing on: members that may lack a packet hear at once that this node has it now.

Rule: so that the packet of a thin uplink is fetched from those who have it; words only, a few at a
time, and none to whoever is known to have the packet.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress

from demoloco.swarm import calls
from demoloco.swarm.gossip.rumours import Batch
from demoloco.swarm.lines import Lines
from demoloco.swarm.standing import Standing
from demoloco.swarm.tasks import Tasks
from demoloco.swarm.transport import Method, Refused, Unreachable
from demoloco.types import Digest, Offer, PeerId

BATCH_SECONDS = 0.2
"""What comes within this time is told in one word."""
MAX_TOLD = 16
"""Members told at once: they tell others, and a busy holder names who has it."""


class Passing:
    """What this node got and has not told of yet."""

    def __init__(self, standing: Standing, lines: Lines, tasks: Tasks) -> None:
        self._standing = standing
        self._lines = lines
        self._tasks = tasks
        self._offers: dict[Digest, Offer] = {}

    def has(self, offer: Offer) -> None:
        """This packet is here, checked and durable."""
        record = self._standing.record
        if record is None or record.head is None or offer.round <= record.head.round:
            return  # nobody waits for it
        if not self._offers:
            self._tasks.spawn(self._tell_soon())
        self._offers[offer.packet] = offer

    async def _tell_soon(self) -> None:
        await asyncio.sleep(BATCH_SECONDS)
        offers, self._offers = tuple(self._offers.values())[: calls.MAX_OFFERS], {}
        if not self._standing.tidings.direct:
            self._standing.chatter.hold(offers)  # a few hear of it, and pass that on
            return
        lacking = {peer: self._lacks(peer, offers) for peer in self._standing.roster}
        peers = [peer for peer, lacks in lacking.items() if lacks]
        for peer in self._standing.rng.sample(peers, min(MAX_TOLD, len(peers))):
            self._tasks.spawn(self._tell(peer, lacking[peer]))

    def _lacks(self, peer: PeerId, offers: tuple[Offer, ...]) -> list[Offer]:
        """Those that this member may still want."""
        of = self._standing.holders.of
        return [o for o in offers if peer != o.contributor and peer not in of(o.packet)]

    async def _tell(self, peer: PeerId, offers: list[Offer]) -> None:
        batch = Batch(offers=tuple(offers))
        body = calls.encode_announcement(self._standing.own_run, batch)
        with suppress(Refused, Unreachable):  # counted; the next announcement to all says it again
            await self._lines.call(peer, Method.ANNOUNCE, body)
