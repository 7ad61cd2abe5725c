"""docs/protocol.md, sentence by sentence: catching up."""

from __future__ import annotations

from dataclasses import replace

import pytest

from benchmarks.simulator.parts import digest
from demoloco.rounds import effects as ef
from demoloco.rounds import events as ev
from demoloco.rounds.chain import MAX_REPLAY
from demoloco.rounds.facts import ASIDE_SECONDS, MAX_TRIES
from demoloco.rounds.rules import head_of
from demoloco.types import Manifest, Phase
from tests.rounds.desk import (
    GENESIS,
    Desk,
    PeerId,
    at_snapshot,
    chain,
    manifest,
    member,
    offer,
)

FOUNDER = PeerId("founder")


def _aside(desk: Desk) -> list[str]:
    return [note.text for note in desk.wants(ef.Note) if "left aside" in note.text]


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


def test_a_snapshot_is_taken_whole_and_the_rest_is_replayed() -> None:
    """[P51]"""
    desk = Desk().start()
    rounds = chain(MAX_REPLAY + 2)
    desk.see("founder", head_of(rounds[-1]))
    desk.hear(at_snapshot(rounds[-3]))
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
        at_snapshot(rounds[1]),  # not heavier
        replace(at_snapshot(rounds[-1]), head=replace(parent, samples_total=10**6)),
        replace(at_snapshot(GENESIS), head=replace(GENESIS, samples_total=10**6)),
        at_snapshot(false),  # its manifest does not add up
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
    desk.hear(at_snapshot(at))
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
    desk.hear(at_snapshot(GENESIS))  # lighter than my head, and taken nevertheless
    assert len(desk.wants(ef.Adopt)) == 1


def test_a_manifest_that_does_not_apply_after_a_snapshot_either_is_refused() -> None:
    """[P61]"""
    rounds = chain(2)
    desk = Desk().start(rounds[0]).see("founder", head_of(rounds[0]))
    desk.hear(ev.ManifestHeard(FOUNDER, rounds[1]))
    desk.hear(ev.PacketFetched(rounds[1].entries[0].packet, 1.0))
    desk.hear(ev.ApplyFailed(rounds[1].digest, "another state"))
    desk.hear(at_snapshot(rounds[0]))
    desk.hear(ev.Applied(head_of(rounds[0]), digest("state")))
    assert len(desk.wants(ef.Apply)) == 1
    desk.hear(ev.ApplyFailed(rounds[1].digest, "another state"))
    assert "refused" in desk.wants(ef.Note)[0].text
    assert desk.machine.state.target() is None
