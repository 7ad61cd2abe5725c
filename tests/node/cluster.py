"""Several whole nodes in one event loop: all parts are real but the network, the worker's process
and the operator.

Rule: nothing here waits by the clock: `until` looks again whenever some node's status changes.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from blake3 import blake3

from demoloco.codec.packet import Sparse, decode
from demoloco.config import NodeConfig
from demoloco.node.assembly import assemble
from demoloco.node.belonging import Belonging
from demoloco.node.crew import Crew
from demoloco.node.disk import Disk
from demoloco.node.driver import Driver
from demoloco.node.feed import Feed
from demoloco.node.founding import Founding, Run
from demoloco.node.library import StoreLibrary
from demoloco.node.packets import Packet
from demoloco.node.parts import Ground, Parts
from demoloco.node.report import Report
from demoloco.rounds import events as ev
from demoloco.settings import Settings
from demoloco.store.disk import open_disk_store
from demoloco.store.port import Store
from demoloco.swarm.identity import Identity
from demoloco.swarm.memory import MemoryNetwork, MemorySwarm
from demoloco.swarm.port import SwarmEvent
from demoloco.swarm.timing import Timing
from demoloco.types import Manifest
from demoloco.worker.checkpoint import read
from demoloco.worker.port import Restore, Worker
from tests.node.recorder import Coefficients, RecordedWorker, Saved

DEADLINE_SECONDS = 40.0  # a crowded machine is slow
TIMING = Timing(
    heartbeat_seconds=0.1,
    missed_heartbeats=8,
    call_seconds=1.0,
    connect_seconds=1.0,
    settle_seconds=0.5,
    chunk_seconds=1.0,
    transfer_seconds=5.0,
    hint_seconds=0.3,
    seed_retry_seconds=0.3,
    known_retry_seconds=0.5,
)
RUN: dict[str, Any] = {
    "task": "tests.worker.tasks:Even",
    "inner_steps": 3,
    "batch_size": 4,
    "learning_rate": 1e-2,
    "warmup_rounds": 0,
    "evaluate_every": 1,
    "snapshot_every": 4,
}


class LoudFeed(Feed):
    """Tells the cluster of every change, and notes where learnt is not told + owed."""

    def __init__(self, cluster: Cluster) -> None:
        super().__init__()
        self._cluster = cluster

    def update(self, **changes: Any) -> None:
        super().update(**changes)
        self._cluster.news.set()
        now = self.status
        if now.samples_learnt != now.samples_told + now.samples_owed:
            figures = now.samples_learnt, now.samples_told, now.samples_owed
            self._cluster.breaches.append((now.round, *figures))


class ClusterNode:
    """One node; may have several lives in one home."""

    def __init__(self, cluster: Cluster, home: Path) -> None:
        self.cluster = cluster
        self.home = home
        self.identity = Identity.new()
        self.config = NodeConfig(home=home, threads=1, leave_seconds=5.0, checkpoint_share=1.0)
        self.seconds_a_turn = 0.02  # rounds are longer than heartbeats
        self.workers: list[RecordedWorker] = []
        self.saved: Saved = {}
        self.restores = 0
        self.task: asyncio.Task[None] | None = None
        self._held = AsyncExitStack()
        self._early: list[SwarmEvent] = []

    # -- life --------------------------------------------------------------------------------------
    async def start(self, seeds: tuple[str, ...] = (), **config: Any) -> None:
        """Come up as `app.py` does."""
        self.config = replace(self.config, peers=seeds, **config)
        self.home.mkdir(exist_ok=True)
        self.feed = LoudFeed(self.cluster)
        held, self._held = AsyncExitStack(), AsyncExitStack()
        async with held:
            store: Store = self.cluster.make_store(self.home)
            held.callback(store.close)
            disk = Disk()
            held.callback(disk.close)
            crew = Crew(self._make_worker, self.config, self.identity.peer_id)
            crew.start()
            held.push_async_callback(crew.stop, 1.0)
            library = StoreLibrary(store)
            self.swarm = MemorySwarm(
                self.cluster.network, self.identity, seeds=seeds, timing=self.cluster.timing
            )
            held.push_async_callback(self.swarm.stop)
            await self.swarm.start(self._early.append, library)
            ground = Ground(
                identity=self.identity,
                node=self.config,
                store=store,
                disk=disk,
                swarm=self.swarm,
                crew=crew,
                report=Report(self.feed, self.swarm, self.identity.peer_id),
                shelf=library.shelf,
                lending=library.lending,
            )
            founding = Founding(self.cluster.settings, store, disk, self.swarm, crew)
            self.run: Run = await founding.run(ground.report, Belonging(seeds, given=True))
            store.snapshot_every = self.run.config.snapshot_every
            library.know(self.run.genesis)
            self.parts: Parts = assemble(ground, self.run)
            self.driver = Driver(self.parts)
            self.swarm._standing.emit = self.driver.hear_swarm
            await self.driver.begin()
            self.task = asyncio.create_task(self.driver.run())
            self._held = held.pop_all()

    async def end(self) -> None:
        """Wait until it has left by itself, and take it down in order."""
        assert self.task is not None
        try:
            async with asyncio.timeout(DEADLINE_SECONDS):
                await self.task
            await self.parts.stance.save_at_last()
        finally:
            await self._held.aclose()

    async def leave(self, now: bool = False) -> None:
        self.driver.post(ev.LeaveRequested(now))
        await self.end()

    async def crash(self) -> None:
        """Gone without a word and without a last checkpoint."""
        assert self.task is not None
        self.cluster.network.kill(self.identity.peer_id)
        self.task.cancel()
        await asyncio.gather(self.task, return_exceptions=True)
        await self._held.aclose()

    async def close(self) -> None:
        """However it stands, leave nothing behind."""
        if self.task is not None:
            self.task.cancel()
            await asyncio.gather(self.task, return_exceptions=True)
        await self._held.aclose()

    def _make_worker(self) -> Worker:
        worker = RecordedWorker(self.seconds_a_turn, self.cluster.news.set)
        worker.saved, worker.restored = self.saved, self._on_restored
        self.workers.append(worker)
        return worker

    def _on_restored(self, order: Restore, owed: Coefficients) -> None:
        """What the checkpoint owed and nobody was told since is owed; from here on it counts as
        learnt, as does what is told but in no manifest yet."""
        self.restores += 1
        if self.run.config.method == "paper":  # nobody can say of a coefficient that it is owed
            return
        checkpoint = read(order.checkpoint)
        expected = self.saved[checkpoint.head].copy()
        spec = self.parts.ledger.expected.spec
        since = [decode(body, spec) for body in order.told_since]
        made = [blake3(body).hexdigest() in checkpoint.counters.made for body in order.told_since]
        for packet, held in sorted(zip(since, made, strict=True), key=lambda pair: not pair[1]):
            if held:
                expected -= self._dense(packet)
            else:
                np.put_along_axis(expected, packet.index, 0.0, 1)
        values = self.worker.values
        np.testing.assert_allclose(values(owed), values(expected), atol=2e-5)
        in_chain = {packet.body for packet in self._own_packets()}
        self.worker.learnt = self.told() + owed
        for body, packet in zip(order.told_since, since, strict=True):
            if body not in in_chain:
                self.worker.learnt = self.worker.learnt + self._dense(packet)

    # -- what a test looks at ----------------------------------------------------------------------
    @property
    def address(self) -> str:
        return f"{self.swarm.addresses[0]}/p2p/{self.identity.peer_id}"

    @property
    def round(self) -> int:
        return self.feed.status.round

    @property
    def worker(self) -> RecordedWorker:
        return self.workers[-1]

    def chain(self) -> tuple[Manifest, ...]:
        head = self.parts.machine.head
        assert head is not None
        return self.parts.ledger.chain(head.digest)

    def agreed(self) -> Coefficients:
        """A."""
        head = self.parts.machine.head
        state = self.parts.ledger.store.state(head.digest) if head is not None else None
        assert state is not None
        return state[: self.run.layout.chunks].astype(np.float64)

    def told(self) -> Coefficients:
        """Sum of the node's own packets on its chain."""
        return sum((self._dense(p.sparse) for p in self._own_packets()), 0 * self.agreed())

    def _own_packets(self) -> Iterator[Packet]:
        for manifest in self.chain():
            entry = manifest.entry_of(self.identity.peer_id)
            if entry is not None:
                packet = self.parts.ledger.packet(entry.packet)
                assert packet is not None
                yield packet

    def _dense(self, sparse: Sparse) -> Coefficients:
        dense = np.zeros(self.agreed().shape)
        np.put_along_axis(dense, sparse.index, sparse.value, 1)
        return dense

    def owed(self) -> Coefficients:
        """A − DCT(x) − b."""
        return self.agreed() - self.worker.model() - self.worker.borrowed()

    @property
    def story(self) -> str:
        """Where it stands, for a test that failed."""
        status, worker = self.feed.status, self.worker
        done = "ended" if self.task is None or self.task.done() else "on"
        last = type(worker.told[-1]).__name__ if worker.told else None
        return (
            f"round {status.round} {status.phase}: {status.why}; driver {done}, worker"
            f" {len(self.workers)} idle {worker.idle}, last told {last},"
            f" {self.parts.machine.state.labour}"
        )

    @property
    def settled(self) -> bool:
        """The worker has done all it was told, so that its model stands on the head's state."""
        machine = self.parts.machine
        head = machine.head
        moving = machine.state.moving is not None
        return (
            not moving
            and self.worker.idle
            and head is not None
            and self.parts.stance.standing == head.digest
        )


