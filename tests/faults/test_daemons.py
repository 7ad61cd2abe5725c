"""Faults of the network and the clock around three real nodes, one after the other. The story is
told once; each test is one claim about it."""

from __future__ import annotations

import signal
import socket
import sys
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from demoloco.node.report import ALONE
from demoloco_proto.v1.control_pb2 import StatusReply
from tests.e2e.daemons import Daemon, World, sets, until

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(400)]

SETTINGS = sets(inner_steps=16, evaluate_every=0, threads=1, task__depth=1, task__width=64)
SHIFTED = Path(__file__).parent / "shifted_node.py"


@dataclass
class Story:
    """What was seen."""

    p2pd_lines: list[str] = field(default_factory=list)
    p2pd_addresses: list[list[str]] = field(default_factory=list)
    left_out: list[int] = field(default_factory=list)  # before and after p2pd died
    lost_why: str = ""
    rounds_while_stopped: int = 0
    moved: list[list[str]] = field(default_factory=list)  # addresses before and after
    offs: dict[str, list[str]] = field(default_factory=dict)  # lines about clocks
    behind_took_rounds: int = 0
    alone: list[dict[str, Any]] = field(default_factory=list)
    committed: list[dict[str, Any]] = field(default_factory=list)
    last_member_went: int = 0
    noted_away: list[str] = field(default_factory=list)
    no_longer: list[str] = field(default_factory=list)
    together: StatusReply | None = None


@pytest.fixture(scope="module")
def story(place: World) -> Story:
    told = Story()
    first, second, third = (place.daemon(name) for name in ("first", "second", "third"))
    first.start(*SETTINGS)
    for node in (second, third):
        node.start("--peers", first.address, *sets(threads=1))
    for node in (first, second, third):
        contributes(node, 2)
    _p2pd_dies(told, second)
    _one_hangs(told, first, second, third)
    _a_clock_ahead_and_another_port(told, first, third)
    _a_clock_behind(told, first, third)
    _seeds_gone(told, first, second, third)
    return told


def contributes(node: Daemon, times: int = 1) -> StatusReply:
    """Wait until it is so often more in a round."""
    goal = node.ready().rounds_contributed + times
    return node.wait_for(lambda status: status.rounds_contributed >= goal)


def _p2pd_dies(told: Story, node: Daemon) -> None:
    before = node.status
    (p2pd,) = [process for process in node.family() if process.name() == "p2pd"]
    p2pd.send_signal(signal.SIGKILL)
    until(lambda: node.said("p2pd=restarted"), 60.0, "p2pd is rebuilt")
    after = contributes(node, 3)
    told.p2pd_lines = node.said("p2pd=")
    told.p2pd_addresses = [list(before.addresses), list(after.addresses)]
    told.left_out = [before.rounds_left_out, after.rounds_left_out]


def _one_hangs(told: Story, first: Daemon, second: Daemon, hung: Daemon) -> None:
    """Its p2pd takes every connection; behind it nobody answers."""
    hung.signal(signal.SIGSTOP)
    try:
        began = first.status.round
        went = until(lambda: first.lines("member went"), 60.0, "the one that hangs is lost")
        told.lost_why = went[0]["why"]
        for node in (first, second):
            node.wait_for_round(began + 3)
        told.rounds_while_stopped = min(first.status.round, second.status.round) - began
    finally:
        hung.signal(signal.SIGCONT)
    contributes(hung)


def _a_clock_ahead_and_another_port(told: Story, first: Daemon, odd: Daemon) -> None:
    old = odd.address
    peer, port = odd.status.peer_id, int(old.split("/")[4])
    odd.kill()
    with closing(taken(port)):
        odd.program = [sys.executable, "-P", str(SHIFTED), "60"]
        odd.start()
        contributes(odd, 2)
    told.moved = [[old], [f"{one}/p2p/{peer}" for one in addresses_of(first, peer)]]
    told.moved.append(list(odd.status.addresses))
    told.offs["ahead"] = odd.said("clock=off")
    told.offs["right"] = first.said("clock=off")


def taken(port: int) -> socket.socket:
    """Somebody else listens there now."""
    made = socket.socket()
    made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)

    def bound() -> bool:
        try:
            made.bind(("127.0.0.1", port))
        except OSError:  # the p2pd of the killed node is not gone yet
            return False
        made.listen()
        return True

    until(bound, 20.0, f"port {port} is free")
    return made


def addresses_of(node: Daemon, peer: str) -> list[str]:
    return next(list(one.addresses) for one in node.status.members if one.peer_id == peer)


def _a_clock_behind(told: Story, first: Daemon, odd: Daemon) -> None:
    """Two minutes earlier than in the last life: its words are older than those that others
    have."""
    odd.kill()
    odd.program[-1] = "-60"
    odd.start()
    odd.ready()
    began = first.status.round
    contributes(odd)
    told.behind_took_rounds = first.status.round - began
    told.offs["behind"] = until(lambda: odd.said("clock=off"), 30.0, "it says that it is off")


def _seeds_gone(told: Story, first: Daemon, second: Daemon, left: Daemon) -> None:
    for node in (first, second):
        node.kill()
    until(lambda: left.said("alone"), 60.0, "it says that it is alone")
    left.wait_for_round(left.status.round + 2)
    facts = left.facts()
    told.alone = [one for one in facts if str(one.get("event")).startswith("alone")]
    went = [number for number, one in enumerate(facts) if one.get("event") == "member went"]
    told.committed = [one for one in facts[went[-1] :] if one.get("event") == "round committed"]
    order = [str(one.get("event")) for one in facts[went[-1] :]]
    told.last_member_went = order.index(ALONE)
    second.start()  # its only seed is still gone
    told.together = left.wait_for(lambda status: len(status.members) == 2)
    contributes(second)
    told.noted_away = second.said("seed=away")
    told.no_longer = left.said("no longer alone")


# -- p2pd ------------------------------------------------------------------------------------------
def test_a_node_whose_p2pd_dies_says_so_and_gets_a_new_one_at_the_same_port(story: Story) -> None:
    died, restarted = story.p2pd_lines
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


# -- addresses and clocks --------------------------------------------------------------------------
def test_a_node_whose_port_was_taken_is_found_at_another(story: Story) -> None:
    before, as_others_know, after = story.moved
    assert after != before
    assert set(as_others_know) == set(after)


def test_a_clock_that_is_off_costs_nothing_and_is_told(story: Story) -> None:
    assert "seconds=60 why=this machine's clock is ahead of" in story.offs["ahead"][0]
    assert "seconds=60 why=this machine's clock is behind" in story.offs["behind"][0]
    assert "timedatectl set-ntp true" in story.offs["ahead"][0]
    assert story.offs["right"] == []


def test_a_node_whose_clock_went_back_takes_part_within_two_rounds(story: Story) -> None:
    assert story.behind_took_rounds <= 2


# -- nobody left -----------------------------------------------------------------------------------
def test_a_node_that_is_left_alone_says_so_once_and_within_one_round(story: Story) -> None:
    assert [one["event"] for one in story.alone] == [ALONE]
    assert story.alone[0]["level"] == "warning"
    assert story.last_member_went == 1  # the line after the last member went


def test_a_node_that_is_left_alone_trains_on(story: Story) -> None:
    assert len(story.committed) >= 2
    assert {one["packets"] for one in story.committed} == {1}


def test_a_node_whose_seeds_are_all_gone_meets_those_that_it_noted(story: Story) -> None:
    assert story.together is not None
    assert story.no_longer == ["no longer alone"]
    assert any("it is dialled for ever" in line for line in story.noted_away)
