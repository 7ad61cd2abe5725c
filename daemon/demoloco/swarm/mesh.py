"""The swarm port over any transport: every member talks to every other, or in a large swarm to
some.

Rule: what must be equal on all nodes goes straight from peer to peer, signed or named by its
digest; lists of addresses and other people's hints only help to find peers.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, Sequence

from demoloco.errors import PacketError, SwarmError
from demoloco.swarm import calls
from demoloco.swarm.addresses import PeerAddress
from demoloco.swarm.blobs.fetching import Fetcher, Wanted
from demoloco.swarm.blobs.passing import Passing
from demoloco.swarm.blobs.pushing import Pushes
from demoloco.swarm.blobs.turns import Turns
from demoloco.swarm.dial_back import DialBacks
from demoloco.swarm.genesis import ask_seeds
from demoloco.swarm.identity import Identity, verify
from demoloco.swarm.lines import Lines
from demoloco.swarm.port import Library, Link, SwarmEvent, Traffic
from demoloco.swarm.pulse import Pulse
from demoloco.swarm.service import PeerService
from demoloco.swarm.standing import Standing
from demoloco.swarm.tasks import Tasks
from demoloco.swarm.timing import Timing
from demoloco.swarm.transport import Method, Transport
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
    short,
)
from demoloco.wire import decode_manifest, decode_snapshot, seal

log = logging.getLogger(__name__)


class Mesh:
    """The swarm port over any transport."""

    def __init__(
        self,
        identity: Identity,
        transport: Transport,
        *,
        seeds: Sequence[PeerAddress] = (),
        known: Sequence[PeerAddress] = (),
        timing: Timing | None = None,
        rng: random.Random | None = None,
    ) -> None:
        self._identity = identity
        self._transport = transport
        self._seeds = tuple(seed for seed in seeds if seed.peer != identity.peer_id)
        self._saved = tuple(known)
        self._timing = timing or Timing()
        self._rng = rng or random.Random()
        self._tasks = Tasks()
        self._stopped = False
        self._here: Standing | None = None

    # What others see of this node

    @property
    def peer_id(self) -> PeerId:
        return self._identity.peer_id

    @property
    def addresses(self) -> tuple[str, ...]:
        return self._transport.addresses

    @property
    def traffic(self) -> Traffic:
        here = self._here
        dropped, failed = (here.dropped, here.failed_calls) if here else (0, 0)
        return self._transport.meter.traffic(dropped, failed)

    @property
    def link(self) -> Link:
        return self._transport.meter.access.link

    @property
    def restarts(self) -> int:
        """How often the transport died and was rebuilt."""
        return self._transport.restarts

    def road(self, peer: PeerId) -> str:
        return "libp2p"

    def packets_received(self) -> tuple[int, int]:
        return (self._fetcher.packets, self._fetcher.packet_bytes) if self._here else (0, 0)

    def known_addresses(self) -> tuple[str, ...]:
        """Full multiaddrs of all peers ever met, newest last: save them for the next start."""
        known = self._here.known if self._here else {}
        return tuple(
            str(PeerAddress(peer, one)) for peer, addresses in known.items() for one in addresses
        )

    # Life

    async def start(self, emit: Callable[[SwarmEvent], None], library: Library) -> None:
        here = Standing(
            identity=self._identity,
            emit=emit,
            library=library,
            rng=self._rng,
            now=asyncio.get_running_loop().time,
            timing=self._timing,
        )
        for seed in self._seeds:
            here.pin(seed.peer, seed.address)
        for one in self._saved:
            here.remember(one.peer, (*here.known.get(one.peer, ()), one.address))
        seeds = frozenset(seed.peer for seed in self._seeds)
        self._lines = Lines(here, self._transport, self._timing, self._tasks)
        turns = Turns(lambda: self.link)
        self._fetcher = Fetcher(here, self._lines.frames, self._timing, turns)
        self._passing = Passing(here, self._lines, self._tasks)
        self._pulse = Pulse(here, self._transport, self._lines, self._tasks, seeds, self._timing)
        here.chatter.speak(self._lines, self._tasks)
        dial_backs = DialBacks(self._transport.observed, self._tasks, here.now)
        self._pushes = Pushes(here, self._transport, self._tasks, lambda: self.link)
        service = PeerService(here, dial_backs, lambda: self.link)
        service.push = self._pushes.hear
        await self._transport.start(service)
        self._here = here
        self._transport.meter.access.claims = here.claims
        self._pulse.start()

    def enter(self, run: Digest) -> None:
        self._standing.run = run
        self._pulse.dial_all()
        self._pulse.nudge()

    def say(self, member: Member) -> None:
        before, self._standing.record = self._standing.record, member
        self._standing.renew()
        if before is None or not self._standing.tidings.is_minor(before, member):
            self._pulse.nudge()

    async def stop(self) -> None:
        if self._stopped:
            return
        self._stopped = True
        await self._tasks.cancel()
        if self._here is not None:
            await self._pulse.farewell()
            await self._tasks.cancel()
        await self._transport.stop()

    # Words to all

    async def announce(self, offers: Sequence[Offer]) -> None:
        here = self._standing
        await here.chatter.announce(offers, coming=self._pushes.begin(offers))

    def pass_on(self, offer: Offer) -> None:
        _ = self._standing
        self._passing.has(offer)

    async def publish(self, sealed: bytes) -> None:
        await self._standing.chatter.publish(sealed)

    def seal(self, kind: str, body: bytes) -> bytes:
        return seal(kind, self._identity.sign, body)

    # Questions to one

    async def find_genesis(self, timeout_seconds: float) -> Genesis:
        return await ask_seeds(self._transport, self._seeds, timeout_seconds)

    def fastest(self, peers: Sequence[PeerId]) -> tuple[PeerId, ...]:
        _ = self._standing
        return self._fetcher.fastest(peers)

    async def fetch(
        self,
        blob: BlobRef,
        holders: Sequence[PeerId],
        *,
        packet: bool = False,
        round: Round | None = None,
    ) -> bytes:
        _ = self._standing
        return await self._fetcher.whole(
            Wanted(blob=blob, holders=holders, packet=packet, round=round)
        )

    async def manifests(
        self, holder: PeerId, head: Digest, count: int
    ) -> tuple[tuple[Manifest, bytes], ...]:
        run = self._standing.own_run
        count = max(1, min(count, calls.MAX_MANIFESTS))
        body = calls.encode_manifests_request(run, head, count)
        reply = await self._lines.call(holder, Method.MANIFESTS, body)
        try:
            return _chain(calls.decode_manifests_reply(reply), run, head, count)
        except PacketError as error:
            raise self._lines.distrust(holder, error) from error

    async def snapshot(self, holder: PeerId) -> Snapshot:
        body = calls.encode_snapshot_request(self._standing.own_run)
        reply = await self._lines.call(holder, Method.SNAPSHOT, body)
        try:
            return decode_snapshot(reply)
        except PacketError as error:
            raise self._lines.distrust(holder, error) from error

    async def gift(self, holder: PeerId) -> Gift:
        body = calls.encode_gift_request(self._standing.own_run)
        reply = await self._lines.call(holder, Method.GIFT, body)
        try:
            gift = calls.decode_gift_reply(reply)
            if holder not in gift.lenders:
                raise PacketError("a gift of which its giver is no lender")
        except PacketError as error:
            raise self._lines.distrust(holder, error) from error
        return gift

    @property
    def _standing(self) -> Standing:
        if self._here is None:
            raise SwarmError("the swarm has not been started")
        return self._here


def _chain(
    sealed: Sequence[bytes], run: Digest, head: Digest, count: int
) -> tuple[tuple[Manifest, bytes], ...]:
    """Manifests that hang together from `head` on. Raises: PacketError."""
    if not 1 <= len(sealed) <= count:
        raise PacketError(f"{len(sealed)} manifests for {count}")
    chain: list[tuple[Manifest, bytes]] = []
    for one in sealed:
        manifest = decode_manifest(one, verify)
        below = chain[-1][0] if chain else None
        if manifest.digest != (below.parent if below else head) or manifest.run != run:
            raise PacketError(
                f"manifest {short(manifest.digest)} is not the one that was asked for"
            )
        if below and manifest.round != below.round - 1:
            raise PacketError(f"manifest of round {manifest.round} below round {below.round}")
        chain.append((manifest, one))
    return tuple(chain)
