"""Two roads behind one port: libp2p, which reaches everybody, and gRPC, straight to who can be
reached.

Rule: calls go over libp2p, and over gRPC only where libp2p fails; blobs take the road that is
faster for that peer. The direct road is found quietly, while the first blob comes over libp2p,
and whoever cannot be reached on it is rarely asked again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass, field

from demoloco.errors import ConfigError, DemolocoError, PacketError, SwarmError
from demoloco.swarm.identity import Identity
from demoloco.swarm.roads import certificates
from demoloco.swarm.roads.choice import Choice, Road
from demoloco.swarm.roads.direct import (
    DirectOffer,
    Trust,
    decode_direct,
    encode_direct,
    host_of,
    hosts_of,
    places_of,
)
from demoloco.swarm.roads.lanes import GrpcLanes
from demoloco.swarm.roads.listener import GrpcListener
from demoloco.swarm.tasks import Tasks
from demoloco.swarm.transport import (
    Fault,
    Meter,
    Method,
    Refused,
    Service,
    Transport,
    Unreachable,
)
from demoloco.types import Digest, Member, PeerId, short

log = logging.getLogger(__name__)

EXCHANGE_SECONDS = 10.0
DIAL_SECONDS = 4.0
"""For each place at which a peer may be reached directly."""
OUT_OF_REACH_SECONDS = 60.0
"""A peer that cannot be reached directly is left alone for so long, then ever longer."""
MAX_PAUSE_SECONDS = 2.0
"""So long a blob waits, where it may take no other road, for one that failed a moment ago."""
INSTEAD = (Fault.BROKEN, Fault.UNKNOWN, Fault.DOWN, Fault.REFUSED, Fault.BACKOFF)
"""Failures of libp2p at which a call surely never arrived, and may go over gRPC."""
STRANGER = "the direct road is for members, and you are none that it knows"


@dataclass(frozen=True, kw_only=True)
class Wish:
    """How the operator wants blobs to travel."""

    exchange: str = "auto"  # auto | grpc
    port: int = 0
    hosts: tuple[str, ...] = ("127.0.0.1",)  # to listen on; IPv6 in brackets


@dataclass(slots=True)
class _Way:
    """What this node knows of its roads to one peer."""

    choice: Choice = field(default_factory=Choice)
    offered: tuple[str, ...] | None = None  # in its member record; None: not heard yet
    offer: DirectOffer | None = None
    lanes: GrpcLanes | None = None
    opening: asyncio.Task[None] | None = None
    error: DemolocoError | None = None


class Roads:
    """A Transport made of two."""

    def __init__(self, identity: Identity, libp2p: Transport, wish: Wish) -> None:
        self._libp2p = libp2p
        self._wish = wish
        self._own = certificates.make(identity)
        self._trust = Trust()
        self.listener = GrpcListener(self._own, self._trust, libp2p.meter)
        self._ways: dict[PeerId, _Way] = {}
        self._members: dict[PeerId, Member] = {}
        self._tasks = Tasks()
        self.drop: Callable[[PeerId, str], None] = _count_nothing
        """Told when what a peer sent is of no use, and why."""
        self.run: Digest | None = None
        """Set when the node enters it; before, nobody is told or believed anything."""

    @property
    def addresses(self) -> tuple[str, ...]:
        return self._libp2p.addresses

    @property
    def meter(self) -> Meter:
        return self._libp2p.meter

    @property
    def restarts(self) -> int:
        return self._libp2p.restarts

    @property
    def direct(self) -> tuple[str, ...]:
        """Where the direct road to this node begins, host:port; none if it does not listen."""
        port = self.listener.port
        return places_of(self._libp2p.addresses, port) if port else ()

    def road(self, peer: PeerId) -> str:
        """The road that blobs from this peer take now."""
        way = self._ways.get(peer)
        return str(way.choice.road if way else Road.LIBP2P)

    async def start(self, service: Service) -> None:
        service.direct = self._on_direct
        await self._libp2p.start(service)
        try:
            await self.listener.start(service, self._wish.hosts, self._wish.port)
        except SwarmError as error:
            if self._wish.exchange == "grpc":
                raise ConfigError(f"exchange = grpc: {error}; take auto or libp2p") from error
            log.warning("direct=off why=%s; blobs come over libp2p", error)

    async def stop(self) -> None:
        await self._tasks.cancel()
        for way in self._ways.values():
            if way.lanes is not None:
                await way.lanes.close()
        await self.listener.stop()
        await self._libp2p.stop()

    # What the swarm tells

    def seen(self, member: Member) -> None:
        """A member's newest record: where its direct road begins may have changed."""
        self._members[member.peer] = member
        way = self._way(member.peer)
        if way.offered is not None and way.offered != member.direct:
            way.offer = None
            way.choice.forgive(Road.GRPC)
        way.offered = member.direct

    def lost(self, peer: PeerId) -> None:
        """No member any longer: what it opened is of no use, and what leads to it is closed."""
        self._trust.drop(peer)
        self._members.pop(peer, None)
        way = self._ways.pop(peer, None)
        if way is not None and way.opening is not None:
            way.opening.cancel()
        if way is not None and way.lanes is not None:
            self._tasks.spawn(way.lanes.retire())

    # Calls and streams

    async def connect(self, peer: PeerId, addresses: Sequence[str], seconds: float) -> None:
        await self._libp2p.connect(peer, addresses, seconds)

    async def call(self, peer: PeerId, method: Method, body: bytes, seconds: float) -> bytes:
        if method is Method.PUSH:
            return await self._push(peer, body, seconds)
        try:
            return await self._libp2p.call(peer, method, body, seconds)
        except Unreachable as error:
            way = self._ways.get(peer)
            if way is None or way.lanes is None or error.fault not in INSTEAD:
                raise
            try:
                return await way.lanes.call(method, body, seconds)
            except Unreachable:
                await self._set_aside(peer, way)
                raise error from None

    async def _push(self, peer: PeerId, body: bytes, seconds: float) -> bytes:
        """A piece of a packet: over the direct road, where several connections carry more than
        one. While only that may be taken and is not open, it does not go: it is fetched later.

        Raises: Unreachable, Refused."""
        way = self._way(peer)
        self._open_soon(peer, way)
        if way.lanes is None and self._wish.exchange == "grpc":
            raise Unreachable(Fault.NO_ROAD, "it is not open yet")
        if way.lanes is None:
            return await self._libp2p.call(peer, Method.PUSH, body, seconds)
        try:
            return await way.lanes.call(Method.PUSH, body, seconds)
        except Unreachable as error:
            await self._instead(Road.GRPC, peer, way, error)
            raise

    async def stream(
        self, peer: PeerId, body: bytes, frame_seconds: float
    ) -> AsyncGenerator[bytes, None]:
        way = self._way(peer)
        if self._wish.exchange == "grpc":
            await self._opened(peer, way, frame_seconds)
            road = Road.GRPC
        else:
            self._open_soon(peer, way)
            road = way.choice.pick(self._now(), direct=way.lanes is not None)
        begun = False
        try:
            async with aclosing(self._on(road, peer, way, body, frame_seconds)) as frames:
                async for frame in frames:
                    begun = True
                    yield frame
            return
        except Unreachable as error:
            instead = await self._instead(road, peer, way, error)
            if instead is None:
                raise
            if begun:  # who fetches goes on where this ended, and then on the other road
                raise Unreachable(Fault.BROKEN, f"over {road}: {error}") from error
        async with aclosing(self._on(instead, peer, way, body, frame_seconds)) as frames:
            async for frame in frames:
                yield frame

    async def observed(self, peer: PeerId) -> str | None:
        return await self._libp2p.observed(peer)

    async def advertise(self, run: Digest, record: bytes) -> None:
        await self._libp2p.advertise(run, record)

    async def find(self, run: Digest) -> Sequence[bytes]:
        return await self._libp2p.find(run)

    async def _on(
        self, road: Road, peer: PeerId, way: _Way, body: bytes, frame_seconds: float
    ) -> AsyncGenerator[bytes, None]:
        """One stream on this road, measured."""
        if road is Road.LIBP2P:
            stream = self._libp2p.stream(peer, body, frame_seconds)
        elif way.lanes is not None:
            stream = way.lanes.stream(body, frame_seconds)
        else:
            raise Unreachable(Fault.BROKEN, "the direct road is closed")
        pace = way.choice.pace(road)
        pace.begin(self._now())
        try:
            async with aclosing(stream) as frames:
                async for frame in frames:
                    pace.came(len(frame), self._now())
                    yield frame
            way.choice.worked(road)
        finally:
            pace.end(self._now())

    async def _instead(
        self, road: Road, peer: PeerId, way: _Way, error: Unreachable
    ) -> Road | None:
        """The other road after a failure of this one, if it may be taken."""
        if road is Road.GRPC:
            log.info("road=left peer=%s road=grpc why=%s", short(peer), error)
            way.error = error
            await self._set_aside(peer, way)
            return Road.LIBP2P if self._wish.exchange == "auto" else None
        if way.lanes is None or way.choice.is_aside(Road.GRPC, self._now()):
            return None
        way.choice.failed(Road.LIBP2P, self._now())
        return Road.GRPC

    async def _set_aside(self, peer: PeerId, way: _Way) -> None:
        """The direct road failed: it is looked for anew after a while."""
        lanes, way.lanes, way.offer = way.lanes, None, None
        if lanes is not None:
            way.choice.failed(Road.GRPC, self._now())
            await lanes.retire()

    # Finding the direct road

    async def _opened(self, peer: PeerId, way: _Way, seconds: float) -> None:
        """Raises: Unreachable that names the peer and says why there is no direct road to it."""
        if way.lanes is None and way.error is not None and _may_pass(way.error):
            left = way.choice.aside_left(Road.GRPC, self._now())
            await asyncio.sleep(min(left, MAX_PAUSE_SECONDS))
        self._open_soon(peer, way)
        if way.lanes is None and way.opening is not None:
            await asyncio.wait({way.opening}, timeout=seconds)
        if way.lanes is None:
            error = way.error or Unreachable(Fault.TIMEOUT)
            if isinstance(error, Unreachable) and error.fault is Fault.UNKNOWN:
                raise error  # over libp2p it can be dialled
            why = f"to {peer}: {error}; with exchange = auto it would take libp2p"
            raise Unreachable(Fault.NO_ROAD, why)

    def _open_soon(self, peer: PeerId, way: _Way) -> None:
        """Look for the direct road in the background, if it is time to."""
        if way.lanes is not None or way.opening is not None or self.run is None:
            return
        if not way.choice.is_aside(Road.GRPC, self._now()):
            way.opening = self._tasks.spawn(self._open(peer, way))

    async def _open(self, peer: PeerId, way: _Way) -> None:
        try:
            way.lanes = await self._found(peer, way)
            way.error = None
            log.info("road=open peer=%s road=grpc", short(peer))
        except (Refused, Unreachable, PacketError) as error:
            log.debug("road=closed peer=%s road=grpc why=%s", short(peer), error)
            way.error = error
            if isinstance(error, Unreachable) and error.fault is Fault.UNKNOWN:
                return  # libp2p has yet to dial it
            soon = _may_pass(error) or self._wish.exchange == "grpc"
            way.choice.failed(Road.GRPC, self._now(), 0.0 if soon else OUT_OF_REACH_SECONDS)
        finally:
            way.opening = None

    async def _found(self, peer: PeerId, way: _Way) -> GrpcLanes:
        """Raises: Unreachable, NO_ROAD where the peer answers over libp2p alone; Refused,
        PacketError."""
        known, way.offer = way.offer, None
        if known is not None:
            with suppress(Unreachable):
                return await self._dialled(peer, known)
        return await self._dialled(peer, await self._exchange(peer))

    async def _exchange(self, peer: PeerId) -> DirectOffer:
        """Give the peer this node's certificate and get its own, over libp2p, which knows who
        answers. Raises: Unreachable, Refused, PacketError."""
        assert self.run is not None
        body = encode_direct(self.run, DirectOffer(self._own.der, self.direct))
        reply = await self._libp2p.call(peer, Method.DIRECT, body, EXCHANGE_SECONDS)
        run, offer = decode_direct(reply)
        if run != self.run:
            raise PacketError("a direct road of another run")
        if peer not in self._members:
            raise Unreachable(Fault.BROKEN, "it is no member now")
        self._trust.take(peer, offer.certificate)
        return offer

    async def _dialled(self, peer: PeerId, offer: DirectOffer) -> GrpcLanes:
        pem = certificates.check(offer.certificate, peer)
        places = await self._own_places(peer, offer.places)
        lanes = GrpcLanes(self._own, peer, pem, self.meter)
        await lanes.dial(places, DIAL_SECONDS)
        return lanes

    async def _own_places(self, peer: PeerId, places: Sequence[str]) -> tuple[str, ...]:
        """Those at hosts where libp2p finds the peer, too: nobody makes this node dial others."""
        member = self._members.get(peer)
        hosts = set(hosts_of(member.addresses)) if member is not None else set()
        if not hosts.issuperset(map(host_of, places)):
            with suppress(Unreachable):
                seen = await self._libp2p.observed(peer)
                hosts.update(hosts_of([seen] if seen else []))
        for place in places:
            if host_of(place) not in hosts:
                self.drop(peer, f"a direct road at {host_of(place)}, where it is not")
        return tuple(place for place in places if host_of(place) in hosts)

    def _on_direct(self, peer: PeerId, offer: DirectOffer) -> bytes:
        """A member gives its certificate and asks for this node's.

        Raises: PacketError; Refused for strangers.
        """
        if peer not in self._members:
            raise Refused(STRANGER)
        before = self._trust.version
        self._trust.take(peer, offer.certificate)
        way = self._ways.get(peer)
        if way is not None and (way.lanes is None or before != self._trust.version):
            way.offer = offer
            way.choice.forgive(Road.GRPC)
            if way.lanes is not None:  # they lead to an earlier start of the peer
                self._tasks.spawn(way.lanes.retire())
                way.lanes = None
        assert self.run is not None
        return encode_direct(self.run, DirectOffer(self._own.der, self.direct))

    def _way(self, peer: PeerId) -> _Way:
        return self._ways.setdefault(peer, _Way())

    def _now(self) -> float:
        return asyncio.get_running_loop().time()


def _may_pass(error: DemolocoError) -> bool:
    """Whether the next try may well succeed: the peer did not say no for good."""
    if isinstance(error, Unreachable):
        return error.fault is not Fault.NO_ROAD
    return str(error) == STRANGER


def _count_nothing(peer: PeerId, why: str) -> None:
    pass
