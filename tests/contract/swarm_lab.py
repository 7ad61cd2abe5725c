"""Builds swarms for the contract suite, over the memory network and over libp2p on 127.0.0.1."""

from __future__ import annotations

import asyncio
import itertools
import os
import signal
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol, TypeVar

import pytest

from demoloco.errors import StoreError
from demoloco.swarm.addresses import parse_peer
from demoloco.swarm.hivemind.p2pd import LOOPBACK
from demoloco.swarm.hivemind.transport import HivemindSwarm, Options
from demoloco.swarm.identity import Identity
from demoloco.swarm.memory import MemoryNetwork, MemorySwarm, MemoryTransport
from demoloco.swarm.mesh import Mesh
from demoloco.swarm.port import MemberSeen, SwarmEvent
from demoloco.swarm.roads.mesh import RoadsMesh
from demoloco.swarm.roads.transport import Wish
from demoloco.swarm.timing import Timing
from demoloco.types import (
    BlobRef,
    Digest,
    Draft,
    Entry,
    Genesis,
    Gift,
    Head,
    Member,
    Offer,
    PeerId,
    Phase,
    Round,
    Snapshot,
)
from demoloco.wire import digest_of, encode_manifest, run_of

_E = TypeVar("_E", bound=SwarmEvent)

HIVEMIND_WARNINGS = [
    # hivemind 1.1.12 finds p2pd by a function that Python deprecates
    pytest.mark.filterwarnings("ignore:path is deprecated:DeprecationWarning"),
    # … and leaves the socket of a control call that was cancelled to the garbage collector
    pytest.mark.filterwarnings("ignore:unclosed <StreamWriter:ResourceWarning"),
]
DEADLINE_SECONDS = 15.0
TIMING = Timing(
    heartbeat_seconds=0.2,
    missed_heartbeats=8,
    call_seconds=3.0,
    connect_seconds=3.0,
    settle_seconds=3.0,
    chunk_seconds=3.0,
    transfer_seconds=10.0,
    hint_seconds=0.5,
    seed_retry_seconds=0.5,
)


async def until(test: Callable[[], bool]) -> None:
    """Wait for something that tells nobody when it happens, as the end of a process."""
    async with asyncio.timeout(DEADLINE_SECONDS):
        while not test():  # noqa: ASYNC110
            await asyncio.sleep(0.05)


class Reader:
    """A blob in memory that may break off after some bytes."""

    def __init__(self, data: bytes, breaks_at: int | None, reads: list[int]) -> None:
        self.size = len(data)
        self._data = data
        self._breaks_at = breaks_at
        self._reads = reads

    def read(self, offset: int, length: int) -> bytes:
        self._reads.append(offset)
        if self._breaks_at is not None and offset + length > self._breaks_at:
            raise StoreError("the disk is gone")
        return self._data[offset : offset + length]

    def close(self) -> None:
        self._reads.append(-1)


class Shelf:
    """A Library of what a test puts on it."""

    def __init__(self) -> None:
        self.born: Genesis | None = None
        self.blobs: dict[Digest, bytes] = {}
        self.breaks_at: dict[Digest, int] = {}
        self.chain: list[bytes] = []  # head first
        self.taken: Snapshot | None = None
        self.given: Gift | None = None
        self.reads: list[int] = []

    def put(self, data: bytes) -> BlobRef:
        self.blobs[digest_of(data)] = data
        return BlobRef(digest=digest_of(data), size=len(data))

    def genesis(self) -> Genesis | None:
        return self.born

    def open_blob(self, blob: Digest) -> Reader | None:
        data = self.blobs.get(blob)
        return None if data is None else Reader(data, self.breaks_at.get(blob), self.reads)

    def manifests(self, head: Digest, count: int) -> Sequence[bytes]:
        names = [digest_of(sealed) for sealed in self.chain]
        if head not in names:
            return ()
        at = names.index(head)
        return self.chain[at : at + count]

    def snapshot(self) -> Snapshot | None:
        return self.taken

    def gift(self) -> Gift | None:
        return self.given


class Node:
    """A swarm, what it serves, and what it heard."""

    def __init__(self, swarm: Mesh) -> None:
        self.swarm = swarm
        self.shelf = Shelf()
        self.heard: list[SwarmEvent] = []
        self._news = asyncio.Condition()
        self._wakers: set[asyncio.Task[None]] = set()

    @property
    def peer(self) -> PeerId:
        return self.swarm.peer_id

    @property
    def address(self) -> str:
        return f"{self.swarm.addresses[0]}/p2p/{self.peer}"

    def emit(self, event: SwarmEvent) -> None:
        self.heard.append(event)
        task = asyncio.get_running_loop().create_task(self._wake())
        self._wakers.add(task)
        task.add_done_callback(self._wakers.discard)

    async def _wake(self) -> None:
        async with self._news:
            self._news.notify_all()

    async def hears(self, kind: type[_E], test: Callable[[_E], bool] = lambda event: True) -> _E:
        """The first event of this kind that passes the test, past or to come."""
        async with asyncio.timeout(DEADLINE_SECONDS), self._news:
            while True:
                for event in self.heard:
                    if isinstance(event, kind) and test(event):
                        return event
                await self._news.wait()

    async def hears_anew(
        self, kind: type[_E], test: Callable[[_E], bool] = lambda event: True
    ) -> _E:
        """The next event of this kind that passes the test."""
        self.heard.clear()
        return await self.hears(kind, test)

    async def start(self, run: Digest | None = None) -> None:
        await self.swarm.start(self.emit, self.shelf)
        if run is not None:
            self.swarm.enter(run)
            self.say(run)

    def say(self, run: Digest, phase: Phase = Phase.TRAINING, sequence: int = 1) -> None:
        self.swarm.say(
            Member(
                peer=self.peer,
                run=run,
                addresses=self.swarm.addresses,
                head=Head(digest=run, round=Round(0), samples_total=0),
                phase=phase,
                sequence=sequence,
                version="0.1",
            )
        )


