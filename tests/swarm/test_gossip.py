"""Rumours, doubts and relays: who is told what, and what makes a member gone."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from demoloco.rounds.decide import MANY
from demoloco.swarm.gossip import rumours as gossip
from demoloco.swarm.gossip.doubts import MAX_ASKED, MAX_SILENT, OTHERS_SHARE, Doubts
from demoloco.swarm.gossip.rumours import (
    DIRECT,
    Batch,
    Relay,
    Rumours,
    Silent,
    draw,
    is_small,
    renewal_seconds,
    same_standing,
)
from demoloco.swarm.gossip.talk import MAX_PARENTS, VERSION_SECONDS, Talk, name_of
from demoloco.swarm.gossip.tidings import Tidings
from demoloco.swarm.roster import Roster
from demoloco.types import Digest, Member, PeerId, Phase, Round
from demoloco.wire import digest_of
from tests.wire.values import HEAD, MEMBER, OFFER

ANN, BOB, CAT = PeerId("ann"), PeerId("bob"), PeerId("cat")
CROWD = [PeerId(f"peer{n:02}") for n in range(20)]


# Rumours


def test_a_rumour_is_told_a_few_times_and_rests() -> None:
    rumours: Rumours[str] = Rumours(tellings=2)
    rumours.start("news", [ANN])
    assert rumours.tell(ANN, 9) == []
    assert rumours.tell(BOB, 9) == ["news"]
    assert rumours.tell(BOB, 9) == []
    assert rumours.tell(CAT, 9) == ["news"]
    assert "news" not in rumours
    assert len(rumours) == 0


def test_what_others_tell_too_needs_fewer_tellings() -> None:
    rumours: Rumours[str] = Rumours(tellings=2)
    rumours.start("news")
    rumours.heard_again("news", ANN)
    rumours.heard_again("news", ANN)
    assert "news" in rumours
    rumours.heard_again("news", BOB)
    assert "news" not in rumours


def test_what_did_not_arrive_is_told_again() -> None:
    rumours: Rumours[str] = Rumours(tellings=1)
    rumours.start("news")
    assert rumours.tell(ANN, 9) == ["news"]
    rumours.untell(ANN, ["news"])
    assert rumours.tell(ANN, 9) == ["news"]


def test_the_newest_rumours_go_first_and_the_oldest_is_forgotten(monkeypatch) -> None:
    monkeypatch.setattr(gossip, "MAX_RUMOURS", 2)
    rumours: Rumours[int] = Rumours()
    for number in (1, 2, 3):
        rumours.start(number)
    assert rumours.tell(ANN, 1) == [3]
    assert rumours.tell(ANN, 9) == [2]
    rumours.drop(2)
    assert 2 not in rumours


def test_all_records_together_cost_the_same_in_a_swarm_of_any_size() -> None:
    assert is_small(DIRECT)
    assert not is_small(DIRECT + 1)
    assert renewal_seconds(1, 2.0) == 2.0
    assert 256 / renewal_seconds(256, 2.0) == 64 / renewal_seconds(64, 2.0)


@pytest.mark.parametrize(
    ("change", "same"),
    [
        ({"head": replace(HEAD, round=Round(7))}, True),
        ({"phase": Phase.EXCHANGING, "sequence": 9, "up": 1.0}, True),
        ({"phase": Phase.CATCHING_UP}, False),
        ({"phase": Phase.LEAVING}, False),
        ({"addresses": ()}, False),
        ({"head": None}, False),
    ],
)
def test_only_what_all_must_know_soon_is_told_soon(change: dict[str, object], same: bool) -> None:
    assert same_standing(MEMBER, replace(MEMBER, **change)) is same


def test_the_round_machine_calls_many_what_is_no_small_swarm() -> None:
    assert is_small(MANY)
    assert not is_small(MANY + 1)


def test_partners_are_drawn_by_chance_and_never_more_than_there_are() -> None:
    rng = random.Random(0)
    assert sorted(draw(rng, CROWD[:2], 3)) == CROWD[:2]
    assert len({tuple(draw(rng, CROWD, 3)) for _ in range(20)}) > 10


# Manifests


def test_a_manifest_is_passed_on_once_and_a_proposer_has_its_share() -> None:
    relay = Relay()
    one = digest_of(b"one")
    assert relay.is_new(one)
    assert not relay.is_new(one)
    assert [relay.may_pass(ANN, 0.0) for _ in range(6)] == [True] * 4 + [False] * 2
    assert relay.may_pass(BOB, 0.0)
    assert relay.may_pass(ANN, 2.0)
    assert not relay.may_pass(ANN, 2.0)


# Doubts


def asked_in_vain(doubts: Doubts, peer: PeerId, times: list[float]) -> None:
    for at in times:
        doubts.asked(peer, at)
        doubts.unanswered(peer)


def test_only_who_was_asked_again_and_again_in_vain_is_gone() -> None:
    doubts = Doubts()
    doubts.asked(ANN, 0.0)
    assert doubts.gone(100.0, 10.0) == []
    asked_in_vain(doubts, ANN, [0.0, 3.0, 6.0])
    assert doubts.gone(9.0, 10.0) == []
    assert doubts.gone(10.0, 10.0) == [ANN]
    assert doubts.answered(ANN)
    assert doubts.gone(10.0, 10.0) == []


def test_others_words_alone_make_nobody_gone() -> None:
    doubts = Doubts()
    doubts.hear(ANN, 1000.0)
    assert doubts.to_ask() == [ANN]
    assert doubts.gone(1000.0, 10.0) == []
    asked_in_vain(doubts, ANN, [0.0, 1.0, 2.0])
    assert doubts.gone(10.0 * OTHERS_SHARE - 0.1, 10.0) == []
    assert doubts.gone(10.0 * OTHERS_SHARE, 10.0) == [ANN]


def test_a_newer_word_from_another_gives_back_half_the_patience() -> None:
    doubts = Doubts()
    asked_in_vain(doubts, ANN, [0.0, 3.0, 6.0])
    assert doubts.newer(ANN, 9.0, 10.0)
    assert doubts.gone(13.9, 10.0) == []
    assert doubts.gone(14.0, 10.0) == [ANN]
    assert not doubts.newer(BOB, 9.0, 10.0)


def test_one_question_in_vain_is_not_told_two_are() -> None:
    doubts = Doubts()
    asked_in_vain(doubts, ANN, [0.0])
    assert doubts.silent(BOB) == []
    asked_in_vain(doubts, ANN, [1.0])
    assert doubts.silent(BOB) == [ANN]
    assert doubts.witnesses() == {BOB}
    assert doubts.seconds(ANN, 3.0) == 3.0
    doubts.forgive(2.0)
    assert doubts.seconds(ANN, 3.0) == 1.0
    doubts.drop(ANN)
    assert doubts.seconds(ANN, 3.0) == 0.0


def test_what_one_hello_says_and_one_beat_asks_is_bounded() -> None:
    doubts = Doubts()
    for number in range(100):
        doubts.asked(PeerId(f"p{number}"), 0.0)
        doubts.refused(PeerId(f"p{number}"))
    assert len(doubts.silent(BOB)) == MAX_SILENT
    assert len(doubts.to_ask()) == MAX_ASKED


# Tidings


def crowded() -> tuple[Tidings, Roster]:
    roster = Roster(PeerId("me"))
    tidings = Tidings(roster, random.Random(0), 2.0, 10.0)
    for peer in CROWD:
        hear(tidings, roster, member(peer, 1000), peer)
        tidings.answered(peer, 0.0)
    for reader in CROWD:
        tidings.greets(reader, 0.0)
        tidings.answered(reader, 0.0)
    return tidings, roster


def member(peer: PeerId, sequence: int, **change: object) -> Member:
    return replace(MEMBER, peer=peer, sequence=sequence, **change)


def hear(tidings: Tidings, roster: Roster, word: Member, carrier: PeerId, now: float = 0.0) -> None:
    row = roster.row(word.peer)
    before = row.member if row else None
    assert roster.take(word, b"", now)
    tidings.took(word, before, carrier, now)


def told(tidings: Tidings, reader: PeerId) -> set[PeerId]:
    return {peer for peer, _ in tidings.greets(reader, 0.0)}


def test_an_older_record_of_the_same_content_is_no_rumour_until_it_is_due() -> None:
    tidings, roster = crowded()
    ann, reader = CROWD[0], CROWD[1]
    period_ms = int(1000 * renewal_seconds(len(CROWD), 2.0))
    hear(tidings, roster, member(ann, 1000 + period_ms - 1), ann)
    assert ann not in told(tidings, reader)
    hear(tidings, roster, member(ann, 1000 + period_ms), ann)
    assert ann in told(tidings, reader)


def test_a_change_of_standing_is_a_rumour_at_once() -> None:
    tidings, roster = crowded()
    ann = CROWD[0]
    hear(tidings, roster, member(ann, 1001, phase=Phase.LEAVING), CROWD[2])
    assert ann in told(tidings, CROWD[1])
    hear(tidings, roster, member(ann, 1002, phase=Phase.LEAVING, addresses=()), CROWD[2])
    assert ann in told(tidings, CROWD[3])


def test_a_newcomer_is_given_all_members_once() -> None:
    tidings, _ = crowded()
    new = PeerId("new")
    first = tidings.answers(new, 1, [], 0.0)
    assert {peer for peer, _ in first} == set(CROWD)
    assert tidings.answers(new, 1, [], 1.0) == ()
    assert tidings.answers(PeerId("old"), len(CROWD), [], 0.0) == ()


def test_a_witness_that_knows_better_says_so_and_one_that_does_not_asks() -> None:
    tidings, roster = crowded()
    ann, teller = CROWD[0], CROWD[1]
    assert tidings.hear_silent([Silent(ann, 1000, 5000)], teller) == ([], [ann])
    tidings.answered(ann, 1.0)
    hear(tidings, roster, member(ann, 1001), ann)
    assert tidings.hear_silent([Silent(ann, 1000, 5000)], teller) == ([ann], [])
    assert tidings.hear_silent([Silent(PeerId("stranger"), 0)], teller) == ([], [])


def test_when_the_swarm_gets_small_nobody_is_lost_for_not_having_been_asked() -> None:
    tidings, roster = crowded()
    tidings.partners(1.0)
    for peer in CROWD[DIRECT:]:
        roster.lose(peer)
        tidings.lost(peer)
    assert sorted(tidings.partners(1000.0)) == CROWD[:DIRECT]
    assert tidings.gone(1000.0) == []
    assert sorted(tidings.gone(1011.0)) == CROWD[:DIRECT]


# Offers


def test_an_offer_travels_as_heard_of_until_its_packet_is_here() -> None:
    talk = Talk(PeerId("me"))
    offer = replace(OFFER, contributor=ANN)
    assert talk.hear(BOB, Batch(heard=(offer,)), {ANN, BOB}, 0.0) == [(ANN, (offer,))]
    assert talk.batch_for(BOB) == Batch()
    assert talk.batch_for(CAT) == Batch(heard=(offer,))
    talk.hold([offer])
    assert talk.batch_for(CROWD[0]) == Batch(offers=(offer,))
    assert talk.summary() == Batch(holds=(name_of(offer),))
    assert talk.hear(CAT, Batch(holds=(name_of(offer),)), {ANN}, 1.0) == [(CAT, (offer,))]


def test_comparing_finds_what_the_other_lacks() -> None:
    me, other = Talk(PeerId("me")), Talk(PeerId("other"))
    offers = [replace(OFFER, contributor=peer, packet=digest_of(peer.encode())) for peer in CROWD]
    me.hold(offers)
    other.hold(offers[:15])
    answer = me.answer(other.summary(), PeerId("other"))
    assert set(answer.offers) == set(offers[15:])
    assert me.answer(me.summary(), PeerId("other")) == Batch()


def test_offers_of_strangers_and_other_versions_too_soon_are_not_heard() -> None:
    talk = Talk(PeerId("me"))
    offer = replace(OFFER, contributor=ANN)
    lie = replace(offer, samples=1)
    assert talk.hear(BOB, Batch(heard=(offer,)), {BOB}, 0.0) == []
    assert talk.hear(BOB, Batch(heard=(offer,)), {ANN}, 0.0) == [(ANN, (offer,))]
    assert talk.hear(BOB, Batch(heard=(lie,)), {ANN}, 1.0) == []
    assert talk.hear(BOB, Batch(heard=(lie,)), {ANN}, VERSION_SECONDS) == [(ANN, (lie,))]
    assert talk.hear(ANN, Batch(offers=(offer,)), {ANN}, VERSION_SECONDS) == [(ANN, (offer,))]


def test_only_the_newest_few_rounds_are_remembered() -> None:
    talk = Talk(PeerId("me"))
    for number in range(MAX_PARENTS + 1):
        parent = Digest(bytes([number]) * 32)
        talk.hold([replace(OFFER, parent=parent, round=Round(number), packet=digest_of(parent))])
    assert len(talk.summary().holds) == 1
    first = Digest(bytes(32))
    old = replace(OFFER, parent=first, round=Round(0), packet=digest_of(first))
    assert talk.hear(ANN, Batch(holds=(name_of(old),)), {ANN}, 0.0) == []
