"""A swarm in one process, for tests: the real mesh over a network with seeded delay, loss, thin
links, partitions and deaths.

Rule: everything follows from the seed and from the loop's clock, so a virtual clock gives the
same run each time.
"""

from __future__ import annotations

import asyncio
import math
import random
from collections.abc import AsyncGenerator, Iterable, Sequence
from dataclasses import dataclass

from demoloco.errors import ConfigError, DemolocoError
from demoloco.swarm.addresses import PeerAddress
from demoloco.swarm.identity import Identity
from demoloco.swarm.mesh import Mesh
from demoloco.swarm.timing import Timing
from demoloco.swarm.transport import Fault, Meter, Method, Service, Unreachable
from demoloco.types import Digest, PeerId


class MemoryNetwork:
    """What lies between the nodes of one test."""

    def __init__(
        self, seed: int = 0, *, delay: tuple[float, float] = (0.0, 0.002), loss: float = 0.0
    ) -> None:
        self.delay = delay
        self.loss = loss
        self.rng = random.Random(seed)
        self.board: dict[Digest, dict[PeerId, bytes]] = {}
        self._at: dict[str, MemoryTransport] = {}
        self._links: set[frozenset[PeerId]] = set()
        self._islands: tuple[frozenset[PeerId], ...] = ()
        self._severed: set[frozenset[PeerId]] = set()
        self._up: dict[PeerId, _Pipe] = {}
        self._down: dict[PeerId, _Pipe] = {}

    def limit(self, peer: PeerId, *, up: float = math.inf, down: float = math.inf) -> None:
        """So many bytes a second its streams carry in all, from it and to it."""
        self._up[peer], self._down[peer] = _Pipe(up), _Pipe(down)

    def partition(self, *islands: Iterable[PeerId]) -> None:
        """Only peers of one island hear each other from now on; who is on none hears everybody."""
        self._islands = tuple(frozenset(island) for island in islands)

    def sever(self, one: PeerId, other: PeerId) -> None:
        """These two cannot reach each other; everybody else still reaches both."""
        self._severed.add(frozenset((one, other)))

    def heal(self) -> None:
        self._islands = ()
        self._severed.clear()

    def kill(self, peer: PeerId) -> None:
        """The peer's process is gone, without a word."""
        for address, transport in tuple(self._at.items()):
            if transport.peer_id == peer:
                del self._at[address]
        self._links = {link for link in self._links if peer not in link}

    def apart(self, one: PeerId, other: PeerId) -> bool:
        if frozenset((one, other)) in self._severed:
            return True
        homes = [island for island in self._islands if one in island or other in island]
        return len(homes) > 1

    def attach(self, address: str, transport: MemoryTransport) -> None:
        """Raises: ConfigError if somebody is there."""
        if address in self._at:
            raise ConfigError(f"{address} is in use by another node; choose another address")
        self._at[address] = transport

    def at(self, address: str) -> MemoryTransport | None:
        return self._at.get(address)

    def link(self, one: PeerId, other: PeerId) -> None:
        self._links.add(frozenset((one, other)))

    def linked(self, one: PeerId, other: PeerId) -> MemoryTransport:
        """The other end. Raises: Unreachable without a connection or anybody at its end."""
        if frozenset((one, other)) not in self._links:
            raise Unreachable(Fault.UNKNOWN)
        for transport in self._at.values():
            if transport.peer_id == other:
                return transport
        raise Unreachable(Fault.BROKEN)

    async def carry(self, one: PeerId, other: PeerId, seconds: float) -> None:
        """Let one message travel. Raises: Unreachable after `seconds` if it does not arrive."""
        if self.apart(one, other) or (self.loss and self.rng.random() < self.loss):
            await asyncio.sleep(seconds)
            raise Unreachable(Fault.TIMEOUT)
        await asyncio.sleep(self.rng.uniform(*self.delay))

    async def squeeze(self, one: PeerId, other: PeerId, size: int) -> None:
        """Let so many bytes through the links of both, behind those that are before them."""
        now = asyncio.get_running_loop().time
        for pipe in (self._up.get(one), self._down.get(other)):
            if pipe is not None:
                pipe.free = max(now(), pipe.free) + size / pipe.rate
                await asyncio.sleep(pipe.free - now())


