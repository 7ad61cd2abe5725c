"""docs/protocol.md, sentence by sentence: a round, proposing and succession, fetching."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from benchmarks.simulator.parts import digest
from demoloco.rounds import effects as ef
from demoloco.rounds import events as ev
from demoloco.rounds.facts import MAX_RETRY_SECONDS, MAX_TRIES
from demoloco.rounds.open_round import MAX_OFFERS, MAX_PARENTS
from demoloco.rounds.rules import head_of, rank_of
from demoloco.rounds.tempo import TURN_UNMEASURED
from demoloco.types import Phase
from tests.rounds.desk import (
    GENESIS,
    PACE,
    Desk,
    PeerId,
    chain,
    in_line,
    manifest,
    offer,
)

TURN = TURN_UNMEASURED


# -- a round ---------------------------------------------------------------------------------------
def test_the_worker_is_settled_then_trains() -> None:
    """[P1]"""
    desk = Desk().start(*chain(2), worker=False)
    desk.hear(ev.WorkerCame())
    assert desk.wanted[:2] == [ef.Settle(), ef.Train(3, 10)]
    for owed, left in ((7, 3), (9, 1), (10, 1), (25, 1)):
        back = Desk().start(owed_samples=owed)
        assert back.wants(ef.Train) == [ef.Train(1, left)]
        back.contribute(left)
        assert back.wants(ef.Train) == [ef.Train(2, 10)]


def test_one_packet_tells_all_that_is_owed_and_training_goes_on_for_the_next_round() -> None:
    """[P2]"""
    desk = Desk().start(owed_samples=7).see("other")
    desk.train(10)
    assert desk.wants(ef.Contribute) == [ef.Contribute(1, GENESIS.digest, 17)]
    assert desk.wants(ef.Train) == []
    desk.hear(ev.Contributed(offer("me", samples=17), 1.0))
    assert desk.wants(ef.Train) == [ef.Train(2, 10)]
    desk.get(manifest(GENESIS, [offer("me", samples=17)], "founder"))
    desk.train(10)
    assert desk.wants(ef.Contribute) == [ef.Contribute(2, desk.head.digest, 10)]


def test_a_packet_is_told_only_when_it_is_durable() -> None:
    """[P3]"""
    desk = Desk().start().see("other")
    desk.train()
    assert desk.wants(ef.Announce) == []
    desk.hear(ev.Contributed(offer("me"), 1.0))
    assert desk.wants(ef.Announce) == [ef.Announce((offer("me"),))]


def test_all_that_is_held_is_announced_again_and_again() -> None:
    """[P4]"""
    desk = Desk().start()
    mine = desk.contribute()
    assert desk.wants(ef.Announce) == []  # nobody is there
    desk.see("one").see("two")
    desk.receive(offer("one"))
    desk.wake(2.9)
    assert desk.wants(ef.Announce) == []
    desk.wake(0.1)
    (announce,) = desk.wants(ef.Announce)
    assert set(announce.offers) == {mine, offer("one")}


def test_an_announced_packet_is_fetched_from_its_holders_then_from_any_member() -> None:
    """[P5]"""
    desk = Desk().start().see("other").see("third")
    desk.hear(ev.OffersHeard(PeerId("third"), (offer("one"),)))
    (fetch,) = desk.wants(ef.Fetch)
    assert fetch.holders == ("third", "one", "other")


def test_a_packet_is_in_when_it_is_here_and_checked() -> None:
    """[P6]"""
    desk = Desk("founder").settle_round("other")
    desk.contribute()
    theirs = offer("other", desk.head)
    desk.hear(ev.OffersHeard(PeerId("other"), (theirs,)))
    assert desk.wants(ef.Propose) == []
    desk.hear(ev.PacketFetched(theirs.packet, 1.0))
    (propose,) = desk.wants(ef.Propose)
    assert [entry.contributor for entry in propose.draft.entries] == ["founder", "other"]


def test_a_round_closes_at_once_when_all_are_in() -> None:
    """[P7]"""
    desk = Desk("founder").start()
    desk.contribute()
    assert len(desk.wants(ef.Propose)) == 1
    assert "all 1 are in" in desk.machine.why()


def test_who_trained_when_the_round_opened_and_still_does_is_waited_for() -> None:
    """[P8]"""
    desk = Desk("late").settle_round("founder", "gone", "idle")
    desk.see("new", desk.head)
    desk.hear(ev.MemberLost(PeerId("gone")))
    desk.see("idle", desk.head, Phase.CATCHING_UP)
    desk.contribute()
    assert "waiting for ounder" in desk.machine.why()  # the end of a name is its short form
    desk.receive(offer("founder", desk.head))
    assert desk.machine.why() == "waiting for the manifest of ounder for round 2"


def test_a_leaving_node_and_one_without_a_worker_wait_not_for_themselves() -> None:
    """[P9]"""
    seed = Desk("seed", has_worker=False).start(worker=False)
    seed.receive(offer("founder"))
    assert len(seed.wants(ef.Propose)) == 1
    leaver = Desk("founder").start()
    leaver.receive(offer("other"))
    leaver.hear(ev.LeaveRequested())
    assert leaver.machine.state.round.closable is None  # it is alone, and its packet is to come
    leaver.see("other")
    assert leaver.machine.state.round.closable == leaver.now


def test_after_a_quorum_the_grace_is_waited() -> None:
    """[P10]"""
    desk = Desk("founder").settle_round("one", "two")
    desk.hear(after=10.0)
    desk.contribute()
    desk.receive(offer("one", desk.head))
    desk.wake(4.9)  # the grace is half of the 10 seconds after which the quorum came
    assert desk.wants(ef.Propose) == []
    desk.wake(0.2)
    assert len(desk.wants(ef.Propose)) == 1


def test_without_a_quorum_patience_is_waited() -> None:
    """[P11]"""
    desk = Desk("founder").settle_round("one", "two", "three")
    desk.hear(after=10.0)
    desk.contribute()
    desk.wake(39.9)
    assert desk.wants(ef.Propose) == []
    desk.wake(0.2)
    assert len(desk.wants(ef.Propose)) == 1


def test_a_round_without_a_packet_stays_open() -> None:
    """[P12]"""
    desk = Desk("founder").start(worker=False)
    desk.wake(1e6)
    assert desk.wanted == []
    assert "no packet yet" in desk.machine.why()


def test_a_full_round_closes_at_once() -> None:
    """[P13]"""
    desk = Desk("founder", pace=replace(PACE, max_contributors=2)).settle_round("one", "two")
    desk.receive(offer("stranger", desk.head))
    assert desk.wants(ef.Propose) == []
    desk.receive(offer("another", desk.head))
    assert len(desk.wants(ef.Propose)) == 1


def test_a_full_round_takes_leavers_then_who_waited_longest_in_the_order_of_contributors() -> None:
    """[P14]"""
    first = manifest(GENESIS, [offer(peer) for peer in ("long", "bye")], "founder")
    second = manifest(head_of(first), [offer("now", head_of(first))], "long", ("long", "bye"))
    head, full = head_of(second), replace(PACE, max_contributors=3)
    desk = Desk(pace=full).see("now", head).see("bye", head, Phase.LEAVING).start(first, second)
    desk.receive(*(offer(peer, head) for peer in ("now", "new", "long", "bye")))
    desk.wake(TURN)
    (propose,) = desk.wants(ef.Propose)
    taken = [entry.contributor for entry in propose.draft.entries]
    assert taken == ["bye", "long", "new"]


def test_weights_are_shares_of_samples_held_to_the_median_norm() -> None:
    """[P15]"""
    desk = Desk("founder").settle_round("a", "b")
    desk.contribute(10)
    desk.receive(offer("a", desk.head, samples=10), norm=1.0)
    desk.receive(offer("b", desk.head, samples=20), norm=40.0)
    (propose,) = desk.wants(ef.Propose)
    weights = [entry.weight for entry in propose.draft.entries]
    assert math.fsum(weights) == pytest.approx(1.0, abs=1e-6)
    assert weights == pytest.approx([10 / 25, 5 / 25, 10 / 25])  # a, b, founder


def test_a_manifest_is_durable_then_told_then_applied() -> None:
    """[P16]"""
    desk = Desk("founder").start()
    desk.contribute()
    mine = desk.seal()
    desk.hear(ev.ManifestHeard(desk.me, mine))
    assert desk.wanted == [ef.Commit(mine), ef.Publish(mine), ef.Apply((), (mine,))]
    other = Desk("other").start()
    other.get(mine)
    assert other.head == head_of(mine)


def test_only_the_proposer_publishes() -> None:
    """[P17]"""
    desk = Desk().start()
    theirs = manifest(GENESIS, [offer("founder")], "founder")
    desk.hear(ev.ManifestHeard(PeerId("founder"), theirs))
    desk.hear(ev.PacketFetched(offer("founder").packet, 1.0))
    assert desk.wanted == [ef.Commit(theirs), ef.Apply((), (theirs,))]


def test_a_manifest_is_applied_only_with_all_its_packets() -> None:
    """[P18]"""
    desk = Desk().start()
    both = manifest(GENESIS, [offer("founder"), offer("other")], "founder")
    desk.hear(ev.ManifestHeard(PeerId("founder"), both))
    desk.hear(ev.PacketFetched(offer("founder").packet, 1.0))
    assert desk.wants(ef.Apply) == []
    desk.hear(ev.PacketFetched(offer("other").packet, 1.0))
    assert len(desk.wants(ef.Apply)) == 1


def test_who_is_left_out_owes_it_still_and_goes_on() -> None:
    """[P19]"""
    desk = Desk().start()
    desk.contribute(10)
    desk.get(manifest(GENESIS, [offer("founder")], "founder"))
    assert desk.owed == 10
    assert desk.wants(ef.Cut) + desk.wants(ef.Train) == []  # it is at it
    desk.train(10)
    assert desk.wants(ef.Contribute) == [ef.Contribute(2, desk.head.digest, 20)]


def test_what_is_in_the_manifest_is_told() -> None:
    """[P20]"""
    desk = Desk().start()
    mine = desk.contribute(10)
    desk.get(manifest(GENESIS, [mine], "founder"))
    assert desk.owed == 0


# -- proposing and succession ----------------------------------------------------------------------
def _all_in(me: str, *others: str) -> Desk:
    """A round whose packets are all in, after one that all of them contributed to."""
    desk = Desk(me)
    for peer in others:
        desk.see(peer)
    desk.start()
    packets = [offer(peer) for peer in sorted((me, *others))]
    first = manifest(GENESIS, packets, "founder")
    desk.get(first)
    for peer in others:
        desk.see(peer, desk.head)
    desk.contribute()
    desk.receive(*(offer(peer, desk.head) for peer in others))
    return desk


def test_the_creator_proposes_first_at_the_genesis() -> None:
    """[P21]"""
    founder, other = Desk("founder").start(), Desk("other").see("founder").start()
    founder.contribute()
    assert len(founder.wants(ef.Propose)) == 1
    other.contribute()
    other.receive(offer("founder"))
    assert other.wants(ef.Propose) == []
    assert other.machine.why() == "waiting for the manifest of ounder for round 1"


def test_who_contributed_comes_before_who_did_not() -> None:
    """[P22]"""
    parent = digest("a parent")
    order = in_line(parent, "a", "b", "c")
    contributors, stranger = order[1:], order[0]
    assert rank_of(stranger, parent, contributors, order) == 2
    assert [rank_of(peer, parent, contributors, order) for peer in contributors] == [0, 1]


def test_the_next_in_line_waits_its_turn() -> None:
    """[P23]"""
    peers = ["a", "b", "c"]
    desks = {me: _all_in(me, *(p for p in peers if p != me)) for me in peers}
    order = in_line(desks["a"].head.digest, *peers)
    assert len(desks[order[0]].wants(ef.Propose)) == 1
    for place, me in enumerate(order[1:], start=1):
        desks[me].wake(place * TURN - 0.1)
        assert desks[me].wants(ef.Propose) == []
        desks[me].wake(0.2)
        (propose,) = desks[me].wants(ef.Propose)
        assert propose.draft.rank == place


def test_who_does_not_take_part_is_passed_over_and_keeps_its_rank() -> None:
    """[P24]"""
    probe = _all_in("a", "b", "c")
    first, second, _ = in_line(probe.head.digest, "a", "b", "c")
    desk = _all_in(second, *({"a", "b", "c"} - {second}))
    desk.hear(ev.MemberLost(first))
    (propose,) = desk.wants(ef.Propose)
    assert propose.draft.rank == 1


def test_a_manifest_that_was_heard_gets_one_more_turn_for_its_packets() -> None:
    """[P25]"""
    probe = _all_in("a", "b", "c")
    first, second, third = in_line(probe.head.digest, "a", "b", "c")
    desk = _all_in(second, first, third)
    packets = [offer(first, desk.head, name="again")]
    heard = manifest(desk.head, packets, first, ("a", "b", "c"))
    desk.hear(ev.ManifestHeard(first, heard), after=1.0)
    assert len(desk.wants(ef.Fetch)) == 1
    desk.hear(ev.FetchFailed(packets[0].packet), after=2 * TURN - 0.1)
    assert desk.wants(ef.Propose) == []
    desk.wake(0.2)
    assert len(desk.wants(ef.Propose)) == 1


def test_a_node_proposes_once_a_round() -> None:
    """[P26]"""
    desk = Desk("founder").start()
    desk.contribute()
    assert len(desk.wants(ef.Propose)) == 1
    desk.receive(offer("other"))
    assert desk.wants(ef.Propose) == []


def test_a_leaver_leaves_proposing_to_those_who_stay() -> None:
    """[P27]"""
    desk = Desk("founder").see("other").start()
    desk.hear(ev.LeaveRequested())
    desk.train(5)
    desk.hear(ev.Contributed(offer("founder", samples=5), 1.0))
    desk.receive(offer("other"))
    assert desk.wants(ef.Propose) == []
    desk.hear(ev.MemberLost(PeerId("other")))
    assert len(desk.wants(ef.Propose)) == 1


def test_of_two_manifests_the_heavier_wins() -> None:
    """[P28]"""
    light = manifest(GENESIS, [offer("a", samples=10)], "founder")
    heavy = manifest(GENESIS, [offer("a", samples=10), offer("b", samples=1)], "x")
    low, high = sorted(
        (manifest(GENESIS, [offer(p)], "founder") for p in ("a", "b")), key=lambda m: m.digest
    )
    second = manifest(GENESIS, [offer("c")], "x")
    for loser, winner in ((light, heavy), (high, low), (second, high)):
        desk = Desk().start()
        desk.hear(ev.ManifestHeard(PeerId("p"), loser), ev.ManifestHeard(PeerId("p"), winner))
        for fetch in desk.wants(ef.Fetch):
            desk.hear(ev.PacketFetched(fetch.packet, 1.0))
        (apply,) = desk.wants(ef.Apply)
        assert apply.redo == (winner,)


# -- fetching --------------------------------------------------------------------------------------
def test_what_is_under_way_is_not_asked_for_again() -> None:
    """[P29]"""
    desk = Desk().start()
    desk.hear(ev.OffersHeard(PeerId("one"), (offer("one"),)))
    assert len(desk.wants(ef.Fetch)) == 1
    desk.hear(ev.OffersHeard(PeerId("two"), (offer("one"),)), after=100.0)
    assert desk.wants(ef.Fetch) == []


def test_what_failed_is_tried_again_later_and_later() -> None:
    """[P30]"""
    desk = Desk().start()
    desk.hear(ev.OffersHeard(PeerId("one"), (offer("one"),)))
    for pause in (0.5, 1.0, 2.0, 4.0, 8.0, 15.0, 15.0):
        desk.hear(ev.FetchFailed(offer("one").packet))
        desk.wake(pause - 0.01)
        assert desk.wants(ef.Fetch) == []
        desk.wake(0.02)
        assert len(desk.wants(ef.Fetch)) == 1


def test_what_failed_too_often_is_not_to_be_had_until_it_is_announced() -> None:
    """[P31]"""
    desk, rounds = Desk().start(), chain(2)
    desk.see("founder", head_of(rounds[1]))
    desk.hear(ev.ManifestsFetched(PeerId("founder"), (rounds[1], rounds[0])))
    failed = ev.FetchFailed(offer("founder").packet)
    desk.fail(failed, MAX_TRIES - 1)
    assert desk.wants(ef.FetchSnapshot) == []
    desk.wake(MAX_RETRY_SECONDS)
    desk.hear(failed)
    assert len(desk.wants(ef.FetchSnapshot)) == 1
    desk.hear(ev.OffersHeard(PeerId("two"), (offer("founder"),)))
    assert len(desk.wants(ef.Fetch)) == 1


def test_a_packet_must_be_what_was_said_of_it() -> None:
    """[P32]"""
    desk = Desk().start()
    desk.hear(ev.OffersHeard(PeerId("one"), (offer("one"),)))
    (fetch,) = desk.wants(ef.Fetch)
    assert fetch.offer == offer("one")
    theirs = manifest(GENESIS, [offer("two", samples=3)], "founder")
    desk.hear(ev.ManifestHeard(PeerId("founder"), theirs))
    (fetch,) = desk.wants(ef.Fetch)
    assert fetch.offer == offer("two", samples=3)


def test_what_was_refused_is_not_fetched_again_as_the_same() -> None:
    """[P33]"""
    desk = Desk().start()
    false = replace(offer("one"), samples=1000)
    desk.hear(ev.OffersHeard(PeerId("liar"), (false,)))
    desk.hear(ev.PacketRefused(false.packet))
    desk.hear(ev.OffersHeard(PeerId("liar"), (false,)))
    assert desk.wants(ef.Fetch) == []
    desk.hear(ev.OffersHeard(PeerId("one"), (offer("one"),)))
    assert len(desk.wants(ef.Fetch)) == 1


def test_the_contributor_s_own_word_counts_more() -> None:
    """[P34]"""
    desk = Desk().start()
    false, later = replace(offer("one"), samples=1000), replace(offer("one"), samples=2000)
    desk.hear(ev.OffersHeard(PeerId("liar"), (false,)))
    desk.hear(ev.OffersHeard(PeerId("one"), (offer("one"),)))
    desk.hear(ev.OffersHeard(PeerId("liar"), (later,)))
    assert desk.machine.state.offers.under(GENESIS.digest) == (offer("one"),)


def test_an_announcement_cannot_change_a_packet_that_is_here() -> None:
    """[P35]"""
    desk = Desk("founder").start()
    desk.receive(offer("one", samples=10))
    desk.hear(ev.OffersHeard(PeerId("one"), (offer("one", samples=9999),)))
    desk.contribute()
    (propose,) = desk.wants(ef.Propose)
    assert [entry.samples for entry in propose.draft.entries] == [10, 10]


def test_of_my_own_packet_others_only_say_that_they_hold_it() -> None:
    """[P36]"""
    desk = Desk().start().see("one")
    mine = desk.contribute()
    stray = offer("me", name="stray")
    desk.hear(ev.OffersHeard(PeerId("one"), (mine, stray)))
    assert desk.machine.state.offers.holders(mine.packet) == ("one",)
    assert desk.machine.state.offers.holders(stray.packet) == ()
    assert desk.wants(ef.Fetch) == []


def test_an_announcement_without_samples_is_ignored() -> None:
    """[P37]"""
    desk = Desk().start()
    desk.hear(ev.OffersHeard(PeerId("one"), (offer("one", samples=0),)))
    assert desk.wants(ef.Fetch) == []


def test_announcements_are_bounded() -> None:
    """[P38]"""
    desk = Desk().start()
    one = PeerId("one")
    many = tuple(offer(f"peer{n}") for n in range(MAX_OFFERS + 1))
    desk.hear(ev.OffersHeard(one, many))
    assert len(desk.machine.state.offers.under(GENESIS.digest)) == MAX_OFFERS
    for n in range(MAX_PARENTS):
        parent = replace(GENESIS, digest=digest("parent", n))
        desk.hear(ev.OffersHeard(one, (offer("one", parent),)))
    assert desk.machine.state.offers.under(GENESIS.digest) == ()
    assert desk.machine.state.offers.holders(many[0].packet) == ()


def test_announcements_for_a_round_to_come_are_kept_for_it() -> None:
    """[P39]"""
    desk = Desk().start()
    first = manifest(GENESIS, [offer("founder")], "founder")
    early = offer("one", head_of(first))
    desk.hear(ev.OffersHeard(PeerId("one"), (early,)))
    assert desk.wants(ef.Fetch) == []
    desk.see("one", head_of(first))
    desk.hear(ev.ManifestHeard(PeerId("founder"), first))
    desk.hear(ev.PacketFetched(offer("founder").packet, 1.0))
    desk.apply()
    assert [fetch.packet for fetch in desk.wants(ef.Fetch)] == [early.packet]