class Cluster:
    """The nodes of one test."""

    def __init__(self, folder: Path, run: dict[str, Any], timing: Timing) -> None:
        self.folder = folder
        self.network = MemoryNetwork(1)
        self.timing = timing
        self.settings = Settings(run=RUN | run, node={}, origins={})
        self.settings.run_config()
        self.news = asyncio.Event()
        self.nodes: list[ClusterNode] = []
        self.breaches: list[tuple[int, ...]] = []  # of the law: round, learnt, told, owed
        self.make_store: Callable[[Path], Store] = lambda home: open_disk_store(home)

    def node(self) -> ClusterNode:
        node = ClusterNode(self, self.folder / f"node{len(self.nodes)}")
        self.nodes.append(node)
        return node

    async def found(self, count: int, **config: Any) -> list[ClusterNode]:
        """A run of so many nodes; the first is its creator and the others' seed."""
        nodes = [self.node() for _ in range(count)]
        await nodes[0].start(**config)
        await asyncio.gather(*(node.start((nodes[0].address,), **config) for node in nodes[1:]))
        return nodes

    async def until(self, holds: Callable[[], bool]) -> None:
        """Wait until this is so; a node that fails meanwhile fails the test."""
        try:
            async with asyncio.timeout(DEADLINE_SECONDS):
                while not holds():
                    self.raise_failures()
                    self.news.clear()
                    await self.news.wait()
        except TimeoutError:
            told = [f"{node.home.name} {node.story}" for node in self.nodes]
            raise AssertionError("\n".join(["it never came to it:", *told])) from None

    def raise_failures(self) -> None:
        for node in self.nodes:
            if node.task is not None and node.task.done() and not node.task.cancelled():
                node.task.result()

    async def all_reach(self, round: int, nodes: Iterable[ClusterNode] | None = None) -> None:
        there = list(nodes if nodes is not None else self.nodes)
        await self.until(lambda: all(node.round >= round for node in there))


@asynccontextmanager
async def cluster(folder: Path, timing: Timing = TIMING, **run: Any) -> AsyncIterator[Cluster]:
    """A cluster that leaves nothing behind: no task, and no error that nobody heard of."""
    loop = asyncio.get_running_loop()
    unheard: list[dict[str, Any]] = []
    loop.set_exception_handler(lambda _, context: unheard.append(context))
    before = asyncio.all_tasks()
    made = Cluster(folder, run, timing)
    try:
        yield made
    finally:
        for node in made.nodes:
            await node.close()
    left = {task for task in asyncio.all_tasks() - before if not task.done()}
    assert left == set()
    assert unheard == []
    assert made.breaches == []
