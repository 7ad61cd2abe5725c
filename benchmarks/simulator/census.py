"""What a simulated swarm of some size costs: messages, bytes, seconds.

Rule: the machines and the choices of partners are the real ones, the network and the clock are
simulated, sizes are those of the real encoders; so the same seed gives the same figures. All nodes
train; where they are more than a round takes packets of, in turns.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from statistics import mean, median

from benchmarks.simulator.node import SimNode
from benchmarks.simulator.parts import Faults
from benchmarks.simulator.words import MouthToMouth
from benchmarks.simulator.world import World
from demoloco.rounds import effects as ef
from demoloco.rounds import events as ev
from demoloco.types import Digest, PeerId

DELAY = (0.02, 0.15)
"""Seconds that a message travels."""

GATHERING_SECONDS = 5.0
"""In this time all nodes start, but for the founder, that is there before."""

WARMUP_SECONDS = 15.0
DEATH_SECONDS = 60.0


@dataclass(frozen=True, kw_only=True)
class Census:
    """What one size was found to cost; messages and bytes as sent, answers counted too."""

    nodes: int
    rounds: int
    messages: dict[str, float]  # per node and round, by kind
    sent: dict[str, float]  # bytes per node and round, by kind; `packet` is what packets would add
    commit_seconds: float  # from a round's last packet, made, to its manifest applied: mean
    join_seconds: float  # from the start of a late node to the agreed state: mean
    views_seconds: float  # … to knowing all members
    death_seconds: tuple[float, float]  # until half, and until all, have noticed one
    false_losses: int

    @property
    def messages_per_node(self) -> float:
        """Without those that fetch packets."""
        return sum(count for kind, count in self.messages.items() if kind != "packet")

    @property
    def bytes_per_node(self) -> float:
        """Without packets."""
        return sum(size for kind, size in self.sent.items() if kind != "packet")


@dataclass
class _Tally:
    """Ears for a world."""

    world: World
    messages: Counter[str] = field(default_factory=Counter)
    sent: Counter[str] = field(default_factory=Counter)
    losses: list[tuple[float, PeerId, PeerId]] = field(default_factory=list)
    made: dict[Digest, float] = field(default_factory=dict)  # parent → its last packet's birth
    waits: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.world.count = self._count  # type: ignore[method-assign]
        self.world.lost = self._lost  # type: ignore[method-assign]
        self.world.listen = self._listen  # type: ignore[method-assign]

    def _count(self, node: SimNode, kind: str, size: int) -> None:
        self.messages[kind] += 1
        self.sent[kind] += size

    def _lost(self, node: SimNode, peer: PeerId) -> None:
        self.losses.append((self.world.now, node.name, peer))

    def _listen(self, node: PeerId, event: ev.Event, effects: list[ef.Effect]) -> None:
        now = self.world.now
        if isinstance(event, ev.Contributed):
            self.made[event.offer.parent] = now
        if isinstance(event, ev.Applied):
            manifest = self.world.manifests.get(event.head.digest)
            if manifest is not None and manifest.parent in self.made:
                self.waits.append(now - self.made[manifest.parent])


def take(nodes: int, rounds: int, *, seed: int = 1, loss: float = 0.0) -> Census:
    """Let a swarm of equal nodes make so many rounds, then let one come and one die."""
    world = World(seed, [1.0] * (nodes + 1), Faults(delay=DELAY, loss=loss), by_mouth=True)
    tally = _Tally(world)
    everybody = list(world.nodes.values())
    founder, late, crowd = everybody[0], everybody[-1], everybody[:-1]
    founder.start()
    world.run(GATHERING_SECONDS)
    for node in crowd[1:]:
        world.at(world.now + world.random.uniform(0, GATHERING_SECONDS), node.start)
    world.run(WARMUP_SECONDS)
    made = _measure(world, tally, crowd, rounds)
    messages = {kind: count / nodes / made for kind, count in tally.messages.items()}
    sent = {kind: size / nodes / made for kind, size in tally.sent.items()}
    waits, false = list(tally.waits), len(tally.losses)
    joined, seen = _join(world, late, nodes)
    victim = crowd[nodes // 2]
    return Census(
        nodes=nodes,
        rounds=made,
        messages=messages,
        sent=sent,
        commit_seconds=mean(waits) if waits else float("nan"),
        join_seconds=joined,
        views_seconds=seen,
        death_seconds=_death(world, tally, victim, everybody),
        false_losses=false,
    )


def _height(nodes: list[SimNode]) -> int:
    return max(node.disk.head.round for node in nodes if node.disk.head is not None)


def _measure(world: World, tally: _Tally, crowd: list[SimNode], rounds: int) -> int:
    """Let the rounds pass; how many passed while all was counted."""
    tally.messages.clear()
    tally.sent.clear()
    tally.waits.clear()
    tally.losses.clear()
    first = _height(crowd)
    while _height(crowd) < first + rounds:
        world.run(1.0)
    return _height(crowd) - first


def _join(world: World, late: SimNode, others: int) -> tuple[float, float]:
    """Seconds until a late node has the agreed state, and until it knows everybody."""
    began, joined = world.now, float("nan")
    late.start()
    assert isinstance(late.words, MouthToMouth)
    while world.now < began + DEATH_SECONDS:
        world.run(0.1)
        if late.disk.head is not None and joined != joined:
            joined = world.now - began
        if joined == joined and len(late.words.roster) >= others:
            break
    return joined, world.now - began


def _death(
    world: World, tally: _Tally, victim: SimNode, everybody: list[SimNode]
) -> tuple[float, float]:
    """Seconds until half of the others, and until all, gave up a node that died silently."""
    tally.losses.clear()
    began = world.now
    victim.crash()
    others = [node for node in everybody if node is not victim]
    for node in others:
        node.deaf = True
    noticed: dict[PeerId, float] = {}
    while len(noticed) < len(others) and world.now < began + DEATH_SECONDS:
        world.run(1.0)
        for at, node, peer in tally.losses:
            if peer == victim.name:
                noticed.setdefault(node, at - began)
    times = sorted(noticed.values()) + [float("inf")] * (len(others) - len(noticed))
    return median(times), times[-1]
