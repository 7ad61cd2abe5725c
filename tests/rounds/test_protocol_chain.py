"""docs/protocol.md, sentence by sentence: catching up, forks, what is refused."""

from __future__ import annotations

from dataclasses import replace

import pytest

from demoloco.rounds import effects as ef
from demoloco.rounds import events as ev
from demoloco.rounds.chain import KEEP_ROUNDS, MAX_BESIDE
from demoloco.rounds.decide import MAX_REPLAY
from demoloco.rounds.facts import ASIDE_SECONDS, MAX_REFUSED, MAX_TRIES
from demoloco.rounds.rules import head_of
from demoloco.types import Head, Manifest, Phase
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
from tests.sim import digest

FOUNDER = PeerId("founder")


def _aside(desk: Desk) -> list[str]:
    return [note.text for note in desk.wants(ef.Note) if "left aside" in note.text]


# -- catching up -----------------------------------------------------------------------------------
def test_the_heaviest_head_that_is_known_is_the_target() -> None:
    """[P40]"""
    desk = Desk().start()
    near, far = chain(1), chain(3)
    desk.see("one", head_of(near[-1]))
    assert desk.wants(ef.FetchManifests) == [ef.FetchManifests(PeerId("one"), near[-1].digest)]
    desk.hear(ev.ManifestHeard(FOUNDER, near[-1]))
    desk.see("two", head_of(far[-1]))
    assert desk.wants(ef.FetchManifests) == [ef.FetchManifests(PeerId("two"), far[-1].digest)]


def test_of_a_manifest_that_i_know_nobody_s_claim_counts() -> None:
    """[P41]"""
    rounds = chain(2)
    desk = Desk().start(*rounds)
    for known in (GENESIS, head_of(rounds[0]), head_of(rounds[1])):
        desk.see("liar", replace(known, samples_total=10**9))
        assert desk.machine.state.target() is None


def test_the_manifests_between_come_from_who_has_that_head_then_from_others() -> None:
    """[P42]"""
    desk = Desk().start()
    rounds = chain(4)
    desk.see("also", head_of(rounds[3]))
    assert desk.wants(ef.FetchManifests) == [ef.FetchManifests(PeerId("also"), rounds[3].digest)]
    desk.see("half", head_of(rounds[1])).see("full", head_of(rounds[3]))
    desk.hear(ev.ManifestsFailed(PeerId("also"), rounds[3].digest))
    desk.wake(1.0)
    assert desk.wants(ef.FetchManifests) == [ef.FetchManifests(PeerId("full"), rounds[3].digest)]
    desk.hear(ev.ManifestsFetched(PeerId("full"), tuple(reversed(rounds[2:]))))
    (rest,) = desk.wants(ef.FetchManifests)
    assert rest.head == rounds[1].digest


def test_rounds_are_applied_one_by_one_oldest_first() -> None:
    """[P43]"""
    desk = Desk().start()
    rounds = chain(3)
    desk.see("one", head_of(rounds[-1]))
    desk.hear(ev.ManifestsFetched(PeerId("one"), tuple(reversed(rounds))))
    for each in rounds:
        (fetch,) = desk.wants(ef.Fetch)
        desk.hear(ev.PacketFetched(fetch.packet, 1.0))
        assert desk.wants(ef.Apply) == [ef.Apply((), (each,))]
        desk.apply()
    assert desk.head == head_of(rounds[-1])


def test_one_round_behind_the_open_round_goes_on() -> None:
    """[P44]"""
    desk = Desk().start()
    desk.hear(ev.ManifestHeard(FOUNDER, chain(1)[0]))
    desk.train()
    assert len(desk.wants(ef.Contribute)) == 1
    assert desk.machine.phase is Phase.TRAINING


def test_further_behind_nothing_new_is_begun() -> None:
    """[P45]"""
    desk = Desk("founder").start()
    rounds = chain(2, "other")
    desk.see("other", head_of(rounds[-1]))
    desk.hear(ev.ManifestsFetched(PeerId("other"), tuple(reversed(rounds))))
    desk.train()
    assert desk.wanted == []
    assert desk.machine.phase is Phase.CATCHING_UP


