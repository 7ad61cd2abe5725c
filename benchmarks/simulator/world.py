"""The virtual clock and the network between simulated nodes: seeded delay, loss, partition.

Rule: everything random comes from the seed, so a failing schedule fails again.
"""

from __future__ import annotations

import heapq
import itertools
import random
from collections.abc import Callable

from benchmarks.simulator.node import SimNode
from benchmarks.simulator.parts import GENESIS, PACE, RUN, Faults, digest
from benchmarks.simulator.words import MouthToMouth, ToAll, Words
from demoloco.rounds import effects as ef
from demoloco.rounds import events as ev
from demoloco.rounds.chain import MAX_REPLAY
from demoloco.swarm.gossip.rumours import is_small
from demoloco.types import Digest, Manifest, PeerId


class World:
    """The virtual clock and the network between the nodes."""

    def __init__(
        self,
        seed: int,
        speeds: list[float],
        faults: Faults | None = None,
        *,
        by_mouth: bool | None = None,
    ) -> None:
        """`by_mouth`: words travel as in the mesh, else from each to all; None: as many are."""
        self.random = random.Random(seed)
        self.faults = faults or Faults()
        self.now = 0.0
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._order = itertools.count()
        names = [f"node{i:02d}" for i in range(len(speeds))]
        self.creator = PeerId(names[0])
        self.pace = PACE
        self.round_seconds, self.overlap = 0.0, 1
        self.most_replayed = MAX_REPLAY
        self.by_mouth = not is_small(len(speeds) - 1) if by_mouth is None else by_mouth
        self.refuses = False  # whether a crashed node's machine says that nobody listens
        self.islands: list[set[PeerId]] = []
        self.away: set[PeerId] = set()  # nobody reaches them, nor they anybody
        self.manifests: dict[Digest, Manifest] = {}  # all that anybody ever had
        self.snapshot_bytes = 10**6  # what a packet has: see `_contributed`
        self.nodes = {PeerId(n): SimNode(self, n, s) for n, s in zip(names, speeds, strict=True)}
        founder = self.nodes[self.creator]
        founder.disk.head = GENESIS
        founder.disk.states[RUN] = digest("initial")

    def words_of(self, node: SimNode) -> Words:
        return MouthToMouth(node) if self.by_mouth else ToAll(node)

    def count(self, node: SimNode, kind: str, size: int) -> None:
        """The node sends a message of so many bytes; a measurement may put its own ear in place."""

    def lost(self, node: SimNode, peer: PeerId) -> None:
        """The node gives up a member that went without a goodbye; likewise."""

    def listen(self, node: PeerId, event: ev.Event, effects: list[ef.Effect]) -> None:
        """Each step of each node passes here; a test may put its own ear in place."""

    def at(self, when: float, act: Callable[[], None]) -> None:
        heapq.heappush(self._events, (when, next(self._order), act))

    def run(self, seconds: float) -> None:
        """Let this much virtual time pass."""
        end = self.now + seconds
        while self._events and self._events[0][0] <= end:
            self.now, _, act = heapq.heappop(self._events)
            act()
        self.now = end

    def others(self, node: SimNode) -> list[SimNode]:
        return [other for other in self.nodes.values() if other is not node]

    def reach(self, one: SimNode, other: SimNode) -> bool:
        return one.alive and other.alive and self.joined(one, other)

    def joined(self, one: SimNode, other: SimNode) -> bool:
        together = any(one.name in i and other.name in i for i in self.islands)
        return not {one.name, other.name} & self.away and (not self.islands or together)

    def answers(self, one: SimNode, other: SimNode) -> bool:
        """Does the other answer this time?"""
        return self.reach(one, other) and self.random.random() >= self.faults.loss

    def send(self, one: SimNode, other: SimNode, act: Callable[[], None]) -> None:
        """A message: late, perhaps lost or twice, out of order, never across a partition; it may
        outlive its sender."""

        def arrive() -> None:
            if other.alive and self.joined(one, other):
                act()

        if self.random.random() < self.faults.loss:
            return
        for _ in range(2 if self.random.random() < self.faults.twice else 1):
            late = self.random.uniform(*self.faults.delay)
            self.at(self.now + late, arrive)

    def tell(self, one: SimNode, event: ev.Event) -> None:
        """A message to all others."""
        for other in self.others(one):
            self.send(one, other, lambda other=other: other.hear(event))

    def call(self, node: SimNode, act: Callable[[], None], seconds: float = 0.0) -> None:
        """A request with its answer."""
        node.later(self.random.uniform(*self.faults.delay) * 2 + seconds, act)

    def check(self, node: SimNode) -> None:
        """The law, after every step of every node."""
        if node.machine.state.moving is None and node.machine.head is not None:
            owed = node.machine.state.labour.owed_samples
            told = node.told()
            counts = f"learnt {node.learnt}, told {told}, owed {owed}"
            assert node.learnt == told + owed, f"{node.name} at {self.now:.1f}: {counts}"
