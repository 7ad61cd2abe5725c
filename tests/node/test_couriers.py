"""Errands: each ends in one event, and nothing is kept that was not checked."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from demoloco.errors import StoreError, SwarmError
from demoloco.node import couriers
from demoloco.node.couriers import Couriers
from demoloco.node.disk import Disk
from demoloco.outer.agreed import cut, fingerprint
from demoloco.rounds import effects as ef
from demoloco.rounds import events as ev
from demoloco.rounds.rules import head_of
from demoloco.store.memory import MemoryStore
from demoloco.types import BlobRef, Digest, Gift, Head, Manifest, Offer, PeerId, Round, Snapshot
from demoloco.wire import digest_of
from tests.node.scribe import GENESIS, SPEC, Scribe, report_of

A, B, C = PeerId("a"), PeerId("b"), PeerId("c")


class FakeSwarm:
    """Holders that have what they are given, and may fail."""

    def __init__(self) -> None:
        self.blobs: dict[Digest, bytes] = {}
        self.away: set[PeerId] = set()
        self.asked: list[tuple[Digest, tuple[PeerId, ...]]] = []
        self.tables: dict[PeerId, Snapshot] = {}
        self.gifts: dict[PeerId, Gift] = {}
        self.log: dict[Digest, tuple[Manifest, bytes]] = {}
        self.logs: dict[PeerId, set[Digest]] = {}  # of those who have not all
        self.most = 64
        self.break_after: int | None = None
        self.passed_on: list[Offer] = []

    def fastest(self, peers: Sequence[PeerId]) -> tuple[PeerId, ...]:
        return tuple(peers)

    def pass_on(self, offer: Offer) -> None:
        self.passed_on.append(offer)

    async def fetch(
        self,
        blob: BlobRef,
        holders: Sequence[PeerId],
        *,
        packet: bool = False,
        round: Round | None = None,
    ) -> bytes:
        self.asked.append((blob.digest, tuple(holders)))
        if self.break_after is not None and len(self.asked) > self.break_after:
            raise SwarmError("the connection broke")
        if blob.digest not in self.blobs or self.away.issuperset(holders):
            raise SwarmError("no holder delivered it")
        return self.blobs[blob.digest]

    async def snapshot(self, holder: PeerId) -> Snapshot:
        if holder in self.away or holder not in self.tables:
            raise SwarmError(f"{holder} is away")
        return self.tables[holder]

    async def gift(self, holder: PeerId) -> Gift:
        if holder in self.away or holder not in self.gifts:
            raise SwarmError(f"{holder} has no gift")
        return self.gifts[holder]

    async def manifests(
        self, holder: PeerId, head: Digest, count: int
    ) -> tuple[tuple[Manifest, bytes], ...]:
        if holder in self.away:
            raise SwarmError(f"{holder} is away")
        if holder in self.logs and head not in self.logs[holder]:
            raise SwarmError(f"{holder} does not have it")
        found: list[tuple[Manifest, bytes]] = []
        while head in self.log and len(found) < min(count, self.most):
            found.append(self.log[head])
            head = found[-1][0].parent
        if not found:
            raise SwarmError(f"{holder} does not have it")
        return tuple(found)


class Desk:
    """Couriers of a fresh node, a swarm, and what another node would have written."""

    def __init__(self) -> None:
        self.scribe = Scribe()
        self.store = MemoryStore(snapshot_every=1000)
        self.ledger = self.scribe.new_ledger(self.store)
        self.swarm = FakeSwarm()
        self.disk = Disk()
        self.events: list[ev.Event] = []
        swarm: Any = self.swarm
        self.couriers = Couriers(swarm, self.ledger, self.disk, report_of(), self.events.append)

    def forget_state(self) -> None:
        """The node is new: it has no agreed state yet."""
        self.store._states.clear()
        self.store._head = None

    def serve(self, manifests: Sequence[Manifest], *holders: PeerId) -> Snapshot:
        """These holders serve the state after the last of the manifests, in parts of one chunk."""
        for manifest in manifests:
            sealed = self.scribe.ledger.sealed(manifest.digest)
            assert sealed is not None
            self.swarm.log[manifest.digest] = (manifest, sealed)
        head = head_of(manifests[-1]) if manifests else GENESIS
        state = self.scribe.store.state(head.digest)
        assert state is not None
        parts = [
            bytes(part) for chunk in range(len(state)) for part in cut(state[chunk : chunk + 1])
        ]
        self.swarm.blobs |= {digest_of(part): part for part in parts}
        table = tuple(BlobRef(digest=digest_of(part), size=len(part)) for part in parts)
        for holder in holders:
            self.swarm.tables[holder] = Snapshot(head=head, blobs=table)
        return Snapshot(head=head, blobs=table)

    async def snapshot(self, *holders: PeerId) -> ev.Event:
        await self.couriers.fetch_snapshot(ef.FetchSnapshot(holders))
        return self.event()

    async def packet(self, offer: Offer, claim: Offer | None = None) -> ev.Event:
        errand = ef.Fetch(offer.packet, offer.size, (A, B), claim or offer)
        await self.couriers.fetch_packet(errand)
        return self.event()

    def event(self) -> ev.Event:
        (event,) = self.events
        self.events.clear()
        return event

    def close(self) -> None:
        self.disk.close()
        self.store.close()
        self.scribe.store.close()


@pytest.fixture
async def desk() -> AsyncIterator[Desk]:
    made = Desk()
    yield made
    made.close()


def failing(error: Exception) -> Callable[..., Any]:
    def fail(*args: object) -> Any:
        raise error

    return fail


# -- packets ---------------------------------------------------------------------------------------
async def test_a_packet_is_checked_kept_and_then_told_of(desk: Desk) -> None:
    sealed, offer = desk.scribe.packet(GENESIS, 1)
    desk.swarm.blobs[offer.packet] = sealed
    event = await desk.packet(offer)
    assert isinstance(event, ev.PacketFetched)
    assert (event.packet, event.norm > 0) == (offer.packet, True)
    assert desk.store.get(offer.packet) == sealed
    assert desk.swarm.passed_on == [offer]


async def test_a_packet_that_is_here_is_not_fetched_again(desk: Desk) -> None:
    sealed, offer = desk.scribe.packet(GENESIS, 1)
    desk.ledger.store_packet(sealed, offer)
    assert isinstance(await desk.packet(offer), ev.PacketFetched)
    assert desk.swarm.asked == []


async def test_a_packet_that_is_here_is_compared_with_what_was_announced(desk: Desk) -> None:
    sealed, offer = desk.scribe.packet(GENESIS, 1)
    desk.ledger.store_packet(sealed, offer)
    assert await desk.packet(offer, replace(offer, samples=9)) == ev.PacketRefused(offer.packet)


async def test_a_bad_packet_is_refused_and_not_kept(desk: Desk) -> None:
    sealed, offer = desk.scribe.packet(GENESIS, 1, spec=b"othrspec")
    desk.swarm.blobs[offer.packet] = sealed
    assert await desk.packet(offer) == ev.PacketRefused(offer.packet)
    assert desk.store.get(offer.packet) is None
    assert desk.swarm.passed_on == []


async def test_a_packet_announced_beyond_the_limit_is_not_even_asked_for(desk: Desk) -> None:
    _, offer = desk.scribe.packet(GENESIS, 1)
    over = replace(offer, size=desk.ledger.expected.max_packet_bytes + 1)
    assert await desk.packet(over) == ev.PacketRefused(offer.packet)
    assert desk.swarm.asked == []


async def test_a_packet_that_nobody_delivers_has_failed(desk: Desk) -> None:
    _, offer = desk.scribe.packet(GENESIS, 1)
    assert await desk.packet(offer) == ev.FetchFailed(offer.packet)


async def test_a_packet_that_cannot_be_stored_has_failed(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    sealed, offer = desk.scribe.packet(GENESIS, 1)
    desk.swarm.blobs[offer.packet] = sealed
    monkeypatch.setattr(desk.store, "put", failing(StoreError("no room")))
    assert await desk.packet(offer) == ev.FetchFailed(offer.packet)


# -- manifests -------------------------------------------------------------------------------------
async def test_manifests_are_at_hand_before_they_are_told_of(desk: Desk) -> None:
    rounds = desk.scribe.play(GENESIS, 2, 1)
    desk.serve(rounds, A)
    await desk.couriers.fetch_manifests(ef.FetchManifests(A, rounds[-1].digest))
    assert desk.event() == ev.ManifestsFetched(A, tuple(reversed(rounds)))
    assert desk.ledger.manifest(rounds[0].digest) == rounds[0]


async def test_each_step_down_asks_for_more_manifests(desk: Desk) -> None:
    rounds = desk.scribe.play(GENESIS, 12, 1)
    desk.serve(rounds, A)
    for top, count in ((12, 2), (10, 8), (2, 2)):
        await desk.couriers.fetch_manifests(ef.FetchManifests(A, rounds[top - 1].digest))
        assert desk.event() == ev.ManifestsFetched(A, tuple(reversed(rounds[top - count : top])))


async def test_manifests_that_a_holder_lacks_have_failed(desk: Desk) -> None:
    await desk.couriers.fetch_manifests(ef.FetchManifests(A, Digest(b"?" * 32)))
    assert desk.event() == ev.ManifestsFailed(A, Digest(b"?" * 32))


# -- snapshots -------------------------------------------------------------------------------------
async def test_a_snapshot_comes_from_several_holders_and_becomes_the_state(desk: Desk) -> None:
    desk.forget_state()
    rounds = desk.scribe.play(GENESIS, 3, 0, 1)
    served = desk.serve(rounds, A, B, C)
    event = await desk.snapshot(A, B, C)
    name = fingerprint(part.digest for part in served.blobs)
    assert event == ev.SnapshotFetched(served.head, name, rounds[-1])
    assert {holders[0] for _, holders in desk.swarm.asked} == {B, C}  # A is asked for a gift
    there = desk.store.state(served.head.digest)
    assert there is not None
    assert np.array_equal(there, np.asarray(desk.scribe.store.state(served.head.digest)))
    assert desk.store.head() == served.head


async def test_a_joiner_asks_those_too_whom_it_met_a_moment_later(desk: Desk) -> None:
    desk.forget_state()
    desk.serve(desk.scribe.play(GENESIS, 1, 0, 1), A, B)
    await desk.couriers.fetch_snapshot(ef.FetchSnapshot((A,)), lambda: (A, B))
    assert isinstance(desk.event(), ev.SnapshotFetched)
    assert {holder for _, holders in desk.swarm.asked for holder in holders} == {B}


async def test_a_snapshot_goes_on_where_it_broke_off(desk: Desk) -> None:
    desk.forget_state()
    served = desk.serve(desk.scribe.play(GENESIS, 1, 0, 1), A)
    desk.swarm.break_after = 1
    event = await desk.snapshot(A)
    assert event == ev.SnapshotFailed("the connection broke")
    there, desk.swarm.break_after = {name for name, _ in desk.swarm.asked[:1]}, None
    desk.swarm.asked.clear()
    assert isinstance(await desk.snapshot(A), ev.SnapshotFetched)
    assert {name for name, _ in desk.swarm.asked} == {p.digest for p in served.blobs} - there


async def test_a_snapshot_that_was_begun_goes_on_though_there_is_a_newer_one(desk: Desk) -> None:
    desk.forget_state()
    rounds = desk.scribe.play(GENESIS, 4, 0, 1)
    begun = desk.serve(rounds[:2], A, B)
    desk.swarm.break_after = 1
    assert isinstance(await desk.snapshot(A, B), ev.SnapshotFailed)
    desk.serve(rounds, A, B)
    desk.swarm.break_after = None
    event = await desk.snapshot(A, B)
    assert isinstance(event, ev.SnapshotFetched)
    assert (event.head, event.manifest) == (begun.head, rounds[1])
    assert len(desk.swarm.asked) == 2 + len(begun.blobs)  # what broke: without the giver, with all


async def test_a_snapshot_that_nobody_has_any_longer_gives_way_to_the_newest(desk: Desk) -> None:
    desk.forget_state()
    rounds = desk.scribe.play(GENESIS, 4, 0, 1)
    begun = desk.serve(rounds[:2], A)
    desk.swarm.break_after = 1
    assert isinstance(await desk.snapshot(A), ev.SnapshotFailed)
    desk.swarm.break_after = None
    for part in begun.blobs:
        del desk.swarm.blobs[part.digest]
    newest = desk.serve(rounds, A)
    event = await desk.snapshot(A)
    assert isinstance(event, ev.SnapshotFetched)
    assert event.head == newest.head


async def test_a_snapshot_that_was_begun_too_long_ago_gives_way_to_the_newest(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    desk.forget_state()
    rounds = desk.scribe.play(GENESIS, 4, 0, 1)
    desk.serve(rounds[:2], A)
    desk.swarm.break_after = 1
    assert isinstance(await desk.snapshot(A), ev.SnapshotFailed)
    desk.swarm.break_after = None
    newest = desk.serve(rounds, A)
    monkeypatch.setattr(couriers, "BEGUN_SECONDS", -1.0)
    event = await desk.snapshot(A)
    assert isinstance(event, ev.SnapshotFetched)
    assert event.head == newest.head


async def test_a_snapshot_that_leads_nowhere_any_longer_is_not_ended(desk: Desk) -> None:
    rounds = desk.scribe.play(GENESIS, 4, 0, 1)
    begun = desk.serve(rounds[:2], A)
    desk.swarm.break_after = 1
    assert isinstance(await desk.snapshot(A), ev.SnapshotFailed)
    desk.swarm.break_after = None
    desk.store.create_state(begun.head, lambda out: out.fill(1.0), SPEC.chunks)
    desk.store.move_head(begun.head)  # it came there by itself
    newest = desk.serve(rounds, A)
    event = await desk.snapshot(A)
    assert isinstance(event, ev.SnapshotFetched)
    assert event.head == newest.head


async def test_where_one_holder_is_away_the_next_is_asked(desk: Desk) -> None:
    desk.forget_state()
    served = desk.serve(desk.scribe.play(GENESIS, 1, 0, 1), A, B)
    desk.swarm.away = {A}
    event = await desk.snapshot(A, B)
    assert isinstance(event, ev.SnapshotFetched)
    assert event.head == served.head


async def test_every_try_begins_with_another_holder(desk: Desk) -> None:
    desk.forget_state()
    rounds = desk.scribe.play(GENESIS, 2, 0, 1)
    desk.serve(rounds, A)
    desk.serve(rounds[:1], B)
    first, second = await desk.snapshot(A, B), await desk.snapshot(A, B)
    assert isinstance(first, ev.SnapshotFetched)
    assert isinstance(second, ev.SnapshotFetched)
    assert (first.head, second.head) == (head_of(rounds[1]), head_of(rounds[0]))


@pytest.mark.parametrize("lie", [{"samples_total": 10**9}, {"rank": 3}, {"round": 7}])
async def test_a_head_that_is_not_its_manifests_is_not_taken(
    desk: Desk, lie: dict[str, Any]
) -> None:
    desk.forget_state()
    served = desk.serve(desk.scribe.play(GENESIS, 1, 0, 1), A)
    desk.swarm.tables[A] = replace(served, head=replace(served.head, **lie))
    event = await desk.snapshot(A)
    assert event == ev.SnapshotFailed("a snapshot's head is not that of its manifest")
    assert desk.store.head() is None


async def test_a_round_0_of_another_run_is_not_taken(desk: Desk) -> None:
    desk.forget_state()
    served = desk.serve([], A)
    for head in (replace(GENESIS, samples_total=5), replace(GENESIS, digest=Digest(b"?" * 32))):
        desk.swarm.tables[A] = replace(served, head=head)
        event = await desk.snapshot(A)
        assert isinstance(event, ev.SnapshotFailed)
        assert "genesis" in event.why


async def test_the_state_of_the_genesis_is_taken(desk: Desk) -> None:
    desk.forget_state()
    desk.serve([], A)
    event = await desk.snapshot(A)
    assert isinstance(event, ev.SnapshotFetched)
    assert (event.head, event.manifest) == (GENESIS, None)


async def test_a_snapshot_of_another_size_is_not_taken(desk: Desk) -> None:
    desk.forget_state()
    served = desk.serve(desk.scribe.play(GENESIS, 1, 0, 1), A)
    assert len(served.blobs) == SPEC.chunks
    desk.swarm.tables[A] = replace(served, blobs=served.blobs[:-1])
    event = await desk.snapshot(A)
    assert event == ev.SnapshotFailed("a snapshot of another size than this run's model")


async def test_where_nobody_serves_a_snapshot_that_is_said(desk: Desk) -> None:
    assert await desk.snapshot() == ev.SnapshotFailed("nobody serves one")


async def test_a_disk_without_room_fails_the_snapshot_not_the_node(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    desk.forget_state()
    desk.serve(desk.scribe.play(GENESIS, 1, 0, 1), A)
    monkeypatch.setattr(desk.store, "put_part", failing(StoreError("no room")))
    assert await desk.snapshot(A) == ev.SnapshotFailed("no room")


async def test_a_state_that_differs_from_the_swarms_is_replaced(desk: Desk) -> None:
    rounds = desk.scribe.play(GENESIS, 1, 0, 1)
    head = head_of(rounds[0])

    def wrong(out: Any) -> None:
        out[:] = 1.0

    desk.store.create_state(head, wrong, SPEC.chunks)
    served = desk.serve(rounds, A)
    assert isinstance(await desk.snapshot(A), ev.SnapshotFetched)
    assert desk.store.snapshot_of(head.digest) == served


async def test_the_log_is_joined_with_mine_across_a_fork(desk: Desk) -> None:
    theirs = desk.scribe.play(GENESIS, 5, 1)
    desk.serve(theirs, A)
    desk.swarm.most = 2
    assert isinstance(await desk.snapshot(A), ev.SnapshotFetched)
    head: Head = head_of(theirs[-1])
    assert desk.ledger.fork(GENESIS.digest, head.digest) == ((), tuple(theirs))


async def test_the_log_between_comes_from_whoever_has_it(desk: Desk) -> None:
    theirs = desk.scribe.play(GENESIS, 5, 1)
    desk.serve(theirs, A)
    desk.swarm.most = 1
    desk.swarm.logs = {A: {theirs[-1].digest}, B: {manifest.digest for manifest in theirs[:-1]}}
    assert isinstance(await desk.snapshot(A, B), ev.SnapshotFetched)
    assert desk.ledger.fork(GENESIS.digest, theirs[-1].digest) == ((), tuple(theirs))


async def test_what_of_the_log_is_at_hand_becomes_durable(desk: Desk) -> None:
    theirs = desk.scribe.play(GENESIS, 4, 1)
    desk.serve(theirs, A)
    desk.swarm.most = 1
    for manifest in theirs[1:3]:
        sealed = desk.scribe.ledger.sealed(manifest.digest)
        assert sealed is not None
        desk.ledger.remember(manifest, sealed)
        del desk.swarm.log[manifest.digest]
    assert isinstance(await desk.snapshot(A), ev.SnapshotFetched)
    links = desk.store.lineage(theirs[-1].digest, 9)
    assert [link.head for link in links] == [head_of(each) for each in reversed(theirs)]


async def test_a_log_without_end_is_not_followed_for_ever(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(couriers, "LOG_PACKETS", 3)
    theirs = desk.scribe.play(GENESIS, 9, 1)
    desk.serve(theirs, A)
    desk.swarm.most = 1
    assert isinstance(await desk.snapshot(A), ev.SnapshotFetched)
    assert len(desk.store.lineage(theirs[-1].digest, 99)) == 1 + 4


async def test_a_log_that_does_not_reach_so_far_does_not_spoil_the_state(desk: Desk) -> None:
    theirs = desk.scribe.play(GENESIS, 3, 1)
    desk.serve(theirs, A)
    desk.swarm.most = 1
    del desk.swarm.log[theirs[0].digest]
    assert isinstance(await desk.snapshot(A), ev.SnapshotFetched)
    assert desk.ledger.fork(GENESIS.digest, theirs[-1].digest) is None
