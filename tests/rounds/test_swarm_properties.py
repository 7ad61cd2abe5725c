"""The promises, as properties of many machines under seeded faults."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.simulator.node import LEAVE_SECONDS, SimNode
from benchmarks.simulator.parts import PACE, Faults
from benchmarks.simulator.words import HEARTBEAT
from benchmarks.simulator.world import World
from demoloco.rounds import decide
from demoloco.rounds import effects as ef
from demoloco.rounds import events as ev
from demoloco.rounds.rules import succession
from demoloco.rounds.tempo import TURN_UNMEASURED
from demoloco.types import PeerId
from tests import schedule
from tests.schedule import alive, assert_one_chain, rounds


def test_one_node_alone_goes_on() -> None:
    world = World(1, [1.0])
    world.nodes[world.creator].start()
    world.run(200)
    assert rounds(world)[0] >= 15


def test_equal_nodes_close_each_round_with_everybody_in() -> None:
    world = World(2, [1.0, 1.0, 1.0])
    for node in world.nodes.values():
        node.start()
    world.run(300)
    assert_one_chain(alive(world))
    founder = world.nodes[world.creator]
    chain = founder.disk.chain(founder.disk.head.digest)  # type: ignore[union-attr]
    assert len(chain) >= 20
    assert [len(m.entries) for m in chain[5:]] == [3] * len(chain[5:])


def test_a_late_joiner_costs_the_others_no_round() -> None:
    world = World(3, [1.0, 1.0, 1.0])
    first, second, third = world.nodes.values()
    first.start()
    second.start()
    world.run(120)
    third.start()
    world.run(60)
    assert third.disk.head is not None
    chain = first.disk.chain(first.disk.head.digest)  # type: ignore[union-attr]
    around = [m for m in chain[5:]]
    assert all(m.entry_of(first.name) and m.entry_of(second.name) for m in around)
    assert any(m.entry_of(third.name) for m in chain)
    assert_one_chain(alive(world))


def test_a_slow_node_is_left_out_and_its_work_counts_later() -> None:
    world = World(4, [1.0, 1.0, 1.0, 0.2])
    for node in world.nodes.values():
        node.start()
    world.run(400)
    slow = list(world.nodes.values())[3]
    assert slow.told() > 0
    assert min(rounds(world)) >= 20
    assert_one_chain(alive(world))


def test_a_dead_proposer_is_succeeded() -> None:
    world = World(5, [1.0] * 4)
    for node in world.nodes.values():
        node.start()
    world.run(60)
    before = max(rounds(world))
    world.nodes[world.creator].crash()
    world.run(60)
    assert min(rounds(world)) >= before + 3
    assert_one_chain(alive(world))


@pytest.mark.parametrize("most", [64, 2])
def test_a_leaver_takes_nothing_with_it(most: int) -> None:
    """At whatever moment of a round it is asked; in a crowd, too, where not all fit into a round,
    as long as its time lasts."""
    for tenths in range(600, 720, 7):
        world = World(tenths, [1.0] * 3)
        world.pace = replace(PACE, max_contributors=most)
        for node in world.nodes.values():
            node.start()
        world.run(tenths / 10)
        leaver = list(world.nodes.values())[1]
        leaver.hear(ev.LeaveRequested())
        asked = world.now
        while leaver.alive:
            world.run(0.1)
        waited = world.now - asked
        world.run(40)
        witness = world.nodes[world.creator]
        chain = witness.disk.chain(witness.disk.head.digest)  # type: ignore[union-attr]
        told = sum(e.samples for m in chain if (e := m.entry_of(leaver.name)) is not None)
        assert told == leaver.learnt or (most == 2 and waited >= LEAVE_SECONDS), tenths
        assert waited < 6 or most == 2
        assert_one_chain(alive(world))


def _handover(seed: int, when: type[ef.Effect] | None, at_once: bool) -> tuple[float, World]:
    """How long a round takes whose proposer is asked to leave when it first wants this; without
    such a wish nobody is asked."""
    world = World(seed, [1.0] * 4)
    nodes = list(world.nodes.values())
    for node in nodes:
        node.start()
    world.run(60)
    head = max((n.disk.head for n in nodes if n.disk.head), key=lambda head: head.samples_total)
    names = [entry.contributor for entry in world.manifests[head.digest].entries]
    proposer = world.nodes[succession(head.digest, names)[0]]
    asked: list[bool] = []

    def ask(name: PeerId, event: ev.Event, effects: list[ef.Effect]) -> None:
        wanted = any(isinstance(effect, when) for effect in effects) if when else False
        if name == proposer.name and wanted and not asked:
            asked.append(True)
            world.at(world.now, lambda: proposer.hear(ev.LeaveRequested(at_once)))

    world.listen = ask  # type: ignore[method-assign]
    begun = world.now
    others = [node for node in nodes if node is not proposer]
    while any(n.disk.head is None or n.disk.head.round <= head.round for n in others):
        world.run(0.1)
        assert world.now < begun + 100
    assert bool(asked) == (when is not None)
    took = world.now - begun
    world.run(60)
    assert proposer.alive == (when is None)
    return took, world


def test_a_leaver_of_a_large_swarm_is_gone_in_seconds_and_its_packet_is_in_the_chain() -> None:
    """Though not every word reaches all: so many words go from mouth to mouth."""
    world = World(1, [1.0] * 16, Faults(delay=(0.02, 0.15)))
    assert world.by_mouth
    nodes = list(world.nodes.values())
    nodes[0].start()
    world.run(5)
    for node in nodes[1:]:
        node.start()
    world.run(60)
    for leaver in nodes[4:7]:
        leaver.hear(ev.LeaveRequested())
        began = world.now
        while leaver.alive:
            world.run(0.5)
        assert world.now - began < 8
        world.run(23)
        round_ = leaver.machine.state.round
        assert round_ is not None
        head = nodes[0].disk.head
        assert head is not None
        told = [entry.packet for one in nodes[0].disk.chain(head.digest) for entry in one.entries]
        owed = leaver.machine.state.labour.owed_samples
        assert owed == 0 if round_.mine is None else round_.mine.packet in told
    assert_one_chain(alive(world))


@pytest.mark.parametrize("at_once", [False, True])
@pytest.mark.parametrize("when", [ef.Announce, ef.Contribute, ef.Propose, ef.Publish])
def test_a_proposer_that_leaves_costs_no_round_and_no_waiting(
    when: type[ef.Effect], at_once: bool
) -> None:
    for seed in range(4):
        normal, _ = _handover(seed, None, at_once)
        took, world = _handover(seed, when, at_once)
        assert took <= normal + HEARTBEAT + 1.0 < normal + TURN_UNMEASURED
        assert_one_chain(alive(world))
        assert min(rounds(world)) >= 10


@pytest.mark.parametrize("seed", range(5))
def test_a_partition_that_heals_leaves_one_chain_and_loses_nothing(seed: int) -> None:
    world = World(seed, [1.0] * 5)
    for node in world.nodes.values():
        node.start()
    world.run(60)
    names = list(world.nodes)
    world.islands = [set(names[:3]), set(names[3:])]
    world.run(120)
    world.islands = []
    world.run(90)
    assert_one_chain(alive(world))
    assert any("lighter chain" in note for n in alive(world) for note in n.notes)


def _is_everywhere(world: World, node: SimNode) -> bool:
    """All hold its packet for the open round, and nobody has proposed yet."""
    states = [other.machine.state for other in world.nodes.values()]
    rounds = [state.round for state in states if state.round is not None]
    mine = node.machine.state.round.mine if node.machine.state.round is not None else None
    proposed = any(round_.drafted or round_.heard is not None for round_ in rounds)
    held = mine is not None and all(mine.packet in state.held for state in states)
    return held and not proposed


@pytest.mark.parametrize(("log_depth", "warned"), [(4096, False), (12, True)])
def test_a_long_absence_is_accounted_for_as_far_as_the_log_reaches(
    log_depth: int, warned: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A node falls with its packet out, and comes back thirty rounds later to a snapshot."""
    monkeypatch.setattr(decide, "MAX_REPLAY", 4)
    world = World(7, [1.0] * 3)
    for node in world.nodes.values():
        node.disk.log_depth = log_depth
        node.start()
    world.run(60)
    away = list(world.nodes.values())[2]
    while not _is_everywhere(world, away):
        world.run(0.1)
    packet = away.machine.state.round.mine
    away.crash()
    world.run(350)
    chain = [m for m in world.manifests.values() if m.entry_of(away.name) is not None]
    assert packet.packet in [entry.packet for m in chain for entry in m.entries]
    away.start()
    world.run(60)
    assert any("cannot be accounted for" in note for note in away.notes) == warned
    assert min(rounds(world)) >= 30
    assert_one_chain(alive(world))
    assert away.learnt == away.told() + away.machine.state.labour.owed_samples


