"""docs/protocol.md, sentence by sentence: what is refused."""

from __future__ import annotations

from dataclasses import replace

from benchmarks.simulator.parts import digest
from demoloco.rounds import effects as ef
from demoloco.rounds import events as ev
from demoloco.rounds.chain import KEEP_ROUNDS, MAX_BESIDE
from demoloco.rounds.facts import MAX_REFUSED
from demoloco.rounds.rules import head_of
from demoloco.types import Manifest, Phase
from tests.rounds.desk import (
    GENESIS,
    Desk,
    PeerId,
    chain,
    in_line,
    manifest,
    member,
    offer,
)

FOUNDER = PeerId("founder")


def _refusal(desk: Desk, false: Manifest) -> str:
    desk.hear(ev.ManifestHeard(PeerId("liar"), false))
    assert desk.machine.state.target() is None
    (note,) = desk.wants(ef.Note)
    return note.text


def test_a_manifest_of_another_round_than_follows() -> None:
    """[P70]"""
    false = manifest(GENESIS, [offer("founder")], "founder", round=2)
    assert "round 2 cannot follow round 0" in _refusal(Desk().start(), false)


def test_a_manifest_whose_samples_do_not_add_up() -> None:
    """[P71]"""
    false = manifest(GENESIS, [offer("founder")], "founder", samples_total=11)
    assert "claims 11 samples in all, 0 + 10 are there" in _refusal(Desk().start(), false)


def test_a_manifest_with_a_rank_that_is_another_s() -> None:
    """[P72]"""
    false = manifest(GENESIS, [offer("liar")], "liar", rank=0)
    assert "rank 0 is ounder's, not liar's" in _refusal(Desk().start(), false)
    late = manifest(GENESIS, [offer("founder")], "founder", rank=3)
    assert "rank 3 is not that of ounder" in _refusal(Desk().start(), late)


def test_a_manifest_of_another_run_is_ignored() -> None:
    """[P73]"""
    desk = Desk().start()
    false = manifest(GENESIS, [offer("founder")], "founder", run=digest("another"))
    desk.hear(ev.ManifestHeard(PeerId("liar"), false))
    assert desk.wanted == []


def test_a_manifest_of_unknown_parent_is_checked_when_its_parent_comes() -> None:
    """[P74]"""
    desk = Desk().start().see("founder")
    rounds = chain(2)
    false = manifest(head_of(rounds[0]), [offer("x")], "founder", samples_total=99)
    desk.hear(ev.ManifestHeard(PeerId("liar"), false))
    assert desk.machine.state.target() == head_of(false)
    desk.hear(ev.ManifestHeard(FOUNDER, rounds[0]))
    assert "claims 99 samples" in desk.wants(ef.Note)[0].text
    assert desk.machine.state.target() == head_of(rounds[0])
    assert len(desk.wants(ef.Fetch)) == 1
    desk = Desk().start().see("founder")
    true = manifest(head_of(rounds[0]), [offer("y", head_of(rounds[0]))], "founder")
    for heard in (true, rounds[0]):
        desk.hear(ev.ManifestHeard(FOUNDER, heard))
    assert desk.wants(ef.Note) == []
    assert desk.machine.state.target() == head_of(true)


def test_what_stands_on_a_refused_manifest_is_refused() -> None:
    """[P75]"""
    desk = Desk().start().see("liar")
    false = manifest(GENESIS, [offer("founder")], "founder", samples_total=11)
    desk.hear(ev.ManifestHeard(PeerId("liar"), false))
    child = manifest(head_of(false), [offer("founder", head_of(false))], "founder")
    desk.hear(ev.ManifestHeard(PeerId("liar"), child))
    assert "it stands on what is false" in desk.wants(ef.Note)[0].text
    assert desk.wants(ef.FetchManifests) == []


