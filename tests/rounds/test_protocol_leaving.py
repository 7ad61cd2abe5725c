"""docs/protocol.md, sentence by sentence: leaving."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from demoloco.rounds import effects as ef
from demoloco.rounds import events as ev
from demoloco.rounds.decide import ENOUGH, MANY
from demoloco.rounds.rules import head_of
from demoloco.rounds.tempo import TURN_UNMEASURED
from demoloco.types import Phase
from tests.rounds.desk import (
    GENESIS,
    PACE,
    Desk,
    PeerId,
    in_line,
    manifest,
    member,
    offer,
)

FOUNDER = PeerId("founder")


def test_a_leaver_cuts_its_steps_and_tells_them() -> None:
    """[P90]"""
    desk = Desk().start().see("founder")
    desk.hear(ev.LeaveRequested())
    assert desk.wants(ef.Cut) == [ef.Cut()]
    desk.train(3)
    assert desk.wants(ef.Contribute) == [ef.Contribute(1, GENESIS.digest, 3)]
    assert desk.wants(ef.Stop) == []


def _leaver(**settings: Any) -> Desk:
    """Its last packet is out."""
    desk = Desk(**settings).start().see("one").see("two")
    desk.hear(ev.LeaveRequested())
    desk.train(3)
    desk.hear(ev.Contributed(offer("me", samples=3), 1.0))
    return desk


def _announce(desk: Desk, *peers: str) -> None:
    """These have the leaver's packet."""
    for peer in peers:
        desk.hear(ev.OffersHeard(PeerId(peer), (offer("me", samples=3),)))


def test_a_leaver_stops_when_all_who_take_part_have_announced_its_packet() -> None:
    """[P91]"""
    desk = _leaver()
    _announce(desk, "one")
    assert desk.wants(ef.Stop) == []
    _announce(desk, "two")
    assert desk.wants(ef.Stop) == [ef.Stop()]
    out = Desk("founder").settle_round("one")
    mine = out.contribute()
    out.hear(ev.LeaveRequested())
    out.train(0)  # nothing yet for the next round
    out.hear(ev.OffersHeard(PeerId("one"), (mine,)))
    assert out.wants(ef.Stop) == [ef.Stop()]


def test_the_packet_of_a_leaver_is_announced_at_once() -> None:
    """[P92]"""
    for phase, announced in ((Phase.LEAVING, [2]), (Phase.EXCHANGING, [])):
        desk = Desk().start().see("one").see("two")
        desk.receive(offer("one"))
        desk.see("two", phase=phase)
        desk.receive(offer("two"))
        assert [len(wish.offers) for wish in desk.wants(ef.Announce)] == announced


def test_a_leaver_does_not_stop_while_a_manifest_without_its_packet_is_under_way() -> None:
    """[P93]"""
    desk = _leaver()
    without = manifest(GENESIS, [offer("one")], "founder")
    desk.hear(ev.ManifestHeard(FOUNDER, without))
    _announce(desk, "one", "two")
    assert desk.wants(ef.Stop) == []
    desk.hear(ev.PacketFetched(offer("one").packet, 1.0))
    desk.apply()
    assert desk.wants(ef.Contribute) == [ef.Contribute(2, desk.head.digest, 3)]


def test_a_leaver_in_a_crowd_waits_for_the_manifest() -> None:
    """[P94]"""
    for most, stops in ((3, 1), (2, 0)):
        desk = _leaver(pace=replace(PACE, max_contributors=most))
        _announce(desk, "one", "two")
        assert len(desk.wants(ef.Stop)) == stops


def test_a_leaver_whose_packet_is_in_waits_until_the_others_have_the_round() -> None:
    """[P95]"""
    desk = _leaver()
    first = manifest(GENESIS, [offer("me", samples=3)], "founder")
    desk.get(first)
    assert desk.wants(ef.Stop) == []
    desk.see("one", head_of(first))
    assert desk.wants(ef.Stop) == []
    desk.see("two", head_of(first))
    assert desk.wants(ef.Stop) == [ef.Stop()]


def test_a_leaver_left_out_tells_it_in_the_next_round() -> None:
    """[P96]"""
    desk = _leaver()
    desk.get(manifest(GENESIS, [offer("one")], "founder"))
    assert desk.wants(ef.Contribute) == [ef.Contribute(2, desk.head.digest, 3)]
    trained_on = Desk("founder").settle_round("one")
    mine = trained_on.contribute()
    trained_on.hear(ev.LeaveRequested())
    assert trained_on.wants(ef.Cut) == [ef.Cut()]
    trained_on.train(4)
    trained_on.hear(ev.OffersHeard(PeerId("one"), (mine,)))
    assert trained_on.wants(ef.Stop) == []
    trained_on.get(manifest(trained_on.head, [mine], "founder"))
    assert trained_on.wants(ef.Contribute) == [ef.Contribute(3, trained_on.head.digest, 4)]


def test_a_leaver_stops_at_the_latest_when_its_time_is_up() -> None:
    """[P97]"""
    desk = _leaver()
    desk.wake(19.9)
    assert desk.wants(ef.Stop) == []
    desk.wake(0.1)
    assert desk.wants(ef.Stop) == [ef.Stop()]


