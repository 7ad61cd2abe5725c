"""Offers and manifests on their way: to all members of a small swarm, from mouth to mouth in a
large one.

Rule: what is told to whom, `rumours.py` and `talk.py` decide; nothing is passed on that failed a
check, and nothing twice.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine, Iterable, Sequence
from typing import TYPE_CHECKING

from demoloco.errors import PacketError
from demoloco.swarm import calls
from demoloco.swarm.gossip.rumours import PARTNERS, PUBLISHED_TO, RELAYED_TO, Batch, Relay, draw
from demoloco.swarm.gossip.talk import Talk, Told, for_leavers
from demoloco.swarm.port import ManifestHeard, OffersHeard
from demoloco.swarm.transport import Method, Refused, Unreachable
from demoloco.types import Manifest, Offer, PeerId, short
from demoloco.wire import digest_of

if TYPE_CHECKING:
    from demoloco.swarm.lines import Lines
    from demoloco.swarm.standing import Standing
    from demoloco.swarm.tasks import Tasks

log = logging.getLogger(__name__)

COMPARED_WITH = 2
"""Members with whom this node compares what both know of the round, each time that it announces."""


class Chatter:
    """What one node tells and hears of packets and manifests."""

    def __init__(self, standing: Standing) -> None:
        self._standing = standing
        self._lines: Lines | None = None
        self._tasks: Tasks | None = None
        self._talk = Talk(standing.identity.peer_id)
        self._relay = Relay()
        self._flushing = False

    def speak(self, lines: Lines, tasks: Tasks) -> None:
        """From now on pass on what is heard; without this it only listens."""
        self._lines, self._tasks = lines, tasks

    # -- offers ------------------------------------------------------------------------------------
    async def announce(self, offers: Sequence[Offer], *, coming: bool = False) -> None:
        """Tell which packets this node holds; `coming`: its own are on their way already."""
        here = self._standing
        run = here.own_run
        if here.tidings.direct:
            for start in range(0, len(offers), calls.MAX_OFFERS):
                batch = Batch(tuple(offers[start : start + calls.MAX_OFFERS]), coming=coming)
                body = calls.encode_announcement(run, batch)
                await self._to(here.roster, Method.ANNOUNCE, body)
            return
        self._talk.hold(offers)
        self._flush_soon()
        for peer, batch in for_leavers(offers, here.roster):
            self._spawn(self._tell(peer, batch))
        if summary := self._talk.summary():
            for peer in draw(here.rng, tuple(here.roster), COMPARED_WITH):
                self._spawn(self._tell(peer, summary))

    def hold(self, offers: Sequence[Offer]) -> None:
        """In a large swarm: tell a few of these now, as of all that is new."""
        self._talk.hold(offers)
        self._flush_soon()

    def hear_batch(self, batch: Batch, teller: PeerId) -> Batch:
        """A peer told this; what it is told in turn."""
        self._hear(batch, teller)
        return Batch() if self._standing.tidings.direct else self._talk.answer(batch, teller)

    def _hear(self, batch: Batch, teller: PeerId) -> None:
        here = self._standing
        if here.tidings.direct:
            told: Told = [(teller, batch.offers)] if batch.offers else []
            told += [(offer.contributor, (offer,)) for offer in batch.heard]
        else:
            told = self._talk.hear(teller, batch, here.roster, here.now())
            self._flush_soon()
        for holder, offers in told:
            here.note_holder(holder, (offer.packet for offer in offers))
            for offer in offers if batch.coming else ():
                here.arriving.begin(offer, teller)
            here.emit(OffersHeard(holder, offers))

    def _flush_soon(self) -> None:
        """What is new goes out now and, in batches, as long as there is any."""
        if self._talk.has_news and not self._flushing and self._lines is not None:
            self._flushing = True
            self._spawn(self._flush())

    async def _flush(self) -> None:
        here = self._standing
        try:
            while self._talk.has_news and not here.tidings.direct:
                for peer in draw(here.rng, tuple(here.roster), PARTNERS):
                    if batch := self._talk.batch_for(peer):
                        self._spawn(self._tell(peer, batch))
                await asyncio.sleep(here.timing.batch_seconds)
        finally:
            self._flushing = False

    async def _tell(self, peer: PeerId, batch: Batch) -> None:
        here = self._standing
        body = calls.encode_announcement(here.own_run, batch)
        try:
            assert self._lines is not None
            reply = await self._lines.call(peer, Method.ANNOUNCE, body)
            if reply:
                run, answer = calls.decode_announcement(reply)
                if run == here.run:
                    self._hear(answer, peer)
        except (Refused, Unreachable) as error:
            self._talk.untold(peer, batch)
            log.debug("told=failed method=announce peer=%s why=%s", short(peer), error)
        except PacketError as error:
            here.drop(peer, f"its answer to an announcement: {error}")

    # -- manifests ---------------------------------------------------------------------------------
    async def publish(self, sealed: bytes) -> None:
        """Send a manifest of this node on its way."""
        here = self._standing
        self._relay.is_new(digest_of(sealed))
        peers: Iterable[PeerId] = here.roster
        if not here.tidings.direct:
            peers = draw(here.rng, tuple(here.roster), PUBLISHED_TO)
        body = calls.encode_publication(here.own_run, sealed)
        await self._to(peers, Method.PUBLISH, body)

    def hear_manifest(self, manifest: Manifest, sealed: bytes, teller: PeerId) -> None:
        """A peer sent this manifest, and its signature is good: it is heard, and passed on once.

        Its packets are where its proposer is; who passes it on need not have them yet."""
        here = self._standing
        if here.tidings.direct:
            here.emit(ManifestHeard(teller, manifest, sealed))
            return
        if not self._relay.is_new(manifest.digest):
            return
        here.emit(ManifestHeard(manifest.proposer, manifest, sealed))
        if manifest.proposer not in here.roster:
            return
        if self._relay.may_pass(manifest.proposer, here.now()):
            others = [peer for peer in here.roster if peer not in (teller, manifest.proposer)]
            body = calls.encode_publication(here.own_run, sealed)
            chosen = draw(here.rng, others, RELAYED_TO)
            self._spawn(self._to(chosen, Method.PUBLISH, body))

    # -- the way out -------------------------------------------------------------------------------
    async def _to(self, peers: Iterable[PeerId], method: Method, body: bytes) -> None:
        if self._lines is not None:
            await self._lines.tell(peers, method, body)

    def _spawn(self, work: Coroutine[None, None, None]) -> None:
        if self._tasks is None:
            work.close()
        else:
            self._tasks.spawn(work)
