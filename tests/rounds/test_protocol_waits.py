"""docs/protocol.md, sentence by sentence: waits that follow from the last rounds."""

from __future__ import annotations

import pytest

from demoloco.rounds import effects as ef
from demoloco.rounds import events as ev
from demoloco.rounds.rules import head_of
from demoloco.rounds.tempo import GRACE_FLOOR, MIN_ROUNDS, PATIENCE_FLOOR, TURN_UNMEASURED
from tests.rounds.desk import Desk, PeerId, in_line, manifest, offer

PEERS = ("one", "two", "three")


def _round(desk: Desk, late: float | None = 0.1, proposer: str | None = None) -> None:
    """Ten seconds, then all packets; of `three` so much later, or never. The manifest of who is
    the first in the line, or of `proposer`."""
    names = [name for name in (desk.me, *PEERS) if name != "three" or late is not None]
    desk.hear(after=10.0)
    offers = [desk.contribute()]
    for peer in PEERS:
        desk.see(peer, desk.head)
        if peer != "three":
            offers.append(offer(peer, desk.head))
            desk.receive(offers[-1])
    if late is not None:
        offers.append(offer("three", desk.head))
        desk.hear(after=late)
        desk.receive(offers[-1])
    chain = desk.machine.state.chain
    assert chain is not None
    before = chain.contributors(desk.head.digest)
    won = manifest(desk.head, offers, proposer or in_line(desk.head.digest, *before)[0], before)
    assert len(names) == len(offers)
    desk.get(won)
    for peer in PEERS:
        desk.see(peer, desk.head)


def _swarm(*latenesses: float | None) -> Desk:
    """Some rounds later."""
    desk = Desk().settle_round(*PEERS)
    for late in latenesses:
        _round(desk, late)
    return desk


def _grace(desk: Desk) -> float:
    return desk.machine.state.tempo.grace(10.0)


def test_a_minority_that_is_late_in_each_round_stretches_nothing() -> None:
    """[P124]"""
    punctual, slow = _swarm(*[0.01] * 4), _swarm(*[4.0] * 4)
    assert _grace(punctual) == _grace(slow) == GRACE_FLOOR
    assert len(slow.wants(ef.Train)) == 0


def test_arrivals_after_the_end_of_the_round_count_as_far_as_they_are_heard_of() -> None:
    """[P125]"""
    desk = _swarm(*[0.01] * MIN_ROUNDS)
    parent = desk.head
    _round(desk, late=None)
    (*_, course) = desk.machine.state.tempo._courses
    assert sorted(course.lateness()) == [0.0, 0.0, 0.0]
    desk.hear(ev.OffersHeard(PeerId("three"), (offer("three", parent),)), after=1.0)
    desk.hear(ev.OffersHeard(PeerId("new"), (offer("new", parent),)))
    desk.hear(ev.OffersHeard(PeerId("three"), (offer("three", parent),)), after=1.0)
    assert sorted(course.lateness()) == [0.0, 0.0, 0.0, pytest.approx(1.0)]


def test_my_own_packet_counts_for_the_quorum_when_it_has_travelled() -> None:
    """[P126]"""
    desk = Desk().settle_round("one", "two")
    desk.hear(ev.OffersHeard(PeerId("one"), (offer("one", desk.head),)))
    desk.hear(ev.PacketFetched(offer("one", desk.head).packet, 1.0), after=3.0)
    desk.contribute()
    assert desk.wants(ef.WakeMe) == [ef.WakeMe(4.5)]  # the other packets took 0 and 3 seconds
    desk.wake(1.4)
    assert desk.machine.state.round.quorum is None
    desk.wake(0.1)
    assert desk.machine.state.round.quorum == 4.5


def test_few_rounds_measure_nothing() -> None:
    """[P127]"""
    desk = _swarm(*[0.01] * (MIN_ROUNDS - 1))
    assert _grace(desk) == 5.0
    assert desk.machine.state.tempo.patience(10.0) == 40.0
    _round(desk)
    assert _grace(desk) == GRACE_FLOOR
    assert desk.machine.state.tempo.patience(10.0) == 2.0
    assert desk.machine.state.tempo.grace(10.0, [PeerId("one"), PeerId("new")]) == 5.0
    assert desk.machine.state.tempo.grace(10.0, [PeerId("one"), PeerId("two")]) == GRACE_FLOOR


def test_a_turn_is_as_long_as_manifests_and_their_packets_usually_take() -> None:
    """[P128]"""
    desk = Desk().settle_round("one")
    tempo = desk.machine.state.tempo
    assert tempo.turn() == tempo.fetching() == TURN_UNMEASURED
    for _ in range(MIN_ROUNDS):
        desk.hear(after=10.0)
        offers = [desk.contribute(), offer("one", desk.head)]
        desk.receive(offers[1])  # from now on it may close
        desk.hear(after=3.0)
        missing = offer("late", desk.head)
        before = desk.machine.state.chain.contributors(desk.head.digest)  # type: ignore[union-attr]
        won = manifest(desk.head, [*offers, missing], "one", before)
        desk.hear(ev.ManifestHeard(PeerId("one"), won))
        desk.hear(ev.PacketFetched(missing.packet, 1.0), after=7.0)
        desk.apply()
        desk.see("one", head_of(won))
    assert tempo.turn() == 3.0
    assert tempo.fetching() == 7.0


def test_a_round_without_a_quorum_counts_as_twice_its_time() -> None:
    """[P129]"""
    desk = Desk().settle_round(*PEERS)
    for _ in range(MIN_ROUNDS):
        desk.hear(after=10.0)
        mine = desk.contribute()
        desk.hear(after=6.0)
        before = desk.machine.state.chain.contributors(desk.head.digest)  # type: ignore[union-attr]
        desk.get(manifest(desk.head, [mine], "one", before))
        for peer in PEERS:
            desk.see(peer, desk.head)
    assert desk.machine.state.tempo.patience(10.0) == 2 * 16.0 - 10.0 + PATIENCE_FLOOR


def test_my_own_manifest_tells_nothing_of_the_others() -> None:
    """[P130]"""
    mine, theirs = (Desk().settle_round(*PEERS) for _ in range(2))
    for _ in range(MIN_ROUNDS):
        _round(mine, proposer="me")
        _round(theirs, proposer="one")
    assert mine.machine.state.tempo.turn() == TURN_UNMEASURED
    assert theirs.machine.state.tempo.turn() != TURN_UNMEASURED