@dataclass(slots=True)
class _Pipe:
    """One way of a link."""

    rate: float
    free: float = 0.0  # when what is in it is through


class MemoryTransport:
    """One node's end of a MemoryNetwork."""

    def __init__(self, network: MemoryNetwork, peer_id: PeerId, address: str) -> None:
        self.peer_id = peer_id
        self.meter = Meter()
        self.restarts = 0
        self._network = network
        self._address = address
        self.service: Service

    @property
    def addresses(self) -> tuple[str, ...]:
        return (self._address,)

    async def start(self, service: Service) -> None:
        self.service = service
        self._network.attach(self._address, self)

    async def connect(self, peer: PeerId, addresses: Sequence[str], seconds: float) -> None:
        self._check_alive()
        await self._network.carry(self.peer_id, peer, seconds)
        found = [end for end in map(self._network.at, addresses) if end is not None]
        if not found:
            raise Unreachable(Fault.REFUSED)
        if all(end.peer_id != peer for end in found):
            raise Unreachable(Fault.OTHER_PEER, found[0].peer_id)
        self._network.link(self.peer_id, peer)

    async def call(self, peer: PeerId, method: Method, body: bytes, seconds: float) -> bytes:
        self._check_alive()
        self._network.linked(self.peer_id, peer)
        self.meter.call_sent(method, body)
        if method is Method.PUSH:
            await self._network.squeeze(self.peer_id, peer, len(body))
        await self._network.carry(self.peer_id, peer, seconds)
        end = self._network.linked(self.peer_id, peer)
        end.meter.call_received(method, body)
        reply = end.service.answer(self.peer_id, method, body)
        end.meter.sent += len(reply)
        await self._network.carry(peer, self.peer_id, seconds)
        self.meter.received += len(reply)
        return reply

    async def stream(
        self, peer: PeerId, body: bytes, frame_seconds: float
    ) -> AsyncGenerator[bytes, None]:
        self._check_alive()
        self._network.linked(self.peer_id, peer)
        self.meter.sent += len(body)
        await self._network.carry(self.peer_id, peer, frame_seconds)
        end = self._network.linked(self.peer_id, peer)
        end.meter.received += len(body)
        outgoing = end.service.open_stream(self.peer_id, body)
        try:
            for frame in outgoing.frames():
                end.meter.frame_sent(frame)
                await self._network.squeeze(peer, self.peer_id, len(frame))
                await self._network.carry(peer, self.peer_id, frame_seconds)
                self._network.linked(self.peer_id, peer)
                self.meter.frame_received(frame)
                yield frame
        except (DemolocoError, OSError) as error:
            raise Unreachable(Fault.BROKEN) from error
        finally:
            outgoing.close()

    async def observed(self, peer: PeerId) -> str | None:
        return None

    async def advertise(self, run: Digest, record: bytes) -> None:
        self._network.board.setdefault(run, {})[self.peer_id] = record

    async def find(self, run: Digest) -> Sequence[bytes]:
        board = self._network.board.get(run, {})
        near = {peer for peer in board if not self._network.apart(self.peer_id, peer)}
        return tuple(record for peer, record in board.items() if peer in near)

    async def stop(self) -> None:
        if self._network.at(self._address) is self:
            self._network.kill(self.peer_id)

    def _check_alive(self) -> None:
        if self._network.at(self._address) is not self:
            raise Unreachable(Fault.DOWN)


class MemorySwarm(Mesh):
    """A node's swarm in a MemoryNetwork."""

    def __init__(
        self,
        network: MemoryNetwork,
        identity: Identity | None = None,
        *,
        address: str = "",
        seeds: Sequence[str] = (),
        known_members: Sequence[str] = (),
        timing: Timing | None = None,
    ) -> None:
        identity = identity or Identity.new()
        transport = MemoryTransport(
            network, identity.peer_id, address or f"/memory/{identity.peer_id[-12:]}"
        )
        super().__init__(
            identity,
            transport,
            seeds=[_parse(seed) for seed in seeds],
            known=[_parse(one) for one in known_members],
            timing=timing,
            rng=random.Random(network.rng.random()),
        )


def _parse(text: str) -> PeerAddress:
    address, _, peer = text.rpartition("/p2p/")
    if not address:
        raise ConfigError(f"{text!r} is not an address that can be used: no /p2p/ in it")
    return PeerAddress(PeerId(peer), address)