def test_a_leaver_alone_closes_its_last_round_itself() -> None:
    """[P98]"""
    desk = Desk("founder").start()
    desk.hear(ev.LeaveRequested())
    desk.train(3)
    desk.hear(ev.Contributed(offer("founder", samples=3), 1.0))
    assert desk.wants(ef.Stop) == []
    desk.hear(ev.ManifestHeard(FOUNDER, desk.seal()))
    desk.apply()
    assert desk.wants(ef.Stop) == [ef.Stop()]


@pytest.mark.parametrize(("me", "other"), [("one", "two"), ("two", "one")])
def test_where_all_leave_they_close_their_last_round_together(me: str, other: str) -> None:
    """[P99]"""
    desk = Desk(me).settle_round(other)
    parent = desk.head
    desk.hear(ev.LeaveRequested())
    desk.train(3)
    desk.hear(ev.Contributed(offer(me, parent, samples=3), 1.0))
    desk.see(other, parent, Phase.LEAVING)
    assert desk.wants(ef.Propose) == []  # the other's packet is to come
    desk.receive(offer(other, parent))
    if in_line(parent.digest, me, other)[0] != me:
        assert desk.wants(ef.Propose) == []  # the other's manifest is to come
        desk.wake(TURN_UNMEASURED)
    desk.hear(ev.ManifestHeard(desk.me, desk.seal()))
    desk.apply()
    assert desk.wants(ef.Stop) == []  # the other is to have it
    desk.see(other, desk.head, Phase.LEAVING)
    assert desk.wants(ef.Stop) == [ef.Stop()]


def _one_of_many(phase: Phase = Phase.TRAINING, others: int = MANY + 1) -> tuple[Desk, list[str]]:
    """A leaver whose packet for round 2 is out, and the others in the order of the line."""
    names = [f"peer{n:02d}" for n in range(others)]
    desk = Desk("leaver").settle_round(*names)
    for name in names:
        desk.see(name, desk.head, phase)
    desk.hear(ev.LeaveRequested())
    desk.train(3)
    desk.hear(ev.Contributed(offer("leaver", desk.head, samples=3), 1.0))
    return desk, list(in_line(desk.head.digest, *names))


def test_a_leaver_of_a_large_swarm_stops_when_the_first_in_the_line_have_its_packet() -> None:
    """[P142]"""
    for others, stops in ((MANY, 0), (MANY + 1, 1)):
        desk, line = _one_of_many(others=others)
        mine = (offer("leaver", desk.head, samples=3),)
        for peer in (*line[ENOUGH:], *line[: ENOUGH - 1]):
            desk.hear(ev.OffersHeard(PeerId(peer), mine))
            assert desk.wants(ef.Stop) == []
        desk, line = _one_of_many(others=others)
        for peer in line[:ENOUGH]:
            desk.hear(ev.OffersHeard(PeerId(peer), mine))
        assert len(desk.wants(ef.Stop)) == stops


@pytest.mark.parametrize(("phase", "needed"), [(Phase.TRAINING, ENOUGH), (Phase.LEAVING, MANY + 1)])
def test_a_leaver_of_a_large_swarm_stops_when_some_have_the_round_with_its_packet(
    phase: Phase, needed: int
) -> None:
    """[P143]"""
    desk, line = _one_of_many(phase)
    desk.get(manifest(desk.head, [offer("leaver", desk.head, samples=3)], line[0], ("founder",)))
    for peer in line[:needed]:
        assert desk.wants(ef.Stop) == []
        desk.see(peer, desk.head, phase)
    assert desk.wants(ef.Stop) == [ef.Stop()]
    few, line = _one_of_many()
    for peer in line[1:]:
        few.see(peer, few.head, Phase.CATCHING_UP)
    few.get(manifest(few.head, [offer("leaver", few.head, samples=3)], line[0], ("founder",)))
    few.see(line[0], few.head)
    assert few.wants(ef.Stop) == [ef.Stop()]


def test_a_second_request_forces_the_end() -> None:
    """[P100]"""
    desk = _leaver()
    desk.hear(ev.LeaveRequested(), after=10.0)
    assert desk.wants(ef.Stop) == []
    desk.hear(ev.LeaveRequested(now=True))
    assert desk.wants(ef.Stop) == [ef.Stop()]


def test_a_joiner_leaves_at_once() -> None:
    """[P101]"""
    desk = Desk()
    desk.hear(ev.LeaveRequested())
    assert desk.wants(ef.Stop) == [ef.Stop()]


def test_after_the_last_round_that_was_asked_for_it_leaves() -> None:
    """[P102]"""
    desk = Desk("founder", stop_after=1).start().see("other")
    desk.contribute()
    assert desk.wants(ef.Train) == []
    desk.hear(ev.ManifestHeard(FOUNDER, desk.seal()))
    desk.apply()
    assert desk.machine.phase is Phase.LEAVING
    assert desk.wants(ef.Train) + desk.wants(ef.Contribute) + desk.wants(ef.Stop) == []
    desk.see("other", desk.head)
    assert desk.wants(ef.Stop) == [ef.Stop()]
    again = Desk("founder", stop_after=1).start(manifest(GENESIS, [offer("founder")], "founder"))
    assert again.machine.phase is Phase.LEAVING


def test_after_the_end_nothing_is_wanted() -> None:
    """[P103]"""
    desk = Desk().start()
    desk.hear(ev.LeaveRequested(now=True))
    assert desk.hear(ev.WorkerCame(), ev.MemberSeen(member("one", GENESIS)), ev.Woken()) == []
    assert desk.machine.why() == "left"
