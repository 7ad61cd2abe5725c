"""Fair turns, as properties of the rule and of many machines."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.simulator.parts import PACE, Faults, digest
from benchmarks.simulator.world import World
from demoloco.rounds.turns import taken, turns
from demoloco.types import PeerId, Round
from tests.rounds.desk import GENESIS, offer
from tests.schedule import alive, assert_one_chain


@given(size=st.integers(1, 40), most=st.integers(1, 40), seed=st.integers(0, 2**32))
def test_where_all_come_when_it_is_their_turn_nobody_waits_for_longer_than_all_take(
    size: int, most: int, seed: int
) -> None:
    peers = [PeerId(f"peer{n:02d}") for n in range(size)]
    last: dict[PeerId, Round] = {}
    cycle = -(-size // most)
    for number in range(1, 4 * cycle + 1):
        now = turns(peers, last, digest(seed, number), Round(number), most)
        assert len(now.expected) == min(size, most)
        assert not now.slow
        last |= dict.fromkeys(now.expected, Round(number))
        assert all(number - last.get(peer, 0) < cycle for peer in peers)


@given(
    last=st.dictionaries(st.integers(0, 20), st.integers(1, 30), max_size=21),
    most=st.integers(1, 24),
)
def test_whatever_the_chain_tells_as_many_as_fit_are_expected(
    last: dict[int, int], most: int
) -> None:
    peers = [PeerId(f"peer{n:02d}") for n in range(21)]
    told = {peers[n]: Round(round_) for n, round_ in last.items()}
    now = turns(peers, told, digest("parent"), Round(31), most)
    assert len(now.expected) == min(21, most)
    assert not now.expected & now.slow
    assert now == turns(peers[::-1], told, digest("parent"), Round(31), most)
    chosen = taken([offer(peer) for peer in peers], told, GENESIS.digest, most, peers[:1])
    assert len(chosen) == min(21, most)
    assert chosen[0].contributor == peers[0]


def test_two_much_faster_ones_among_nine_take_no_turn_of_the_others() -> None:
    """Of three in turn two may be fast ones, which fill the gap that a late one leaves."""
    world = World(1, [1.0] * 7 + [5.0] * 2)
    world.faults = Faults(delay=(0.01, 0.1))
    world.pace = replace(PACE, max_contributors=3)
    for node in world.nodes.values():
        node.start()
    world.run(400)
    shares = _shares(world)
    assert min(shares[:7]) >= 0.2
    assert max(shares[7:]) <= 0.4


@pytest.mark.parametrize(
    ("fast", "slow", "timed"), [(0, 0, 0.0), (2, 0, 0.0), (0, 1, 0.0), (1, 1, 10.0)]
)
def test_equal_members_have_equally_many_turns(fast: int, slow: int, timed: float) -> None:
    """A few much faster or slower ones take nobody's turn, and the slow are not waited for."""
    size, most = 12, 4
    world = World(1, [1.0] * (size - fast - slow) + [5.0] * fast + [0.2] * slow)
    world.faults = Faults(delay=(0.01, 0.1))
    world.pace, world.round_seconds = replace(PACE, max_contributors=most), timed
    for node in world.nodes.values():
        node.start()
    world.run(600)
    equal = _shares(world)[: size - slow]
    assert min(equal) > 0.75 * most / size
    assert max(equal) < 1.3 * most / size


def _shares(world: World) -> list[float]:
    """Of the rounds, the beginning left out, in how many each node is."""
    assert_one_chain(alive(world))
    founder = world.nodes[world.creator]
    assert founder.disk.head is not None
    chain = founder.disk.chain(founder.disk.head.digest)[8:]
    assert len(chain) >= 24
    count = Counter(entry.contributor for each in chain for entry in each.entries)
    return [count[name] / len(chain) for name in world.nodes]
