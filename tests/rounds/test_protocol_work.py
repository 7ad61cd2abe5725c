"""docs/protocol.md, sentence by sentence: training while others are waited for, and fair turns."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from demoloco.rounds import effects as ef
from demoloco.rounds import events as ev
from demoloco.rounds.rules import head_of
from demoloco.types import Manifest, Phase
from tests.rounds.desk import GENESIS, PACE, Desk, PeerId, manifest, offer

TIMED: dict[str, Any] = {"round_seconds": 8.0}
TWO = replace(PACE, max_contributors=2)


# -- training while others are waited for ----------------------------------------------------------
def test_a_worker_whose_steps_are_done_trains_on_until_the_round_is_closed() -> None:
    """[P131]"""
    desk = Desk().start().see("other")
    mine = desk.contribute()
    assert desk.wants(ef.Train) == [ef.Train(2, 10)]
    desk.train(10)
    assert desk.wants(ef.Train) == [ef.Train(2, None)]
    desk.wake(100.0)
    assert desk.wants(ef.Cut) == []
    desk.get(manifest(GENESIS, [mine], "founder"))
    assert desk.wants(ef.Cut) == [ef.Cut(1)]
    desk.train(7)
    assert desk.wants(ef.Contribute) == [ef.Contribute(2, desk.head.digest, 17)]


@pytest.mark.parametrize("settings", [{}, TIMED])
def test_without_overlap_the_worker_rests_until_the_round_is_applied(
    settings: dict[str, Any],
) -> None:
    """[P132]"""
    desk = Desk(overlap=0, **settings).start().see("other")
    if settings:
        desk.wake(8.0)
    mine = desk.contribute()
    assert desk.wants(ef.Train) == []
    desk.wake(100.0)
    assert desk.wants(ef.Train) == []
    desk.get(manifest(GENESIS, [mine], "founder"))
    assert desk.wants(ef.Train) == [ef.Train(2, None if settings else 10)]


def test_with_a_time_the_packet_is_made_when_it_is_up() -> None:
    """[P133]"""
    desk = Desk(**TIMED).start().see("other")
    desk.wake(7.9)
    assert desk.wants(ef.Cut) == []
    desk.wake(0.1)
    assert desk.wants(ef.Cut) == [ef.Cut(1)]
    mine = desk.contribute(3)
    assert mine.samples == 3
    assert desk.wants(ef.Train) == [ef.Train(2, None)]
    desk.get(manifest(GENESIS, [mine], "founder"))
    desk.wake(7.9)
    assert desk.wants(ef.Cut) == []
    desk.wake(0.1)
    assert desk.wants(ef.Cut) == [ef.Cut(1)]


def test_with_a_time_who_hears_of_a_quorum_of_the_others_makes_its_packet_at_once() -> None:
    """[P134]"""
    desk = Desk(**TIMED).settle_round("one", "two", "three")
    desk.hear(ev.OffersHeard(PeerId("one"), (offer("one", desk.head),)), after=1.0)
    assert desk.wants(ef.Cut) == []
    desk.hear(ev.OffersHeard(PeerId("new"), (offer("new", desk.head),)))
    assert desk.wants(ef.Cut) == []
    desk.hear(ev.OffersHeard(PeerId("two"), (offer("two", desk.head),)))
    assert desk.wants(ef.Cut) == [ef.Cut(1)]
    desk.contribute(1)
    assert desk.wants(ef.Train) == [ef.Train(3, None)]


def test_with_a_time_too_a_node_trains_on_while_its_packet_is_out() -> None:
    """[P135]"""
    desk = Desk(**TIMED).start().see("other")
    desk.wake(8.0)
    mine = desk.contribute(3)
    desk.wake(100.0)
    assert desk.wants(ef.Cut) == []
    desk.get(manifest(GENESIS, [mine], "founder"))
    assert desk.wants(ef.Cut) == [ef.Cut(1)]


# -- fair turns ------------------------------------------------------------------------------------
def _crowd(me: str, *contributors: str, **settings: Any) -> Desk:
    """One of `a`, `b`, `c`, `d`, of whom two fit into a round, after rounds of one each."""
    rounds: list[Manifest] = []
    head, before = GENESIS, "founder"
    for who in contributors:
        rounds.append(manifest(head, [offer(who, head)], before, (before,)))
        head, before = head_of(rounds[-1]), who
    desk = Desk(me, pace=TWO, **settings)
    for peer in sorted({"a", "b", "c", "d"} - {me}):
        desk.see(peer, head)
    return desk.start(*rounds)


def _in_turn(desk: Desk) -> tuple[set[str], set[str]]:
    """Who is expected, and who else may come."""
    state = desk.machine.state
    assert state.round is not None
    assert state.round.turns is not None
    turns = state.round.turns[2]
    return set(turns.expected), set(turns.slow)


def _without_me(desk: Desk) -> Manifest:
    """The round after `a` had its turn, in which it is not."""
    return manifest(desk.head, [offer("c", desk.head), offer("d", desk.head)], "a", ("a",))


def test_who_has_waited_longest_is_in_turn() -> None:
    """[P136]"""
    assert _in_turn(_crowd("a", "b", "a")) == ({"c", "d"}, set())
    views = [_in_turn(_crowd(me)) for me in "abcd"]
    assert len(views[0][0]) == 2
    assert all(view == views[0] for view in views)
    few = _crowd("a", "b", "a")
    few.hear(ev.MemberLost(PeerId("c")), ev.MemberLost(PeerId("d")))
    assert _in_turn(few) == ({"a", "b"}, set())


def test_who_missed_its_turn_may_come_and_takes_nobody_s_place() -> None:
    """[P137]"""
    desk = _crowd("a", "d", "a", "b", "c")  # all can have a turn within two rounds
    assert _in_turn(desk) == ({"b", "c"}, {"a", "d"})
    desk.train()
    assert len(desk.wants(ef.Contribute)) == 1
    empty = _crowd("d", "a", "b", "c", "d", "d", "d")  # one place is left
    assert _in_turn(empty) == ({"c", "d"}, {"a", "b"})


def test_who_is_not_in_turn_goes_on_and_owes_it() -> None:
    """[P138]"""
    desk = _crowd("a", "b", "a")
    desk.train()
    assert desk.wants(ef.Contribute) == []
    assert desk.wants(ef.Train) == [ef.Train(4, 10)]
    assert "not in turn" in desk.machine.why()
    assert desk.machine.phase is Phase.TRAINING
    desk.train()
    assert desk.wants(ef.Train) == [ef.Train(4, None)]
    desk.get(_without_me(desk))
    assert desk.wants(ef.Cut) == [ef.Cut(1)]
    desk.train(1)
    assert desk.wants(ef.Contribute) == [ef.Contribute(4, desk.head.digest, 21)]
    timed = _crowd("a", "b", "a", **TIMED)
    timed.wake(8.0)
    assert timed.wants(ef.Cut) == []
    timed.get(_without_me(timed))
    timed.wake(7.9)
    assert timed.wants(ef.Cut) == []
    timed.wake(0.1)
    assert timed.wants(ef.Cut) == [ef.Cut(1)]


def test_when_one_in_turn_goes_the_next_is_in_turn() -> None:
    """[P139]"""
    desk = _crowd("a", "b", "a")
    desk.train()
    desk.hear(ev.MemberLost(PeerId("c")), ev.MemberLost(PeerId("d")))
    assert desk.wants(ef.Cut) == [ef.Cut(1)]
    desk.train(2)
    assert desk.wants(ef.Contribute) == [ef.Contribute(3, desk.head.digest, 12)]


@pytest.mark.parametrize("measured", [False, True])
def test_where_nobody_s_packet_comes_all_are_in_turn(measured: bool) -> None:
    """[P140]"""
    desk = _crowd("a", "b", "a")
    for _ in range(3 if measured else 0):
        desk.machine.state.tempo.gathered(10.0)
    desk.train()
    desk.wake(39.9 if measured else 59.9)
    assert desk.wants(ef.Cut) == []
    desk.wake(0.1)
    assert desk.wants(ef.Cut) == [ef.Cut(1)]
    desk.train(1)
    assert len(desk.wants(ef.Contribute)) == 1
    other = _crowd("a", "b", "a")
    other.train()
    other.receive(offer("c", other.head))
    other.wake(60.0)
    assert other.wants(ef.Cut) == []


def test_a_leaver_is_always_in_turn() -> None:
    """[P141]"""
    desk = _crowd("a", "b", "a")
    desk.hear(ev.LeaveRequested())
    desk.train(4)
    assert desk.wants(ef.Contribute) == [ef.Contribute(3, desk.head.digest, 4)]
