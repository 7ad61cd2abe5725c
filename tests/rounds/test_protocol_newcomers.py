"""docs/protocol.md, sentence by sentence: the weight of newcomers."""

from __future__ import annotations

from dataclasses import replace

import pytest

from demoloco.rounds import effects as ef
from demoloco.rounds.chain import Chain, Path
from demoloco.rounds.rules import head_of
from demoloco.rounds.tempo import TURN_UNMEASURED
from demoloco.types import Draft, Offer
from tests.rounds.desk import GENESIS, PACE, Desk, PeerId, chain, manifest, offer

RAMP = replace(PACE, ramp_rounds=4)


def proposal(desk: Desk, *offers: Offer) -> Draft:
    """What the desk proposes when these are in and its own packet."""
    desk.receive(*offers)
    desk.contribute()
    if not desk.wants(ef.Propose):  # it is another's turn first
        desk.wake(after=TURN_UNMEASURED)
    (propose,) = desk.wants(ef.Propose)
    return propose.draft


def weights_of(desk: Desk, *peers: str) -> dict[str, float]:
    draft = proposal(desk, *(offer(peer, desk.head) for peer in peers))
    return {entry.contributor: entry.weight for entry in draft.entries}


def test_a_newcomers_weight_rises_over_some_rounds() -> None:
    """[P119]"""
    seen = []
    for joined in range(6):  # rounds since its first
        rounds = [*chain(4)]
        for _ in range(joined):
            head = head_of(rounds[-1])
            both = [offer("founder", head), offer("new", head)]
            rounds.append(manifest(head, both, "founder", ("founder", "new")))
        desk = Desk("founder", pace=RAMP).start(*rounds).see("new", head_of(rounds[-1]))
        weights = weights_of(desk, "new")
        seen.append(weights["new"] / weights["founder"])
    assert seen == pytest.approx([1 / 4, 2 / 4, 3 / 4, 1, 1, 1])


def test_where_all_are_new_their_weights_are_as_ever() -> None:
    """[P120]"""
    desk = Desk("founder", pace=RAMP).see("one").see("two").start()
    weights = weights_of(desk, "one", "two")
    assert weights == pytest.approx({"founder": 1 / 3, "one": 1 / 3, "two": 1 / 3})


def test_who_contributed_long_ago_is_not_new() -> None:
    """[P121]"""
    first = manifest(GENESIS, [offer("founder"), offer("slow")], "founder")
    rounds = [first, *chain(9, parent=head_of(first))]
    desk = Desk("founder", pace=RAMP).start(*rounds).see("slow", head_of(rounds[-1]))
    assert weights_of(desk, "slow") == pytest.approx({"founder": 0.5, "slow": 0.5})


def test_a_contribution_to_an_abandoned_round_does_not_make_old() -> None:
    """[P122]"""
    base = chain(4)
    head = head_of(base[-1])
    known = Chain(GENESIS, PeerId("founder"))
    lost = manifest(head, [offer("new", head, samples=5)], "founder")
    won = chain(2, parent=head)
    for one in (*base, lost):
        known.add(one)
        known.move(Path((), (one,)), head_of(one))
    assert known.first_rounds() == {"founder": 1, "new": 5}
    for one in won:
        known.add(one)
    way = known.path_to(won[-1].digest)
    assert isinstance(way, Path)
    known.move(way, head_of(won[-1]))
    assert known.first_rounds() == {"founder": 1}


def test_what_a_newcomer_tells_is_told_whole() -> None:
    """[P123]"""
    rounds = chain(4)
    desk = Desk("founder", pace=RAMP).start(*rounds).see("new", head_of(rounds[-1]))
    before = desk.head.samples_total
    draft = proposal(desk, offer("new", desk.head, samples=30))
    assert [entry.samples for entry in draft.entries] == [10, 30]
    assert draft.samples_total == before + 40