@pytest.mark.parametrize(("own_depth", "warned"), [(128, False), (3, True)])
def test_what_a_long_partition_told_is_owed_again_as_far_as_its_packets_are_there(
    own_depth: int, warned: bool
) -> None:
    world = World(8, [1.0] * 5)
    for node in world.nodes.values():
        node.disk.own_depth = own_depth
        node.start()
    world.run(60)
    names = list(world.nodes)
    world.islands = [set(names[:3]), set(names[3:])]
    world.run(150)
    world.islands = []
    world.run(60)
    assert_one_chain(alive(world))
    losers = [world.nodes[name] for name in names[3:]]
    for node in losers:
        assert any("lighter chain" in note for note in node.notes)
        assert any(" are lost: " in note for note in node.notes) == warned


@pytest.mark.parametrize("seed", range(4))
def test_a_schedule_of_trouble_ends_with_all_promises_kept(seed: int) -> None:
    world = schedule.run(seed)
    assert sum(node.learnt for node in world.nodes.values()) > 0


@settings(max_examples=25)
@given(
    seed=st.integers(0, 2**32),
    size=st.integers(2, 7),
    loss=st.sampled_from([0.0, 0.1, 0.3]),
    slowest=st.sampled_from([1.0, 0.5, 0.2]),
)
def test_any_schedule_of_faults_ends_in_one_chain_that_goes_on(
    seed: int, size: int, loss: float, slowest: float
) -> None:
    world = World(seed, [1.0] * (size - 1) + [slowest], Faults(delay=(0.01, 1.5), loss=loss))
    nodes = list(world.nodes.values())
    for node in nodes:
        world.at(world.random.uniform(0, 60), node.start)
    for _ in range(world.random.randint(0, 6)):
        victim = world.random.choice(nodes[1:])
        when = world.random.uniform(60, 240)
        world.at(when, victim.crash)
        world.at(
            when + world.random.uniform(1, 40), lambda v=victim: None if v.alive else v.start()
        )
    world.run(300)
    for node in nodes:
        if not node.alive:
            node.start()
    world.faults = Faults()
    world.run(60)
    before = min(rounds(world))
    world.run(250)
    assert_one_chain(nodes)
    assert min(rounds(world)) >= before + 3, [n.machine.why() for n in nodes]
    assert max(rounds(world)) - min(rounds(world)) <= 1