def _behind(bytes: int, length: int = 7, every: int = 5, on: int = 0) -> Desk:
    """So many rounds of a packet of 100 bytes each are known; a snapshot has `bytes`."""
    rounds = chain(length)
    desk = Desk(snapshot_bytes=bytes, snapshot_every=every).start(*rounds[:on])
    desk.see("founder", head_of(rounds[-1]))
    desk.hear(ev.ManifestsFetched(FOUNDER, tuple(reversed(rounds[on:]))))
    return desk


def test_a_snapshot_is_taken_where_the_packets_that_it_spares_have_more_bytes() -> None:
    """[P46]"""
    assert len(_behind(500).wants(ef.FetchSnapshot)) == 0  # packets of as many bytes
    assert len(_behind(499).wants(ef.FetchSnapshot)) == 1
    assert len(_behind(301, length=13, every=10, on=7).wants(ef.FetchSnapshot)) == 0
    assert len(_behind(299, length=13, every=10, on=7).wants(ef.FetchSnapshot)) == 1
    assert len(_behind(0, on=5).wants(ef.FetchSnapshot)) == 0  # it spares nothing
    assert len(_behind(0, length=5, on=4).wants(ef.FetchSnapshot)) == 0  # nobody may serve it yet
    assert len(_behind(0, length=4).wants(ef.FetchSnapshot)) == 0  # there is none
    rounds = chain(7)
    desk = Desk(snapshot_bytes=399).start()
    desk.see("founder", head_of(rounds[-1]))
    desk.hear(ev.ManifestsFetched(FOUNDER, tuple(reversed(rounds[2:]))))
    assert len(desk.wants(ef.FetchManifests)) == 1  # three packets so far
    desk.hear(ev.ManifestsFetched(FOUNDER, (rounds[1],)))
    assert desk.wants(ef.FetchManifests) == []
    assert len(desk.wants(ef.FetchSnapshot)) == 1


def test_where_no_snapshot_is_to_be_had_dear_packets_are_fetched() -> None:
    """[P47]"""
    desk = _behind(0)
    assert desk.wants(ef.Fetch) == []
    desk.fail(ev.SnapshotFailed("nobody answers"))
    assert [fetch.packet for fetch in desk.wants(ef.Fetch)] == [chain(1)[0].entries[0].packet]


def test_far_behind_a_snapshot_is_taken() -> None:
    """[P48]"""
    desk = Desk(snapshot_bytes=10**9).start()
    rounds = chain(MAX_REPLAY + 1)
    desk.see("near", head_of(rounds[MAX_REPLAY - 1]))
    assert desk.wants(ef.FetchSnapshot) == []
    desk.see("far", head_of(rounds[-1]))
    assert desk.wants(ef.FetchSnapshot) == [ef.FetchSnapshot((PeerId("far"), PeerId("near")))]
    assert desk.wants(ef.FetchManifests) == []


def test_where_a_manifest_on_the_way_is_not_to_be_had_a_snapshot_is_taken() -> None:
    """[P49]"""
    desk = Desk().start()
    rounds = chain(3)
    desk.see("founder", head_of(rounds[-1]))
    desk.hear(ev.ManifestsFetched(FOUNDER, tuple(reversed(rounds[1:]))))
    desk.fail(ev.ManifestsFailed(FOUNDER, rounds[0].digest))
    assert len(desk.wants(ef.FetchSnapshot)) == 1


@pytest.mark.parametrize("fork", [False, True])
def test_where_packets_on_the_way_are_not_to_be_had_a_snapshot_is_taken(fork: bool) -> None:
    """[P50]"""
    desk = Desk().start(*(chain(1, "other") if fork else ()))
    rounds = chain(3)
    desk.see("founder", head_of(rounds[-1]))
    desk.hear(ev.ManifestsFetched(FOUNDER, tuple(reversed(rounds))))
    for fetch in desk.wants(ef.Fetch)[:-1]:
        desk.hear(ev.PacketFetched(fetch.packet, 1.0))
    last = rounds[-1] if fork else rounds[0]
    desk.fail(ev.FetchFailed(last.entries[0].packet))
    assert len(desk.wants(ef.FetchSnapshot)) == 1


def _at_snapshot(at: Manifest | Head) -> ev.SnapshotFetched:
    head = at if isinstance(at, Head) else head_of(at)
    made = at if isinstance(at, Manifest) else None
    return ev.SnapshotFetched(head, digest("state after", head.digest), made)


