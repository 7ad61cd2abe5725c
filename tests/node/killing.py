"""Nodes that die at a chosen point and come back in what the crash left of their home.

Rule: at the point the home is copied and the network no longer carries a word of the node's; what
it still does after that is done in a home that nobody looks at again. So nothing needs to be
stopped in the middle of a line, and nothing that happens after the point is seen.
"""

from __future__ import annotations

import asyncio
import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import numpy as np

from demoloco.codec.layout import CHUNK
from demoloco.codec.packet import decode
from demoloco.store.disk import open_disk_store
from demoloco.store.port import Store
from demoloco.types import Digest, Head, Manifest
from demoloco.wire import decode_manifest
from demoloco.worker.checkpoint import read
from demoloco.worker.port import (
    Contributed,
    Restore,
    SaveCheckpoint,
    Saved,
    Worker,
    WorkerEvent,
)
from tests.node.cluster import Cluster, ClusterNode
from tests.node.crash_image import Durable, Tree, lay_down, seen
from tests.node.lawful import LawfulWorker, head_of_file, name_of_body
from tests.node.mortal import Mortal
from tests.node.passages import Life, Passage, Point
from tests.node.recorder import Coefficients
from tests.points import Homes, Watch

TOLERANCE = 3e-5
PACE = 0.015
"""Seconds a turn of each worker: a round takes longer than to catch up with one."""

RECENT = 16
"""Rounds that are looked through: a life, and what may happen beside it until it begins."""


