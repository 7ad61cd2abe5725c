"""Faults of the network and the clock around three real nodes, one after the other. The story is
told once; each test is one claim about it."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any

import pytest

from benchmarks.cables import Network, make_network, p2pd_of
from benchmarks.daemons import Daemon, World, sets, until
from demoloco.node.report import ALONE
from demoloco.types import Manifest, PeerId
from demoloco_proto.v1.control_pb2 import StatusReply
from tests.e2e.on_disk import chain_on_disk
from tests.faults.clocks import shifted, sweep

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(1800)]

PATIENCE = 240.0
"""Each wait is for a fact; a machine that is busy with other things brings it late."""

SETTINGS = sets(inner_steps=16, evaluate_every=0, threads=1, task__depth=1, task__width=64)


@dataclass
class Story:
    """What was seen."""

    offs: dict[str, list[str]] = field(default_factory=dict)  # lines about clocks
    p2pd_lines: list[str] = field(default_factory=list)
    p2pd_addresses: list[list[str]] = field(default_factory=list)
    left_out: list[int] = field(default_factory=list)  # before and after p2pd died
    lost_why: str = ""
    rounds_while_stopped: int = 0
    parted: list[int] = field(default_factory=list)  # rounds that each side made alone
    undone: int = 0
    parted_words: list[str] = field(default_factory=list)
    learnt: dict[str, list[int]] = field(default_factory=dict)  # before and after the healing
    told: dict[str, dict[str, int]] = field(default_factory=dict)  # node → head → samples told
    moved: list[list[str]] = field(default_factory=list)  # addresses before and after
    behind_took_rounds: int = 0
    after_the_last_went: list[dict[str, Any]] = field(default_factory=list)
    noted_away: list[str] = field(default_factory=list)
    no_longer: list[str] = field(default_factory=list)
    peers: dict[str, str] = field(default_factory=dict)  # node → peer id
    chains: dict[str, list[Manifest]] = field(default_factory=dict)  # on disk, oldest first


@pytest.fixture(scope="module")
def network() -> Iterator[Network]:
    with closing(make_network()) as made:
        yield made


@pytest.fixture(scope="module")
def story(network: Network, place: World) -> Story:
    told = Story()
    nodes = first, second, third = [place.daemon(name) for name in ("first", "second", "third")]
    network.join(first)
    network.join(second)
    network.join(third, *shifted(60))
    first.start(*SETTINGS)
    for node in (second, third):
        node.start("--peers", first.address, *sets(threads=1))
    for node in nodes:
        contributes(node, 2)
    ahead = until(lambda: third.said("clock=off"), PATIENCE, "the one that is ahead says so")
    told.offs = {"ahead": ahead, "right": first.said("clock=off")}
    told.peers = {node.name: node.status.peer_id for node in nodes}
    _p2pd_dies(told, second)
    _one_hangs(told, first, second, third)
    _parted(told, network, nodes)
    _another_port_and_an_earlier_clock(told, network, first, third)
    _seeds_gone(told, first, second, third)
    for node in nodes:
        if node.alive():
            node.kill()
        told.chains[node.name] = chain_on_disk(node)
    sweep()
    return told


def contributes(node: Daemon, times: int = 1) -> StatusReply:
    """Wait until it is so often more in a round."""
    goal = node.ready().rounds_contributed + times
    return node.wait_for(lambda status: status.rounds_contributed >= goal, PATIENCE)


def _p2pd_dies(told: Story, node: Daemon) -> None:
    before = node.status
    p2pd_of(node).send_signal(signal.SIGKILL)
    until(lambda: node.said("p2pd=restarted"), PATIENCE, "p2pd is rebuilt")
    after = contributes(node, 3)
    told.p2pd_lines = node.said("p2pd=")
    told.p2pd_addresses = [list(before.addresses), list(after.addresses)]
    told.left_out = [before.rounds_left_out, after.rounds_left_out]


def _one_hangs(told: Story, first: Daemon, second: Daemon, hung: Daemon) -> None:
    """Its p2pd takes every connection; behind it nobody answers."""
    before = len(went_from(first, hung))
    hung.signal(signal.SIGSTOP)
    try:
        began = first.status.round
        lost = "the one that hangs is lost"
        told.lost_why = until(lambda: went_from(first, hung)[before:], PATIENCE, lost)[0]
        for node in (first, second):
            node.wait_for_round(began + 3, PATIENCE)
        told.rounds_while_stopped = min(first.status.round, second.status.round) - began
    finally:
        hung.signal(signal.SIGCONT)
    contributes(hung)


def went_from(node: Daemon, other: Daemon) -> list[str]:
    """Why it lost the other, each time."""
    name = other.status.peer_id
    return [one["why"] for one in node.lines("member went") if name.endswith(one["peer"])]


def _parted(told: Story, network: Network, nodes: list[Daemon]) -> None:
    first, _, alone = nodes
    before_the_cut = len(alone.said("alone"))
    network.cut(alone)
    until(
        lambda: alone.said("alone")[before_the_cut:],
        PATIENCE,
        "the one that is cut off says that it is alone",
    )
    since = [first.status.round, alone.status.round]
    for node in (first, alone):
        node.wait_for_round(node.status.round + 3, PATIENCE)
    told.parted = [first.status.round - since[0], alone.status.round - since[1]]
    before = {node.name: learnt(node.status) for node in nodes}
    network.mend(alone)
    until(lambda: left_a_chain(nodes), PATIENCE, "one side takes the other's chain")
    for node in nodes:
        contributes(node, 2)
    told.parted_words = left_a_chain(nodes)
    told.undone = max(len(node.lines("round undone")) for node in nodes)
    for node in nodes:
        at_least = before[node.name]
        after = node.wait_for(lambda status, least=at_least: learnt(status) >= least, PATIENCE)
        told.learnt[node.name] = [at_least, learnt(after)]
        told.told[node.name] = {}
        for status in node.statuses:  # the first with a head: then it and the figures agree
            told.told[node.name].setdefault(status.head, status.samples_told)


def learnt(status: StatusReply) -> int:
    return int(status.samples_told + status.samples_owed)


def left_a_chain(nodes: list[Daemon]) -> list[str]:
    return [line for node in nodes for line in node.said("left ") if "lighter chain" in line]


def _another_port_and_an_earlier_clock(
    told: Story, network: Network, first: Daemon, odd: Daemon
) -> None:
    """Its clock is two minutes earlier than in the last life, so its words are older than those
    that the others have."""
    before, peer = list(odd.status.addresses), odd.status.peer_id
    odd.kill()
    with network.hold_port(odd, before[0]) as holder:
        network.join(odd, *shifted(-60))
        odd.start()
        odd.ready()
        began = first.status.round
        contributes(odd)
        told.behind_took_rounds = first.status.round - began
        holder.communicate()
    news = first.wait_for(
        lambda status: before[0] not in (full_addresses(status, peer) or before), PATIENCE
    )
    known = full_addresses(news, peer)
    told.moved = [before, known, list(odd.status.addresses)]
    told.offs["behind"] = until(lambda: odd.said("clock=off"), PATIENCE, "it says that it is off")


def full_addresses(status: StatusReply, peer: str) -> list[str]:
    """Where it knows this peer to be."""
    found = (one.addresses for one in status.members if one.peer_id == peer)
    return [f"{one}/p2p/{peer}" for addresses in found for one in addresses]


def _seeds_gone(told: Story, first: Daemon, second: Daemon, left: Daemon) -> None:
    before = len(left.said("alone"))  # it may have come up slowly, too
    for node in (first, second):
        node.kill()
    until(lambda: left.said("alone")[before:], PATIENCE, "it says that it is alone")
    left.wait_for_round(left.status.round + 2, PATIENCE)
    facts = left.facts()
    went = [number for number, one in enumerate(facts) if one.get("event") == "member went"]
    told.after_the_last_went = facts[went[-1] + 1 :]
    second.start()  # its only seed is still gone
    left.wait_for(lambda status: len(status.members) == 2, PATIENCE)
    contributes(second)
    told.noted_away = second.said("seed=away")
    told.no_longer = left.said("no longer alone")


# -- p2pd ------------------------------------------------------------------------------------------
def test_a_node_whose_p2pd_dies_says_so_and_gets_a_new_one_at_the_same_port(story: Story) -> None:
    died, *_, restarted = story.p2pd_lines  # between them, perhaps, a vain try at the port
    assert died.startswith("p2pd=died why=it ended with code -9; it is started again after")
    assert restarted == "p2pd=restarted restarts=1"
    assert story.p2pd_addresses[0] == story.p2pd_addresses[1]


def test_a_dead_p2pd_costs_no_round_beyond_the_one_under_way(story: Story) -> None:
    before, after = story.left_out
    assert after - before <= 1


# -- one that accepts and never answers ------------------------------------------------------------
def test_a_node_that_hangs_is_lost_and_the_others_go_on(story: Story) -> None:
    assert "no sign of life" in story.lost_why
    assert story.rounds_while_stopped >= 3


# -- two halves ------------------------------------------------------------------------------------
def test_both_sides_of_a_partition_train_on(story: Story) -> None:
    assert min(story.parted) >= 3


def test_where_they_meet_the_heavier_chain_wins_and_one_line_says_so(story: Story) -> None:
    (line,) = story.parted_words
    assert line.startswith(f"left {story.undone} round(s) of a lighter chain for")
    rounds = [{m.round: m.digest for m in chain} for chain in story.chains.values()]
    common = set.intersection(*(set(one) for one in rounds))
    assert len(common) > 6
    assert all(len({one[number] for one in rounds}) == 1 for number in common)


@pytest.mark.parametrize("name", ["first", "second", "third"])
def test_what_a_node_learnt_on_either_side_is_told_or_owed(story: Story, name: str) -> None:
    before, after = story.learnt[name]
    assert after >= before
    on_chain, heads = 0, {}
    for manifest in story.chains[name]:
        entry = manifest.entry_of(PeerId(story.peers[name]))
        on_chain += entry.samples if entry is not None else 0
        heads[manifest.digest.hex()] = on_chain
    seen = {head: told for head, told in story.told[name].items() if head in heads}
    assert len(seen) > 6
    before_the_log = {told - heads[head] for head, told in seen.items()}  # what was pruned
    assert len(before_the_log) == 1


# -- addresses and clocks --------------------------------------------------------------------------
def test_a_node_whose_port_was_taken_is_found_at_another(story: Story) -> None:
    before, as_others_know, after = story.moved
    assert not set(after) & set(before)
    assert set(as_others_know) == set(after)


def test_a_clock_that_is_off_costs_nothing_and_is_told(story: Story) -> None:
    assert "seconds=60 why=this machine's clock is ahead of" in story.offs["ahead"][0]
    assert "seconds=60 why=this machine's clock is behind" in story.offs["behind"][0]
    assert "timedatectl set-ntp true" in story.offs["ahead"][0]
    assert all("the only other member's" in line for line in story.offs["right"])  # at first


def test_a_node_whose_clock_went_back_takes_part_at_once(story: Story) -> None:
    assert story.behind_took_rounds <= 10  # its old words were good for two minutes


# -- nobody left -----------------------------------------------------------------------------------
def test_a_node_that_is_left_alone_says_so_at_once_and_once(story: Story) -> None:
    events = [one["event"] for one in story.after_the_last_went]
    assert events.count(ALONE) == 1
    assert events.index(ALONE) == 0
    assert story.after_the_last_went[0]["level"] == "warning"


def test_a_node_that_is_left_alone_trains_on(story: Story) -> None:
    lines = story.after_the_last_went
    rounds = [one for one in lines if one["event"] == "round committed"]
    assert len(rounds) >= 2
    assert {one["packets"] for one in rounds} == {1}


def test_a_node_whose_seeds_are_all_gone_meets_those_that_it_noted(story: Story) -> None:
    assert story.no_longer
    assert any("it is dialled for ever" in line for line in story.noted_away)