def test_a_snapshot_is_taken_whole_and_the_rest_is_replayed() -> None:
    """[P51]"""
    desk = Desk().start()
    rounds = chain(MAX_REPLAY + 2)
    desk.see("founder", head_of(rounds[-1]))
    desk.hear(_at_snapshot(rounds[-3]))
    (adopt,) = desk.wants(ef.Adopt)
    assert adopt.head == head_of(rounds[-3])
    desk.hear(ev.Applied(adopt.head, adopt.fingerprint))
    assert desk.head == adopt.head
    assert len(desk.wants(ef.FetchManifests)) == 1
    desk.hear(ev.ManifestsFetched(FOUNDER, (rounds[-1], rounds[-2])))
    (fetch,) = desk.wants(ef.Fetch)
    assert fetch.packet == rounds[-2].entries[0].packet


def test_a_snapshot_that_is_not_heavier_is_of_no_use_and_counts_as_failed() -> None:
    """[P52]"""
    rounds = chain(MAX_REPLAY + 3)
    parent = head_of(rounds[0])
    false = manifest(parent, [offer("x", parent)], "founder", samples_total=10**6)
    useless = [
        _at_snapshot(rounds[1]),  # not heavier
        replace(_at_snapshot(rounds[-1]), head=replace(parent, samples_total=10**6)),
        replace(_at_snapshot(GENESIS), head=replace(GENESIS, samples_total=10**6)),
        _at_snapshot(false),  # its manifest does not add up
    ]
    for snapshot in useless:
        desk = Desk().start(*rounds[:2])
        desk.see("founder", head_of(rounds[-1]))
        desk.hear(snapshot)
        assert snapshot.manifest is not false or "refused" in desk.wants(ef.Note)[0].text
        assert desk.wants(ef.Adopt) + desk.wants(ef.FetchSnapshot) == []
        desk.wake(1.0)
        assert len(desk.wants(ef.FetchSnapshot)) == 1


def test_what_the_log_up_to_a_snapshot_tells_of_me_is_accounted_for() -> None:
    """[P53]"""
    for known in (True, False):  # to the machine; the log on the disk reaches further
        desk = Desk().start()
        first = manifest(GENESIS, [desk.contribute(10)], "founder")
        last = manifest(head_of(first), [offer("x", head_of(first))], "x", ("me",))
        _take_snapshot(desk, [first, last], known=known, told=12, untold=7)
        assert desk.owed == (0 if known else 5)


def test_where_the_log_does_not_reach_what_is_owed_stays_owed() -> None:
    """[P54]"""
    desk = Desk().start()
    first = manifest(GENESIS, [desk.contribute(10)], "founder")
    last = manifest(head_of(first), [offer("x", head_of(first))], "x", ("me",))
    _take_snapshot(desk, [first, last], known=False, unknown=1)
    assert desk.owed == 10
    warning = desk.wants(ef.Note)[0]
    assert warning.warning
    assert "in rounds up to 1 cannot be accounted for" in warning.text


def _take_snapshot(desk: Desk, rounds: list[Manifest], *, known: bool, **log: int) -> None:
    """The state of the first round, if the way is known; else of the last."""
    far = replace(head_of(rounds[-1]), round=MAX_REPLAY + 9, digest=digest("far"))
    at = rounds[0] if known else rounds[-1]
    desk.see("founder", replace(far, samples_total=10**6))
    assert len(desk.wants(ef.FetchSnapshot)) == 1
    if known:
        desk.hear(ev.ManifestHeard(FOUNDER, at))
    desk.hear(_at_snapshot(at))
    assert desk.wants(ef.Commit) == ([ef.Commit(at)] if known else [])
    (adopt,) = desk.wants(ef.Adopt)
    desk.hear(ev.Applied(adopt.head, adopt.fingerprint, **log))
    assert desk.head == head_of(at)


def test_a_head_that_nobody_can_deliver_is_left_aside_for_a_while() -> None:
    """[P55]"""
    desk = Desk().start()
    lost = chain(1)[0]
    desk.see("founder", head_of(lost))
    desk.fail(ev.ManifestsFailed(FOUNDER, lost.digest))
    assert "nobody has its manifest" in _aside(desk)[0]
    assert desk.machine.state.target() is None
    desk.wake(ASIDE_SECONDS - 0.1)
    assert desk.wants(ef.FetchManifests) == []
    desk.wake(0.2)
    assert len(desk.wants(ef.FetchManifests)) == 1