def test_a_manifest_that_contradicts_a_packet_that_is_here() -> None:
    """[P76]"""
    desk = Desk().start()
    desk.receive(offer("one", samples=10))
    false = manifest(GENESIS, [offer("one", samples=9999)], "founder")
    assert "it stands on what is false" in _refusal(desk, false)


def test_a_manifest_with_a_refused_packet() -> None:
    """[P77]"""
    desk = Desk().start()
    false = manifest(GENESIS, [offer("one")], "founder")
    desk.hear(ev.ManifestHeard(FOUNDER, false))
    desk.hear(ev.PacketRefused(offer("one").packet))
    assert "it stands on what is false" in desk.wants(ef.Note)[0].text
    assert desk.wants(ef.Fetch) == []


def test_a_lie_about_a_packet_does_not_taint_the_manifest_that_has_it_right() -> None:
    """[P78]"""
    desk = Desk().start()
    desk.hear(ev.OffersHeard(PeerId("liar"), (replace(offer("one"), samples=1000),)))
    true = manifest(GENESIS, [offer("one")], "founder")
    desk.hear(ev.ManifestHeard(FOUNDER, true))
    desk.hear(ev.PacketRefused(offer("one").packet))
    (fetch,) = desk.wants(ef.Fetch)
    assert fetch.offer == offer("one")
    desk.hear(ev.PacketFetched(fetch.packet, 1.0))
    assert desk.wants(ef.Apply) == [ef.Apply((), (true,))]


def test_an_answer_that_was_not_asked_for_is_ignored() -> None:
    """[P79]"""
    desk = Desk().start()
    desk.hear(ev.PacketFetched(digest("what"), 1.0), ev.PacketRefused(digest("what")))
    assert desk.machine.state.held == {}
    assert desk.wanted == []


def test_an_older_word_of_a_member_is_ignored() -> None:
    """[P80]"""
    desk = Desk().start()
    desk.hear(ev.MemberSeen(member("one", None, Phase.LEAVING, sequence=2)))
    desk.hear(ev.MemberSeen(member("one", GENESIS, Phase.TRAINING, sequence=1)))
    assert desk.machine.state.members.contributing() == frozenset()


def test_manifests_beside_the_chain_are_bounded_the_lightest_go() -> None:
    """[P81]"""
    desk = Desk().start()
    claims = [
        manifest(replace(GENESIS, digest=digest(n)), [offer("x")], "x", samples_total=n)
        for n in range(1000, 1001 + MAX_BESIDE)
    ]
    desk.hear(*(ev.ManifestHeard(PeerId("x"), claim) for claim in claims))
    chain_ = desk.machine.state.chain
    assert len(chain_.heads()) == MAX_BESIDE
    assert not chain_.knows(claims[0].digest)


def test_what_is_far_under_the_head_is_forgotten() -> None:
    """[P82]"""
    rounds = chain(KEEP_ROUNDS + 2)
    desk = Desk().start(*rounds[:-1])
    desk.get(rounds[-1])
    assert not desk.machine.state.chain.knows(rounds[0].digest)
    assert desk.machine.state.chain.knows(rounds[2].digest)


def test_what_was_refused_is_remembered_up_to_a_bound() -> None:
    """[P83]"""
    desk = Desk().start()
    false = [
        manifest(GENESIS, [offer("x")], "founder", samples_total=1000 + n)
        for n in range(MAX_REFUSED + 1)
    ]
    desk.hear(*(ev.ManifestHeard(PeerId("x"), each) for each in false))
    assert false[0].digest not in desk.machine.state.refused
    assert false[1].digest in desk.machine.state.refused
    desk.hear(ev.ManifestHeard(PeerId("x"), false[-1]))
    assert desk.wanted == []


def test_the_line_of_succession_cannot_be_chosen_by_a_name_alone() -> None:
    """[P84]"""
    orders = {tuple(in_line(digest(n), "a", "b", "c")) for n in range(50)}
    assert len(orders) == 6