class Victim(ClusterNode):
    """A node with many lives, each of which keeps the law over the crash before it."""

    def __init__(self, cluster: Cluster, home: Path, world: World) -> None:
        super().__init__(cluster, home)
        self.seconds_a_turn = PACE
        self.world = world
        self.lives: list[Life] = []
        self.died_at: Point | None = None
        self._passage: Passage | None = None
        self._walking = False
        self._fresh = False
        self._counts: Counter[str] = Counter()
        self._image: Tree = {}
        self._watch: Watch | None = None
        self._durable: Durable | None = None
        self._seen: dict[Digest, Manifest] = {}
        self._told_at: dict[Digest, Coefficients] = {}
        self._owed_at: dict[int, Coefficients] = {}
        self._loop = asyncio.get_running_loop()

    @property
    def life(self) -> Life:
        return self.lives[-1]

    @property
    def dead(self) -> bool:
        return self.died_at is not None

    # -- dying -------------------------------------------------------------------------------------
    def walk(self, passage: Passage | None) -> None:
        """From now on, or where it begins the next time: die at the first point not yet met."""
        with self.world.homes.lock:
            self._passage = passage
            self._walking, self._fresh = passage is not None and not passage.begins, False
            self._counts.clear()

    def end_of_walk(self) -> None:
        """It is through, alive."""
        with self.world.homes.lock:
            if self._passage is not None and self._walking and not self.dead:
                self._passage.quiet = 0 if self._fresh else self._passage.quiet + 1
                self._walking = self._fresh = False
                self._counts.clear()

    def reached(self, name: str) -> None:
        """In any thread."""
        with self.world.homes.lock:
            passage = self._passage
            if passage is None or self.dead:
                return
            if name == passage.ends:
                self.end_of_walk()
            if name == passage.begins:
                self._walking = True
            if not self._walking:
                return
            point = (name, self._counts[name])
            self._counts[name] += 1
            if point not in passage.met and point[1] < passage.alike:
                passage.met[point] = None
                self._fresh = True
                passage.quiet = 0
                self._die(point, passage)

    def _die(self, point: Point, passage: Passage) -> None:
        assert self._durable is not None
        image = self._durable.left() if passage.cut else seen(self.home)
        self.died_at = point
        self.life.last_head = self.parts.machine.head if self.task is not None else None
        self.world.network.dead.add(self.identity.peer_id)
        self._image = image
        self._loop.call_soon_threadsafe(self._gone)

    def kill(self) -> None:
        """Now."""
        with self.world.homes.lock:
            self._die(("now", 0), Passage())

    def _gone(self) -> None:
        self.world.network.kill(self.identity.peer_id)
        self.cluster.news.set()

    def watch(self) -> None:
        self.home.mkdir(exist_ok=True)
        self._watch = Watch(self.home, self.reached)
        self._durable = Durable(self.home)
        self._watch.synced = self._durable.synced
        self.world.homes.add(self._watch)

    def unwatch(self) -> None:
        if self._watch is not None and self._durable is not None:
            self.world.homes.remove(self._watch)
            self._durable.close()
        self._watch = self._durable = None

    # -- living ------------------------------------------------------------------------------------
    async def begin(self, seeds: tuple[str, ...] = (), **config: Any) -> None:
        """A life; it may end before the node is up."""
        self.lives.append(Life(len(self.lives)))
        self.watch()
        self.task = None
        starting = asyncio.create_task(self.start(seeds, **config))
        await self.cluster.until(lambda: starting.done() or self.dead)
        if self.dead:
            starting.cancel()
            await asyncio.gather(starting, return_exceptions=True)
            return
        starting.result()
        self.life.contributed_before = self.parts.report.account.tally.rounds_contributed
        cast(Any, self.parts.stance)._share = 1e9  # a checkpoint whenever the worker stands

    async def bury(self) -> Point:
        """End what is left of a life; the home is as the crash left it."""
        assert self.died_at is not None
        point = self.died_at
        await self.close()
        self.unwatch()
        shutil.rmtree(self.home)
        lay_down(self._image, self.home)
        self.walk(None)
        self.world.network.dead.discard(self.identity.peer_id)
        self.died_at = None
        return point

    async def close(self) -> None:
        await super().close()
        self.task = None
        self.unwatch()

    # -- the law -----------------------------------------------------------------------------------
    def _make_worker(self) -> Worker:
        worker = LawfulWorker(self, self.life)
        self.workers.append(worker)
        return worker

    def checking(self, life: Life, check: Callable[[], None]) -> None:
        """Look at the law where the worker stands still; what is wrong is told at the end."""
        if life is not self.life or self.dead:
            return
        try:
            check()
        except BaseException as error:
            life.errors.append(error)

    def told_by(self, head: Digest) -> Coefficients:
        """The sum of my packets on the chain up to here."""
        above = []
        ledger = self.parts.ledger
        while head not in self._told_at:
            manifest = ledger.manifest(head)
            if manifest is None:
                self._told_at[head] = np.zeros((ledger.expected.spec.chunks, CHUNK))
                break
            above.append(manifest)
            self._seen[head] = manifest
            head = manifest.parent
        total = self._told_at[head]
        for manifest in reversed(above):
            entry = manifest.entry_of(self.identity.peer_id)
            if entry is not None:
                total = total + self.dense(entry.packet)
            self._told_at[manifest.digest] = total
        return total

    def dense(self, packet: Digest) -> Coefficients:
        return self.opened(self.body(packet))

    def body(self, packet: Digest) -> bytes:
        body = self.parts.ledger.body(packet)
        assert body is not None
        return body

    def opened(self, body: bytes) -> Coefficients:
        spec = self.parts.ledger.expected.spec
        sparse = decode(body, spec)
        dense = np.zeros((spec.chunks, CHUNK))
        np.put_along_axis(dense, sparse.index, sparse.value, 1)
        return dense

    def stood(self, life: Life, worker: LawfulWorker, agreed: Path) -> None:
        """The worker was put on a state: from here on what is learnt counts."""
        head = head_of_file(agreed)
        ahead = sum(map(self.opened, life.ahead), 0 * self.told_by(head))
        life.base = self.told_by(head) + worker.owed(agreed) + ahead
        life.learnt_before = worker.learnt
        life.since = head

    def restored(self, life: Life, worker: LawfulWorker, order: Restore) -> None:
        """It owes what the newest checkpoint owed, less what was told since: of a packet that the
        checkpoint's model holds its values, else whatever is owed at its coefficients."""
        made = read(order.checkpoint).counters.made
        number = int(order.checkpoint.name)
        assert number >= max((past.saved for past in self.lives[:-1]), default=0)
        spec = self.parts.ledger.expected.spec
        expected = self._owed_at[number].copy()
        held = [body for body in order.told_since if name_of_body(body) in made]
        for body in held:
            expected -= worker.felt(self.opened(body))
        for body in set(order.told_since) - set(held):
            np.put_along_axis(expected, decode(body, spec).index, 0.0, 1)
        owed = worker.owed(order.agreed)
        np.testing.assert_allclose(worker.values(owed), worker.values(expected), atol=TOLERANCE)
        life.told_since = order.told_since
        self.restores += 1

    def kept(self, life: Life, worker: LawfulWorker, order: SaveCheckpoint) -> None:
        """learnt = told + owed, since the worker was put on its state."""
        assert life.base is not None
        there = self.told_by(order.head) + worker.owed(order.agreed)
        learnt = life.base + (worker.learnt - life.learnt_before)
        np.testing.assert_allclose(worker.values(there), worker.values(learnt), atol=TOLERANCE)
        life.checks += 1

    def remember_saved(self, life: Life, order: SaveCheckpoint, owed: Coefficients) -> None:
        numbers = [int(path.name) for path in order.directory.iterdir() if path.name.isdecimal()]
        life.written = max(numbers)
        self._owed_at[life.written] = owed

    def heard(self, life: Life, event: WorkerEvent) -> None:
        if isinstance(event, Contributed):
            life.bodies.add(event.body)
        elif isinstance(event, Saved) and life is self.life and not self.dead:
            life.saved = life.written

    # -- what a life must have shown ---------------------------------------------------------------
    @property
    def lives_well(self) -> bool:
        """It had a packet of this life in a round, and the law was looked at since."""
        if self.task is None or not self.lives or self.life.base is None:
            return False
        before = self.life.contributed_before
        made = self.life.checks > 0 and bool(self.life.bodies)
        return made and self.feed.status.rounds_contributed > before

    @property
    def wrong(self) -> bool:
        return bool(self.life.errors)

    def recent(self) -> tuple[Manifest, ...]:
        """The end of its chain."""
        head = self.parts.machine.head
        assert head is not None
        return self.parts.ledger.chain(head.digest, RECENT)

    def verify(self, before: Head | None) -> None:
        """The crash cost nothing that the law forbids."""
        for error in self.life.errors:
            raise error
        chain = self.recent()
        entries = [manifest.entry_of(self.identity.peer_id) for manifest in chain]
        packets = [entry.packet for entry in entries if entry is not None]
        assert len(set(packets)) == len(packets), "a packet counts twice"
        if before is not None:
            first = self.life.first_head
            assert first is not None
            heavier = first.samples_total > before.samples_total
            assert heavier or before.digest in self.life.first_chain, "an older state than before"
        known = self.life.bodies | set(self.life.told_since) | self.life.ahead
        at = [manifest.digest for manifest in chain]
        since, undone_too = self.life.since, set[Digest]()
        while since not in at and (undone := self._seen.get(since)) is not None:
            mine = undone.entry_of(self.identity.peer_id)
            undone_too |= {mine.packet} if mine is not None else set()
            since = undone.parent
        after = chain[at.index(since) + 1 :] if since in at else chain
        for entry in entries[len(chain) - len(after) :]:
            assert (
                entry is None
                or entry.packet in undone_too
                or self.parts.ledger.body(entry.packet) in known
            ), "a packet of an earlier life came in that the model still owed"


class World:
    """A cluster in which nodes die."""

    def __init__(self, cluster: Cluster, homes: Homes) -> None:
        self.cluster = cluster
        self.homes = homes
        self.network = Mortal()
        self.victims: list[Victim] = []
        cluster.network = self.network
        cluster.make_store = self._open

    def _open(self, home: Path) -> Store:
        store = open_disk_store(home)
        head = store.head()
        for victim in self.victims:
            if victim.home == home and head is not None:
                chain = store.manifests(head.digest, RECENT)
                digests = {decode_manifest(one, lambda *_: True).digest for one in chain}
                victim.life.first_head = head
                victim.life.first_chain = frozenset({head.digest, *digests})
        return store

    def victim(self) -> Victim:
        made = Victim(self.cluster, self.cluster.folder / f"node{len(self.cluster.nodes)}", self)
        self.cluster.nodes.append(made)
        self.network.heard_by[made.identity.peer_id] = made.reached
        self.victims.append(made)
        return made
