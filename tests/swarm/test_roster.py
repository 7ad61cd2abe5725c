"""Who counts as live, and what is told to whom."""

from __future__ import annotations

import random
from dataclasses import replace

from demoloco.swarm import roster as roster_module
from demoloco.swarm.roster import MAX_FORWARDED, Roster, is_goodbye
from demoloco.types import Member, PeerId, Phase
from tests.wire.values import MEMBER

ME, ANN, BOB = PeerId("me"), PeerId("ann"), PeerId("bob")


def words(peer: PeerId, sequence: int, **change: object) -> Member:
    return replace(MEMBER, peer=peer, sequence=sequence, **change)


def goodbye(peer: PeerId, sequence: int) -> Member:
    return words(peer, sequence, phase=Phase.LEAVING, addresses=())


def taken(roster: Roster, member: Member, now: float = 0.0) -> bool:
    return roster.take(member, b"%d" % member.sequence, now)


def test_newer_words_win_whoever_brings_them_and_in_any_order() -> None:
    roster = Roster(ME)
    assert taken(roster, words(ANN, 2))
    assert not taken(roster, words(ANN, 1))
    assert not taken(roster, words(ANN, 2))
    assert taken(roster, words(ANN, 3))
    assert roster.row(ANN).member.sequence == 3
    assert list(roster) == [ANN]
    assert len(roster) == 1


def test_a_node_is_not_its_own_member() -> None:
    roster = Roster(ME)
    assert not taken(roster, words(ME, 1))
    assert ME not in roster


def test_a_goodbye_is_final_until_newer_words() -> None:
    roster = Roster(ME)
    taken(roster, words(ANN, 2))
    assert is_goodbye(goodbye(ANN, 3))
    assert taken(roster, goodbye(ANN, 3))
    assert ANN not in roster
    assert not taken(roster, words(ANN, 3))
    assert roster.newest(ANN) == b"3"
    assert taken(roster, words(ANN, 4))
    assert roster.newest(ANN) == b"4"
    assert roster.newest(BOB) is None


def test_a_leaving_member_with_an_address_is_still_there() -> None:
    assert not is_goodbye(words(ANN, 1, phase=Phase.LEAVING))


def test_silence_is_measured_from_the_last_sign_of_life() -> None:
    roster = Roster(ME)
    taken(roster, words(ANN, 1), now=0.0)
    taken(roster, words(BOB, 1), now=5.0)
    assert roster.silent(now=9.0, patience=8.0) == [ANN]
    roster.answered(ANN, now=9.0)
    assert roster.silent(now=13.5, patience=8.0) == [BOB]
    roster.forgive(seconds=4.0)
    assert roster.silent(now=13.5, patience=8.0) == []
    roster.answered(PeerId("stranger"), now=1.0)
    assert PeerId("stranger") not in roster


def test_refusals_are_measured_from_the_first_in_a_row() -> None:
    roster = Roster(ME)
    assert roster.refused(ANN, now=1.0) == 0.0
    taken(roster, words(ANN, 1))
    assert [roster.refused(ANN, now) for now in (1.0, 2.5, 4.0)] == [0.0, 1.5, 3.0]
    roster.answered(ANN, now=4.5)
    assert [roster.refused(ANN, now) for now in (5.0, 6.0)] == [0.0, 1.0]
    taken(roster, words(ANN, 2), now=6.5)
    assert roster.refused(ANN, now=7.0) == 0.0


def test_only_a_member_can_be_lost() -> None:
    roster = Roster(ME)
    assert not roster.lose(ANN)
    taken(roster, words(ANN, 1))
    assert roster.lose(ANN)
    assert not taken(roster, words(ANN, 1))


def test_a_peer_is_told_what_it_has_not_heard_and_a_few_updates() -> None:
    roster, rng = Roster(ME), random.Random(0)
    names = [PeerId(f"peer{n}") for n in range(10)]
    for peer in names:
        taken(roster, words(peer, 1))
    reader = names[0]
    told = [member for member, _ in roster.news_for(reader, rng)]
    assert {member.peer for member in told} == set(names[1:])
    for member in told:
        roster.note_told(reader, member.peer, member.sequence)
    assert roster.news_for(reader, rng) == []
    for peer in names:
        taken(roster, words(peer, 2))
    assert len(roster.news_for(reader, rng)) == MAX_FORWARDED
    roster.note_told(PeerId("stranger"), reader, 5)
    assert len(roster.news_for(PeerId("stranger"), rng)) == len(names)


def test_the_table_is_bounded(monkeypatch) -> None:
    monkeypatch.setattr(roster_module, "MAX_MEMBERS", 1)
    monkeypatch.setattr(roster_module, "MAX_LOST", 1)
    roster = Roster(ME)
    assert taken(roster, words(ANN, 1))
    assert not taken(roster, words(BOB, 1))
    assert taken(roster, words(ANN, 2))
    roster.lose(ANN)
    taken(roster, words(BOB, 1))
    roster.lose(BOB)
    assert taken(roster, words(ANN, 1))  # its old words were forgotten
