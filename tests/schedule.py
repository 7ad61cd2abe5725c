"""A seeded schedule of all that can go wrong in a swarm, and what must hold after it.

Rule: the seed alone decides. Whatever happens in the schedule, the promises must hold at its end:
once messages arrive and all nodes run, they stand on one chain, go on, and keep together.
"""

from __future__ import annotations

import random
from dataclasses import replace
from unittest import mock

from benchmarks.simulator.node import SimNode
from benchmarks.simulator.parts import Faults
from benchmarks.simulator.world import World
from demoloco.rounds import decide
from demoloco.rounds.events import LeaveRequested

TROUBLE_SECONDS = 300.0
HEAL_SECONDS = 90.0
CALM_SECONDS = 260.0
SETTLE_SECONDS = 5.0
MIN_PROGRESS = 3
SPEEDS = (1.0, 1.0, 1.0, 0.5, 0.2)
LOSSES = (0.0, 0.1, 0.3)
DELAYS = (0.3, 1.5, 4.0)
DEPTHS = (3, 16, 1000)
TRANSFERS = (0.1, 2.0, 8.0)
LOG_DEPTHS = (12, 30, 4096, 4096)
OWN_DEPTHS = (2, 128)
SNAPSHOT_BYTES = (300, 2000, 10**6)  # a packet has 100
MOST_REPLAYED = (4, 256)
MOST_CONTRIBUTORS = (2, 5, 64, 64, 64)
OVERLAPS = (1, 1, 0)
ROUND_SECONDS = (0.0, 0.0, 4.0, 10.0)
TROUBLES = (
    "crash",
    "crash",
    "worker",
    "leave",
    "blackout",
    "partition",
    "absence",
    "address",
)


def alive(world: World) -> list[SimNode]:
    return [node for node in world.nodes.values() if node.alive]


def rounds(world: World) -> list[int]:
    return [node.disk.head.round if node.disk.head else -1 for node in alive(world)]


def assert_one_chain(nodes: list[SimNode]) -> None:
    """All of these nodes stand on one chain: equal manifests and states at equal rounds."""
    longest = max(nodes, key=lambda n: n.disk.head.round if n.disk.head else -1)
    assert longest.disk.head is not None
    reference = {m.round: m.digest for m in longest.disk.chain(longest.disk.head.digest)}
    for node in nodes:
        assert node.disk.head is not None, f"{node.name} has no state"
        for manifest in node.disk.chain(node.disk.head.digest):
            assert reference.get(manifest.round, manifest.digest) == manifest.digest, node.name
        common = set(node.disk.states) & set(longest.disk.states)
        assert all(node.disk.states[d] == longest.disk.states[d] for d in common)


def troubled(seed: int) -> World:
    """A world with its trouble planned."""
    pick = random.Random(seed)
    size = min(pick.randint(2, 16), pick.randint(2, 16))
    if pick.random() < 0.01:
        size = 32
    world = World(seed, [1.0, *(pick.choice(SPEEDS) for _ in range(size - 1))])
    world.faults = Faults(
        delay=(0.01, pick.choice(DELAYS)),
        transfer=(0.0, pick.choice(TRANSFERS)),
        loss=pick.choice(LOSSES),
        twice=pick.choice(LOSSES),
    )
    world.snapshot_bytes = pick.choice(SNAPSHOT_BYTES)
    world.pace = replace(world.pace, max_contributors=pick.choice(MOST_CONTRIBUTORS))
    world.overlap, world.round_seconds = pick.choice(OVERLAPS), pick.choice(ROUND_SECONDS)
    world.most_replayed = pick.choice(MOST_REPLAYED)
    nodes = list(world.nodes.values())
    depth, log, own = map(pick.choice, (DEPTHS, LOG_DEPTHS, OWN_DEPTHS))
    for node in nodes:
        node.disk.depth, node.disk.log_depth, node.disk.own_depth = depth, log, own
        world.at(pick.uniform(0, 60) if pick.random() < 0.7 else pick.uniform(60, 290), node.start)
    for _ in range(pick.randint(0, 8)):
        _plan_trouble(world, pick, pick.uniform(20, TROUBLE_SECONDS - 10))
    return world


def _plan_trouble(world: World, pick: random.Random, when: float) -> None:
    nodes = list(world.nodes.values())
    victim = pick.choice(nodes)
    back = when + pick.uniform(1, 60)

    def start() -> None:
        if not victim.alive:
            victim.start()

    match pick.choice(TROUBLES):
        case "crash":
            world.at(when, victim.crash)
            world.at(back, start)
        case "worker":
            world.at(when, victim.lose_worker)
        case "leave":
            at_once = pick.random() < 0.3
            world.at(when, lambda: victim.hear(LeaveRequested(at_once)))
            world.at(back + 30, start)
        case "absence":  # longer than replays and, in some worlds, than the log is kept
            world.at(when, victim.crash)
            world.at(TROUBLE_SECONDS + HEAL_SECONDS * pick.random(), start)
        case "address":  # nobody finds it until it has told its new one
            world.at(when, lambda: world.away.add(victim.name))
            world.at(when + pick.uniform(1, 20), lambda: world.away.discard(victim.name))
        case "blackout":
            world.at(when, lambda: [node.crash() for node in nodes])
            world.at(back, lambda: [node.start() for node in nodes if not node.alive])
        case _:
            side = {node.name for node in nodes if pick.random() < 0.5}
            islands = [side, set(world.nodes) - side]
            end = back + pick.choice((30, 30, 150))
            world.at(when, lambda: setattr(world, "islands", islands))
            world.at(min(end, TROUBLE_SECONDS), lambda: setattr(world, "islands", []))


def run(seed: int) -> World:
    """Play the schedule and check the promises.

    The law, learnt = told + owed, is checked by the world after every step of every node."""
    world = troubled(seed)
    with mock.patch.object(decide, "MAX_REPLAY", world.most_replayed):
        return _play(world)


def _settle(world: World, nodes: list[SimNode]) -> None:
    """One chain, but for two proposals that have just crossed.

    At any instant no more is promised: whom a manifest has not reached when its own turn comes, for
    in a large swarm some learn of it by a hello only, makes another for the same round [P23]. The
    lighter one is walked back as soon as its maker hears of the other [P28], which takes it a beat
    and a fetch; what lasts longer is a fork that does not heal."""
    try:
        assert_one_chain(nodes)
    except AssertionError:
        world.run(SETTLE_SECONDS)
        assert_one_chain(nodes)


def _play(world: World) -> World:
    world.run(TROUBLE_SECONDS)
    world.islands, world.faults = [], Faults()
    world.away.clear()
    for node in world.nodes.values():
        if not node.alive:
            node.start()
    world.run(HEAL_SECONDS)
    before = min(rounds(world))
    world.run(CALM_SECONDS)
    nodes = list(world.nodes.values())
    _settle(world, nodes)
    after = rounds(world)
    why = {node.name: node.machine.why() for node in nodes}
    assert min(after) >= before + MIN_PROGRESS, f"from round {before} to {after}: {why}"
    assert max(after) - min(after) <= 1, f"rounds {after}: {why}"
    return world
