"""docs/protocol.md, sentence by sentence: forks."""

from __future__ import annotations

from demoloco.rounds import effects as ef
from demoloco.rounds import events as ev
from demoloco.rounds.facts import ASIDE_SECONDS
from demoloco.rounds.rules import head_of
from demoloco.types import Manifest
from tests.rounds.desk import (
    GENESIS,
    Desk,
    PeerId,
    at_snapshot,
    chain,
    manifest,
    offer,
)

FOUNDER = PeerId("founder")


def _forked(*, told: bool) -> tuple[Desk, list[Manifest], list[Manifest]]:
    """I stand on two rounds, in which I am; a heavier chain of three is known, with its packets."""
    desk = Desk().start()
    lost = [manifest(GENESIS, [offer("me"), offer("x")], "founder")]
    lost.append(manifest(head_of(lost[0]), [offer("me", head_of(lost[0]))], "me", ("me", "x")))
    desk.get(*lost)
    won = chain(3, "y") if not told else [manifest(GENESIS, [offer("me"), offer("y")], "founder")]
    parent = head_of(won[0])
    if told:
        won.append(manifest(parent, [offer("y", parent, samples=99)], "y", ("me", "y")))
    return desk, lost, won


def test_a_fork_from_a_state_that_is_gone_waits_for_a_heavier_snapshot() -> None:
    """[P62]"""
    desk, lost, won = _forked(told=True)
    desk.see("founder", head_of(won[-1]))
    for each in won:
        desk.hear(ev.ManifestHeard(FOUNDER, each))
    for fetch in desk.wants(ef.Fetch):
        desk.hear(ev.PacketFetched(fetch.packet, 1.0))
    assert len(desk.wants(ef.Apply)) == 1
    desk.hear(ev.ApplyFailed(won[0].digest, "its state is gone", lacking=True))
    desk.fail(at_snapshot(lost[-1]))
    assert desk.machine.state.target() is None
    desk.wake(ASIDE_SECONDS)
    assert len(desk.wants(ef.FetchSnapshot)) == 1
    desk.hear(at_snapshot(won[-1]))
    assert [wish.head for wish in desk.wants(ef.Adopt)] == [head_of(won[-1])]


def test_a_heavier_chain_wins_whole_and_at_once() -> None:
    """[P63]"""
    desk, lost, won = _forked(told=False)
    desk.hear(ev.ManifestsFetched(PeerId("y"), tuple(reversed(won[:2]))))
    assert desk.wanted == []  # 20 samples are not more than 30
    won.append(chain(4, "y")[3])
    desk.hear(ev.ManifestsFetched(PeerId("y"), tuple(reversed(won))))
    fetches = desk.wants(ef.Fetch)
    assert [fetch.packet for fetch in fetches] == [m.entries[0].packet for m in won]
    for fetch in fetches[:-1]:
        desk.hear(ev.PacketFetched(fetch.packet, 1.0))
        assert desk.wants(ef.Apply) == []
    desk.hear(ev.PacketFetched(fetches[-1].packet, 1.0))
    commits = [ef.Commit(each) for each in won]
    assert desk.wanted == [*commits, ef.Apply(tuple(reversed(lost)), tuple(won))]


def test_what_the_lost_chain_told_of_me_is_owed_again() -> None:
    """[P64]"""
    desk, _, _ = _forked(told=False)
    assert desk.owed == 0
    _go(desk, chain(4, "y"))
    assert desk.owed == 20


def _go(desk: Desk, won: list[Manifest], lost: int = 0) -> None:
    """To the end of this chain, at once."""
    desk.hear(ev.ManifestsFetched(PeerId("y"), tuple(reversed(won))))
    for fetch in desk.wants(ef.Fetch):
        desk.hear(ev.PacketFetched(fetch.packet, 1.0))
    desk.apply(lost)


def test_what_the_winning_chain_told_of_me_is_not_owed() -> None:
    """[P65]"""
    desk, _, won = _forked(told=True)
    _go(desk, won)
    assert desk.owed == 10  # of two packets the winner has one


def test_a_packet_of_the_lost_open_round_is_made_anew() -> None:
    """[P66]"""
    desk, _, _ = _forked(told=False)
    desk.contribute(5)
    _go(desk, chain(4, "y"))
    assert desk.wants(ef.Contribute) == []  # it trains
    desk.train(0)
    assert desk.wants(ef.Contribute) == [ef.Contribute(5, desk.head.digest, 25)]


def test_owed_is_never_below_nothing() -> None:
    """[P67]"""
    desk = Desk().start()
    desk.get(manifest(GENESIS, [offer("me", samples=50)], "founder"))
    assert desk.owed == 0


def test_what_would_be_owed_again_is_lost_where_its_packets_are_gone() -> None:
    """[P68]"""
    for lost, owed in ((8, 12), (99, 0)):
        desk, _, _ = _forked(told=False)
        _go(desk, chain(4, "y"), lost=lost)
        assert desk.owed == owed
        assert f"{20 - owed} samples that were owed are lost" in desk.wants(ef.Note)[-1].text


def test_a_manifest_heard_again_changes_nothing() -> None:
    """[P69]"""
    desk = Desk().start(*chain(2))
    for known in chain(2):
        desk.hear(ev.ManifestHeard(FOUNDER, known))
        assert desk.wanted == []