def test_a_manifest_whose_packets_nobody_has_is_left_aside_for_a_lighter_one() -> None:
    """[P56]"""
    desk = Desk().start()
    heavy = manifest(GENESIS, [offer("gone", samples=99)], "founder")
    light = manifest(GENESIS, [offer("here")], "here")
    desk.receive(offer("here"))
    desk.hear(ev.ManifestHeard(FOUNDER, heavy), ev.ManifestHeard(PeerId("here"), light))
    desk.fail(ev.FetchFailed(offer("gone").packet), MAX_TRIES - 1)
    assert desk.wants(ef.Apply) == []
    desk.wake(20.0)
    desk.hear(ev.FetchFailed(offer("gone").packet))
    assert "nobody has its packets" in _aside(desk)[0]
    assert desk.wants(ef.Apply) == [ef.Apply((), (light,))]


def test_without_anybody_to_ask_a_head_is_left_aside() -> None:
    """[P57]"""
    desk = Desk("founder").start()
    desk.hear(ev.ManifestHeard(PeerId("other"), chain(2, "other")[1]))
    assert "nobody is there to ask" in _aside(desk)[0]
    desk.contribute()
    assert len(desk.wants(ef.Propose)) == 1


def test_a_head_to_which_no_snapshot_leads_is_left_aside() -> None:
    """[P58]"""
    desk = Desk().start()
    desk.see("founder", head_of(chain(MAX_REPLAY + 1)[-1]))
    desk.fail(ev.SnapshotFailed("nobody answers"))
    assert "no snapshot leads to it" in _aside(desk)[0]


def test_a_new_member_or_the_manifest_itself_ends_the_waiting() -> None:
    """[P59]"""
    for way in (ev.MemberSeen(member("new", None)), ev.ManifestHeard(FOUNDER, chain(1)[0])):
        desk = Desk().start()
        desk.see("founder", head_of(chain(1)[0]))
        desk.fail(ev.ManifestsFailed(FOUNDER, chain(1)[0].digest))
        assert desk.machine.state.target() is None
        desk.hear(way)
        assert desk.machine.state.target() == head_of(chain(1)[0])


def test_a_manifest_that_does_not_apply_puts_my_own_state_in_doubt() -> None:
    """[P60]"""
    rounds = chain(2)
    desk = Desk().start(rounds[0]).see("founder", head_of(rounds[0]))
    desk.hear(ev.ManifestHeard(FOUNDER, rounds[1]))
    desk.hear(ev.PacketFetched(rounds[1].entries[0].packet, 1.0))
    desk.hear(ev.ApplyFailed(rounds[1].digest, "another state"))
    assert len(desk.wants(ef.FetchSnapshot)) == 1
    desk.hear(_at_snapshot(GENESIS))  # lighter than my head, and taken nevertheless
    assert len(desk.wants(ef.Adopt)) == 1


def test_a_manifest_that_does_not_apply_after_a_snapshot_either_is_refused() -> None:
    """[P61]"""
    rounds = chain(2)
    desk = Desk().start(rounds[0]).see("founder", head_of(rounds[0]))
    desk.hear(ev.ManifestHeard(FOUNDER, rounds[1]))
    desk.hear(ev.PacketFetched(rounds[1].entries[0].packet, 1.0))
    desk.hear(ev.ApplyFailed(rounds[1].digest, "another state"))
    desk.hear(_at_snapshot(rounds[0]))
    desk.hear(ev.Applied(head_of(rounds[0]), digest("state")))
    assert len(desk.wants(ef.Apply)) == 1
    desk.hear(ev.ApplyFailed(rounds[1].digest, "another state"))
    assert "refused" in desk.wants(ef.Note)[0].text
    assert desk.machine.state.target() is None


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
    desk.fail(_at_snapshot(lost[-1]))
    assert desk.machine.state.target() is None
    desk.wake(ASIDE_SECONDS)
    assert len(desk.wants(ef.FetchSnapshot)) == 1
    desk.hear(_at_snapshot(won[-1]))
    assert [wish.head for wish in desk.wants(ef.Adopt)] == [head_of(won[-1])]


# -- forks -----------------------------------------------------------------------------------------
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


# -- what is refused -------------------------------------------------------------------------------
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
