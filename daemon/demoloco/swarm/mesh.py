"""A swarm in which every member talks to every other: heartbeats, gossip, and a loop that never stops healing.

Rule: what must be equal on all nodes goes straight from peer to peer; lists of addresses and other people's hints
only help to find peers. Nothing is given up for good: seeds, saved addresses and lost members are dialled for ever,
ever more rarely.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine, Sequence
from contextlib import aclosing
from dataclasses import dataclass

from demoloco.errors import PacketError, SwarmError
from demoloco.swarm import calls
from demoloco.swarm.addresses import PeerAddress
from demoloco.swarm.fetching import Fetcher
from demoloco.swarm.genesis import ask_seeds
from demoloco.swarm.identity import Identity, verify
from demoloco.swarm.port import Library, SwarmEvent, Traffic
from demoloco.swarm.service import PeerService
from demoloco.swarm.standing import Standing
from demoloco.swarm.transport import Fault, Method, Refused, Transport, Unreachable
from demoloco.types import (
    BlobRef,
    Digest,
    Genesis,
    Manifest,
    Member,
    Offer,
    PeerId,
    Snapshot,
    short,
)
from demoloco.wire import decode_manifest, decode_snapshot, seal

log = logging.getLogger(__name__)

MAX_DIALS = 8
"""Peers outside the roster that are dialled at one time."""
REFUSALS_TO_LOSE = 2
TICK_SHARE = 0.25
"""The shortest time between two beats, as a share of a heartbeat."""


@dataclass(frozen=True, kw_only=True)
class Timing:
    """How patient a node is with its peers, in seconds."""

    heartbeat_seconds: float = 2.0
    missed_heartbeats: int = 5
    call_seconds: float = 10.0
    connect_seconds: float = 10.0
    settle_seconds: float = 2.0
    """How long announce and publish wait for slow members before they go on in the background."""
    chunk_seconds: float = 15.0
    transfer_seconds: float = 60.0
    """For a whole blob, on top of its size at 32 KiB a second."""
    hint_seconds: float = 20.0
    seed_retry_seconds: float = 30.0
    """The longest pause between two dials of an absent seed."""
    known_retry_seconds: float = 300.0

    @property
    def patience_seconds(self) -> float:
        return self.heartbeat_seconds * self.missed_heartbeats


@dataclass(slots=True)
class Retry:
    """When to dial an absent peer next."""

    at: float
    pause: float


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
        self._retries: dict[PeerId, Retry] = {}
        self._greeting: set[PeerId] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._nudge = asyncio.Event()
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
    def restarts(self) -> int:
        """How often the transport died and was rebuilt."""
        return self._transport.restarts

    def packets_received(self) -> tuple[int, int]:
        return (self._fetcher.packets, self._fetcher.packet_bytes) if self._here else (0, 0)

    def known_addresses(self) -> tuple[str, ...]:
        """Full multiaddrs of all peers ever met, newest last: to be saved, and dialled at the next start."""
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
        )
        for one in (*self._saved, *self._seeds):
            here.remember(one.peer, (*here.known.get(one.peer, ()), one.address))
        self._fetcher = Fetcher(here, self._frames, self._timing.transfer_seconds)
        await self._transport.start(PeerService(here))
        self._here = here
        self._spawn(self._forever(self._beat, self._until_beat))
        self._spawn(self._forever(self._heal, self._until_heal))
        self._spawn(self._forever(self._hint, self._until_hint))

    def enter(self, run: Digest) -> None:
        self._standing.run = run
        self._retries.clear()
        self._nudge.set()

    def say(self, member: Member) -> None:
        self._standing.record = member
        self._standing.renew()
        self._nudge.set()

    async def stop(self) -> None:
        if self._stopped:
            return
        self._stopped = True
        await self._cancel_tasks()
        if self._here is not None and self._here.record is not None and self._here.run is not None:
            self._here.goodbye()
            farewells = [asyncio.create_task(self._greet(peer)) for peer in self._here.roster]
            self._tasks.update(farewells)
            if farewells:
                await asyncio.wait(farewells, timeout=self._timing.settle_seconds)
        await self._cancel_tasks()
        await self._transport.stop()

    async def _cancel_tasks(self) -> None:
        tasks = tuple(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._tasks.difference_update(tasks)

    # Words to all

    async def announce(self, offers: Sequence[Offer]) -> None:
        run = self._standing.own_run
        for start in range(0, len(offers), calls.MAX_OFFERS):
            body = calls.encode_announcement(run, offers[start : start + calls.MAX_OFFERS])
            await self._tell_all(Method.ANNOUNCE, body)

    async def publish(self, sealed: bytes) -> None:
        body = calls.encode_publication(self._standing.own_run, sealed)
        await self._tell_all(Method.PUBLISH, body)

    def seal(self, kind: str, body: bytes) -> bytes:
        return seal(kind, self._identity.sign, body)

    # Questions to one

    async def find_genesis(self, timeout_seconds: float) -> Genesis:
        return await ask_seeds(self._transport, self._seeds, timeout_seconds)

    async def fetch(
        self, blob: BlobRef, holders: Sequence[PeerId], *, packet: bool = False
    ) -> bytes:
        _ = self._standing
        return await self._fetcher.whole(blob, holders, packet=packet)

    async def fetch_parts(self, blob: BlobRef, holders: Sequence[PeerId]) -> AsyncIterator[bytes]:
        _ = self._standing
        async with aclosing(self._fetcher.parts(blob, holders)) as parts:
            async for part in parts:
                yield part

    async def manifests(
        self, holder: PeerId, head: Digest, count: int
    ) -> tuple[tuple[Manifest, bytes], ...]:
        run = self._standing.own_run
        count = max(1, min(count, calls.MAX_MANIFESTS))
        body = calls.encode_manifests_request(run, head, count)
        reply = await self._call(holder, Method.MANIFESTS, body)
        try:
            return _chain(calls.decode_manifests_reply(reply), run, head, count)
        except PacketError as error:
            raise self._distrust(holder, error) from error

    async def snapshot(self, holder: PeerId) -> Snapshot:
        body = calls.encode_snapshot_request(self._standing.own_run)
        reply = await self._call(holder, Method.SNAPSHOT, body)
        try:
            return decode_snapshot(reply)
        except PacketError as error:
            raise self._distrust(holder, error) from error

    # The loops

    async def _beat(self) -> None:
        """One hello to every member, and a look at who has been silent."""
        here = self._standing
        if here.run is None:
            return
        here.renew()
        for peer in here.roster:
            self._greet_soon(peer)
        patience = self._timing.patience_seconds
        for peer in here.roster.silent(here.now(), patience):
            here.lose(peer, f"no sign of life for {patience:.1f} s")

    async def _until_beat(self) -> None:
        here, beat = self._standing, self._timing.heartbeat_seconds
        slept = here.now()
        await asyncio.sleep(beat * TICK_SHARE)
        pause = beat * (self._rng.uniform(0.9, 1.1) - TICK_SHARE)
        try:
            async with asyncio.timeout(pause):
                await self._nudge.wait()
        except TimeoutError:
            pass
        self._nudge.clear()
        late = here.now() - slept - beat * 1.1
        if late > beat:
            here.roster.forgive(late)

    async def _heal(self) -> None:
        """Dial known peers that are no members, each ever more rarely."""
        here = self._standing
        now = here.now()
        seeds = {seed.peer for seed in self._seeds}
        absent = [
            peer for peer in here.known if peer not in here.roster and peer not in self._greeting
        ]
        due = [
            peer for peer in absent if peer not in self._retries or self._retries[peer].at <= now
        ]
        for peer in sorted(due, key=lambda peer: peer not in seeds)[:MAX_DIALS]:
            longest = (
                self._timing.seed_retry_seconds
                if peer in seeds
                else self._timing.known_retry_seconds
            )
            before = self._retries[peer].pause if peer in self._retries else 0.0
            pause = min(longest, max(self._timing.heartbeat_seconds, 2 * before))
            self._retries[peer] = Retry(now + pause * self._rng.uniform(0.5, 1.5), pause)
            self._greet_soon(peer, dial=True)

    async def _until_heal(self) -> None:
        await asyncio.sleep(self._timing.heartbeat_seconds * self._rng.uniform(0.25, 0.75))

    async def _hint(self) -> None:
        here = self._standing
        if here.run is None:
            return
        if here.sealed:
            await self._transport.advertise(here.run, here.sealed)
        here.take_records(await self._transport.find(here.run), carrier=None)

    async def _until_hint(self) -> None:
        await asyncio.sleep(self._timing.hint_seconds * self._rng.uniform(0.5, 1.5))

    async def _forever(
        self,
        step: Callable[[], Coroutine[None, None, None]],
        pause: Callable[[], Coroutine[None, None, None]],
    ) -> None:
        while True:
            try:
                await step()
            except SwarmError as error:
                log.debug("loop=%s why=%s", step.__name__, error)
            except Exception:  # a wall: the loop is what keeps the node in the swarm
                log.exception("loop=%s failed; it goes on", step.__name__)
            await pause()

    # One peer

    def _greet_soon(self, peer: PeerId, *, dial: bool = False) -> None:
        if peer not in self._greeting:
            self._spawn(self._greet(peer, dial=dial))

    async def _greet(self, peer: PeerId, *, dial: bool = False) -> None:
        """Say hello, take what the peer knows, draw conclusions from its silence."""
        here = self._standing
        self._greeting.add(peer)
        try:
            if dial:
                await self._connect(peer)
            hello, told = here.hello_to(peer)
            if here.run is None:
                return
            reply = await self._call(peer, Method.HELLO, calls.encode_hello(hello))
            answer = calls.decode_hello_reply(reply)
            here.take_records(answer.records, peer)
            here.roster.answered(peer, here.now())
            here.note_told(peer, told)
            if peer in here.roster:
                self._retries.pop(peer, None)
        except Refused as error:
            here.lose(peer, f"refused: {error}")
        except Unreachable as error:
            if error.fault is Fault.REFUSED and here.roster.refused(peer) >= REFUSALS_TO_LOSE:
                here.lose(peer, error.fault.value)
        except PacketError as error:
            here.dropped += 1
            log.debug("hello=dropped peer=%s why=%s", short(peer), error)
        finally:
            self._greeting.discard(peer)

    async def _connect(self, peer: PeerId) -> None:
        addresses = self._standing.known.get(peer, ())
        if not addresses:
            raise Unreachable(Fault.UNKNOWN)
        await self._transport.connect(peer, addresses, self._timing.connect_seconds)

    async def _call(self, peer: PeerId, method: Method, body: bytes) -> bytes:
        """Call, dialling first where the connection is gone; failures are counted."""
        seconds = self._timing.call_seconds
        try:
            try:
                return await self._transport.call(peer, method, body, seconds)
            except Unreachable as error:
                if error.fault not in (Fault.BROKEN, Fault.UNKNOWN):
                    raise
            await self._connect(peer)
            return await self._transport.call(peer, method, body, seconds)
        except (Refused, Unreachable):
            self._standing.failed_calls += 1
            raise

    async def _frames(self, peer: PeerId, body: bytes) -> AsyncGenerator[bytes, None]:
        """A stream of the peer, dialling first where the connection is gone."""
        seconds = self._timing.chunk_seconds
        begun = False
        try:
            async with aclosing(self._transport.stream(peer, body, seconds)) as frames:
                async for frame in frames:
                    begun = True
                    yield frame
            return
        except Unreachable as error:
            if begun or error.fault not in (Fault.BROKEN, Fault.UNKNOWN):
                raise
        await self._connect(peer)
        async with aclosing(self._transport.stream(peer, body, seconds)) as frames:
            async for frame in frames:
                yield frame

    async def _tell_all(self, method: Method, body: bytes) -> None:
        """All members at once; the slow ones are left to the background after a moment."""
        tasks = [self._spawn(self._tell(peer, method, body)) for peer in self._standing.roster]
        if tasks:
            await asyncio.wait(tasks, timeout=self._timing.settle_seconds)

    async def _tell(self, peer: PeerId, method: Method, body: bytes) -> None:
        try:
            await self._call(peer, method, body)
        except (Refused, Unreachable) as error:
            log.info("told=failed method=%s peer=%s why=%s", method, short(peer), error)

    def _distrust(self, peer: PeerId, error: PacketError) -> SwarmError:
        self._standing.dropped += 1
        log.warning("reply=dropped peer=%s why=%s", short(peer), error)
        return SwarmError(f"{short(peer)} answered wrongly: {error}")

    @property
    def _standing(self) -> Standing:
        if self._here is None:
            raise SwarmError("the swarm has not been started")
        return self._here

    def _spawn(self, work: Coroutine[None, None, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task


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