class Lab(Protocol):
    """What a test needs to build a swarm of one kind."""

    def node(self, *seeds: str, **options: Any) -> Node: ...

    async def kill(self, node: Node) -> None:
        """End it without a goodbye."""
        ...

    async def close(self) -> None: ...

    nobody: str
    """An address at which nobody listens."""


class MemoryLab:
    def __init__(self, home: Path) -> None:
        self.network = MemoryNetwork(7)
        self.nodes: list[Node] = []
        self.nobody = "/memory/nobody"

    def node(self, *seeds: str, **options: Any) -> Node:
        swarm = MemorySwarm(self.network, seeds=seeds, **{"timing": TIMING, **options})
        self.nodes.append(Node(swarm))
        return self.nodes[-1]

    async def kill(self, node: Node) -> None:
        self.network.kill(node.peer)

    async def close(self) -> None:
        await asyncio.gather(*(node.swarm.stop() for node in self.nodes))


class HivemindLab:
    exchange = "libp2p"

    def __init__(self, home: Path) -> None:
        self.home = home
        self.nodes: list[Node] = []
        self.nobody = "/ip4/127.0.0.1/tcp/1"
        self.timing = TIMING

    def node(self, *seeds: str, **options: Any) -> Node:
        identity = options.pop("identity", None) or Identity.load_or_create(
            self.home / f"identity-{len(self.nodes)}"
        )
        listen = (options.pop("address", "") or "/ip4/127.0.0.1/tcp/0",)
        swarm = HivemindSwarm(
            identity,
            listen=listen,
            seeds=seeds,
            options=Options(timing=self.timing, reach=LOOPBACK, exchange=self.exchange),
            **options,
        )
        self.nodes.append(Node(swarm))
        return self.nodes[-1]

    async def kill(self, node: Node) -> None:
        if node.swarm.roads is not None:
            await node.swarm.roads.listener.stop()
        transport = node.swarm.transport
        assert transport._watching is not None
        transport._watching.cancel()
        await node.swarm._tasks.cancel()
        assert transport.daemon_pid is not None
        os.kill(transport.daemon_pid, signal.SIGKILL)

    async def close(self) -> None:
        await asyncio.gather(*(node.swarm.stop() for node in self.nodes))


class GrpcLab(MemoryLab):
    """Words over the memory network, blobs over gRPC on 127.0.0.1, and nothing else."""

    exchange = "grpc"

    def __init__(self, home: Path) -> None:
        super().__init__(home)
        self.numbers = itertools.count(1)
        self.nobody = "/ip4/127.0.0.1/tcp/65535"

    def node(self, *seeds: str, **options: Any) -> Node:
        identity = options.pop("identity", None) or Identity.new()
        address = options.pop("address", "") or f"/ip4/127.0.0.1/tcp/{next(self.numbers)}"
        transport = MemoryTransport(self.network, identity.peer_id, address)
        swarm = RoadsMesh(
            identity,
            transport,
            Wish(exchange=self.exchange, port=options.pop("port", 0)),
            seeds=list(map(parse_peer, seeds)),
            known=list(map(parse_peer, options.pop("known_members", ()))),
            timing=options.pop("timing", TIMING),
            **options,
        )
        self.nodes.append(Node(swarm))
        return self.nodes[-1]

    async def kill(self, node: Node) -> None:
        await super().kill(node)
        await node.swarm.roads.listener.stop()


class AutoLab(GrpcLab):
    """Blobs over either road, as measured."""

    exchange = "auto"


class HivemindGrpcLab(HivemindLab):
    """Words over libp2p, blobs over gRPC alone."""

    exchange = "grpc"


async def met(*nodes: Node) -> None:
    """Wait until each has seen each other."""
    for node in nodes:
        for other in nodes:
            if other is not node:
                await node.hears(MemberSeen, lambda e, peer=other.peer: e.member.peer == peer)


async def two(lab: Lab) -> tuple[Node, Node]:
    """Nodes of one run that have met."""
    first = lab.node()
    await first.start(a_run(first))
    second = lab.node(first.address)
    await second.start(a_run(first))
    await met(first, second)
    return first, second


def a_genesis(node: Node, nonce: bytes = bytes(16)) -> Genesis:
    part = BlobRef(digest=digest_of(b"state"), size=5)
    return Genesis(
        config=b'{"name":"toy"}', layout=b"[]", creator=node.peer, snapshot=(part,), nonce=nonce
    )


def a_run(node: Node) -> Digest:
    return run_of(a_genesis(node))


def an_offer(node: Node, number: int = 1) -> Offer:
    return Offer(
        packet=digest_of(b"packet%d" % number),
        contributor=node.peer,
        round=Round(1),
        parent=digest_of(b"parent"),
        samples=16,
        size=100,
    )


def a_chain(node: Node, run: Digest, length: int) -> list[bytes]:
    """Sealed manifests of one contributor, head first."""
    chain: list[bytes] = []
    parent = run
    for number in range(1, length + 1):
        entry = Entry(
            packet=digest_of(b"packet%d" % number),
            contributor=node.peer,
            samples=16,
            weight=1.0,
            size=100,
        )
        draft = Draft(
            run=run,
            round=Round(number),
            parent=parent,
            state=digest_of(b"state%d" % number),
            proposer=node.peer,
            rank=0,
            samples_total=16 * number,
            entries=(entry,),
        )
        chain.insert(0, node.swarm.seal("manifest", encode_manifest(draft)))
        parent = digest_of(chain[0])
    return chain
