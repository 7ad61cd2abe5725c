"""Gifts between nodes: what was promised stays, what was fetched is kept, what is borrowed goes."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from demoloco.codec.gift import max_bytes
from demoloco.node import couriers as couriers_module
from demoloco.node.gifts import KEPT_TOLD, Given, Shelf
from demoloco.node.loans import ALL, BORROWED_ROUNDS, returned, share_left
from demoloco.rounds import events as ev
from demoloco.rounds.rules import head_of
from demoloco.types import BlobRef, Digest, Gift, Head, Loan, PeerId, Round
from demoloco.wire import digest_of
from demoloco.worker.port import Correct, Restore, Returned, TakeAgreed
from tests.node.scribe import GENESIS, SPEC
from tests.node.test_couriers import A, B, C
from tests.node.test_couriers import Desk as CourierDesk
from tests.node.test_stance import Desk as StanceDesk
from tests.node.test_stance import checkpoint_of


def gift_at(head: Head, *parts: bytes, lenders: tuple[PeerId, ...] = (A,)) -> Gift:
    blobs = tuple(BlobRef(digest=digest_of(part), size=len(part)) for part in parts)
    return Gift(head=head, blobs=blobs, lenders=lenders)


def head(round: int) -> Head:
    return Head(digest=digest_of(bytes([round])), round=Round(round), samples_total=round)


# -- giving ----------------------------------------------------------------------------------------
class Giver:
    """A shelf, and checkpoints that come and go."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.shelf = Shelf(folder / "gifts")

    def save(self, round: int, lenders: tuple[PeerId, ...] = (A,)) -> Gift:
        parts = (b"first part %d" % round, b"second %d" % round)
        file = self.folder / "gift.bin"
        file.unlink(missing_ok=True)
        file.write_bytes(b"".join(parts))
        gift = gift_at(head(round), *parts, lenders=lenders)
        self.shelf.put(gift, file)
        return gift

    def read(self, blob: BlobRef) -> bytes | None:
        reader = self.shelf.open(blob.digest)
        if reader is None:
            return None
        with reader:
            return reader.read(0, reader.size)


@pytest.fixture
def giver(tmp_path: Path) -> Giver:
    return Giver(tmp_path)


def test_without_a_checkpoint_there_is_nothing_to_give(giver: Giver) -> None:
    assert giver.shelf.tell() is None
    assert giver.shelf.open(digest_of(b"any")) is None


def test_the_newest_gift_is_told_and_its_parts_are_served(giver: Giver) -> None:
    giver.save(1)
    gift = giver.save(2)
    assert giver.shelf.tell() == gift
    assert [giver.read(blob) for blob in gift.blobs] == [b"first part 2", b"second 2"]


def test_a_gift_that_was_told_is_served_though_newer_ones_came(giver: Giver) -> None:
    told = giver.save(1)
    assert giver.shelf.tell() == told
    for number in range(2, 9):
        giver.save(number)
    assert giver.read(told.blobs[1]) == b"second 1"


def test_a_gift_that_nobody_was_told_of_goes_with_the_next(giver: Giver) -> None:
    untold = giver.save(1)
    giver.save(2)
    assert giver.read(untold.blobs[0]) is None


def test_the_number_of_gifts_is_bounded(giver: Giver) -> None:
    for number in range(1, 9):
        giver.save(number)
        giver.shelf.tell()
    giver.save(9)
    assert len(os.listdir(giver.folder / "gifts")) == KEPT_TOLD + 1


def test_a_model_that_is_borrowed_of_too_many_is_not_given(giver: Giver) -> None:
    good = giver.save(1)
    giver.save(2, lenders=tuple(PeerId(f"{n}") for n in range(9)))
    assert giver.shelf.tell() == good


def test_gifts_of_an_earlier_life_are_removed(giver: Giver) -> None:
    giver.save(1)
    Shelf(giver.folder / "gifts")
    assert not (giver.folder / "gifts").exists()


# -- fetching --------------------------------------------------------------------------------------
@pytest.fixture
def couriers() -> Iterator[CourierDesk]:
    made = CourierDesk()
    made.forget_state()
    yield made
    made.disk.close()
    for store in (made.store, made.scribe.store):
        store.close()


def offer_gift(desk: CourierDesk, holder: PeerId, round: int, *parts: bytes) -> Gift:
    gift = gift_at(head(round), *parts, lenders=(holder,))
    desk.swarm.blobs |= {digest_of(part): part for part in parts}
    desk.swarm.gifts[holder] = gift
    return gift


def given(desk: CourierDesk) -> tuple[Loan | None, bytes]:
    kept = Given(desk.store)
    return kept.loan(), kept.path.read_bytes() if kept.path.exists() else b""


async def test_a_joiner_fetches_a_gift_beside_the_agreed_state(couriers: CourierDesk) -> None:
    couriers.serve(couriers.scribe.play(GENESIS, 2, 0, 1), A)
    offer_gift(couriers, A, 3, b"one", b"two")
    assert isinstance(await couriers.snapshot(A), ev.SnapshotFetched)
    assert given(couriers) == (Loan(lenders=(A,), since=Round(3)), b"onetwo")


async def test_a_gift_is_durable_before_it_is_noted(
    couriers: CourierDesk, monkeypatch: pytest.MonkeyPatch
) -> None:
    couriers.serve(couriers.scribe.play(GENESIS, 2, 0, 1), A)
    offer_gift(couriers, A, 3, b"one", b"two")
    fsync, synced, noted = os.fsync, [], []
    note = couriers.store.note

    def syncing(descriptor: int) -> None:
        fsync(descriptor)
        synced.append((os.fstat(descriptor).st_ino, os.fstat(descriptor).st_size))

    def noting(key: str, value: bytes) -> None:
        noted.append((key, tuple(synced)))
        note(key, value)

    monkeypatch.setattr(os, "fsync", syncing)
    monkeypatch.setattr(couriers.store, "note", noting)
    await couriers.snapshot(A)
    file = Given(couriers.store).path
    (by_then,) = (synced for key, synced in noted if key == "given")
    assert (file.stat().st_ino, len(b"onetwo")) in by_then
    assert file.parent.stat().st_ino in {inode for inode, _ in by_then}


async def test_a_node_that_has_a_state_asks_for_no_gift(couriers: CourierDesk) -> None:
    rounds = couriers.scribe.play(GENESIS, 2, 0, 1)
    couriers.serve(rounds, A)
    offer_gift(couriers, A, 3, b"one")
    await couriers.snapshot(A)
    Given(couriers.store).forget()
    await couriers.snapshot(A)
    assert given(couriers) == (None, b"")


async def test_where_one_member_has_no_gift_the_next_is_asked(couriers: CourierDesk) -> None:
    couriers.serve(couriers.scribe.play(GENESIS, 2, 0, 1), A, B, C)
    offer_gift(couriers, B, 2, b"lost")
    couriers.swarm.blobs.pop(digest_of(b"lost"))
    offer_gift(couriers, C, 2, b"good")
    assert isinstance(await couriers.snapshot(A, B, C), ev.SnapshotFetched)
    assert given(couriers) == (Loan(lenders=(C,), since=Round(2)), b"good")


async def test_a_gift_that_takes_too_long_is_done_without(
    couriers: CourierDesk, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def never(holder: PeerId) -> Gift:
        return await asyncio.get_running_loop().create_future()

    monkeypatch.setattr(couriers_module, "GIFT_SECONDS", 0.0)
    monkeypatch.setattr(couriers.swarm, "gift", never)
    couriers.serve(couriers.scribe.play(GENESIS, 2, 0, 1), A)
    assert isinstance(await couriers.snapshot(A), ev.SnapshotFetched)
    assert given(couriers) == (None, b"")


@pytest.mark.parametrize(
    ("round", "size"),
    [(1, 10), (2, max_bytes(SPEC.chunks) + 1)],
    ids=["older than the snapshot", "too large"],
)
async def test_a_gift_that_is_of_no_use_is_not_fetched_and_the_join_goes_on(
    couriers: CourierDesk, round: int, size: int
) -> None:
    couriers.serve(couriers.scribe.play(GENESIS, 2, 0, 1), A)
    offer_gift(couriers, A, round, bytes(size))
    assert isinstance(await couriers.snapshot(A), ev.SnapshotFetched)
    assert given(couriers) == (None, b"")
    assert digest_of(bytes(size)) not in [blob for blob, _ in couriers.swarm.asked]


# -- what goes of a loan ---------------------------------------------------------------------------
@pytest.fixture
def desk() -> Iterator[StanceDesk]:
    made = StanceDesk()
    yield made
    made.close()


LENDER = 1  # the scribe's other contributor


def loan_of(desk: StanceDesk, since: int = 0) -> Loan:
    return Loan(lenders=(desk.scribe.identities[LENDER].peer_id,), since=Round(since))


def accept(desk: StanceDesk, since: int = 0) -> None:
    """A gift of the lender was fetched."""
    kept = Given(desk.scribe.store)
    kept.path.parent.mkdir(parents=True, exist_ok=True)
    kept.path.write_bytes(b"gift")
    kept.keep(gift_at(head(since), b"gift", lenders=loan_of(desk).lenders))


def told_by_lender(desk: StanceDesk, manifest: object) -> bytes:
    entry = manifest.entry_of(loan_of(desk).lenders[0])  # type: ignore[attr-defined]
    return desk.scribe.body(entry.packet)


async def test_a_joiner_starts_with_its_gift_less_what_was_told_since(desk: StanceDesk) -> None:
    rounds = desk.scribe.play(GENESIS, 3, 0, 1)
    accept(desk, since=1)
    assert await desk.stance.settle(head_of(rounds[-1]), None, None) == "a member's model"
    order = desk.crew.last
    assert isinstance(order, TakeAgreed)
    assert order.start is not None
    assert order.start.returned.lent == tuple(told_by_lender(desk, m) for m in rounds[1:])
    assert order.start.returned.keep == pytest.approx(1 - 2 / BORROWED_ROUNDS)


async def test_a_gift_from_ahead_of_the_joiner_is_taken_as_it_is(desk: StanceDesk) -> None:
    accept(desk, since=5)
    await desk.stance.settle(GENESIS, None, None)
    assert desk.crew.last.start.returned == Returned()
    first = await desk.apply(desk.scribe.round(GENESIS, 0, 1))
    assert first.returned == Returned()


async def test_a_gift_is_left_where_the_log_does_not_tell_what_was_told(desk: StanceDesk) -> None:
    rounds = desk.scribe.play(GENESIS, 3, 0, 1)
    accept(desk, since=1)
    entry = rounds[-1].entry_of(loan_of(desk).lenders[0])
    assert entry is not None
    del desk.scribe.store._blobs[entry.packet]  # type: ignore[attr-defined]
    assert await desk.stance.settle(head_of(rounds[-1]), None, None) == "the agreed state"
    assert desk.crew.last.start is None


async def test_what_the_lender_tells_goes_with_each_round(desk: StanceDesk) -> None:
    accept(desk)
    await desk.stance.settle(GENESIS, None, None)
    rounds = desk.scribe.play(GENESIS, 2, 0, 1)
    for number, manifest in enumerate(rounds):
        await desk.stance.move(head_of(manifest), (), (manifest,))
        order = desk.crew.last
        assert isinstance(order, Correct)
        assert order.returned.lent == (told_by_lender(desk, manifest),)
        left = BORROWED_ROUNDS - number
        assert order.returned.keep == pytest.approx((left - 1) / left)


async def test_a_gift_that_was_not_taken_binds_nobody(desk: StanceDesk) -> None:
    accept(desk)
    await desk.stance.settle(GENESIS, None, None)
    assert desk.stance._loan == loan_of(desk)
    desk.stance.declined()
    order = await desk.apply(desk.scribe.round(GENESIS, 0, 1))
    assert order.returned == Returned()


async def test_a_checkpoint_says_of_whom_its_model_is_borrowed(desk: StanceDesk) -> None:
    accept(desk)
    await desk.stance.settle(GENESIS, None, None)
    desk.stance.save_if_due()
    assert desk.crew.last.loan == loan_of(desk)


async def test_a_restored_model_gives_back_what_was_told_since(desk: StanceDesk) -> None:
    rounds = desk.scribe.play(GENESIS, 3, 0, 1)
    checkpoint = checkpoint_of(head_of(rounds[0]))
    loan = loan_of(desk)
    borrowed = replace(checkpoint.counters, lenders=loan.lenders, borrowed_since=loan.since)
    await desk.stance.settle(head_of(rounds[-1]), replace(checkpoint, counters=borrowed), None)
    order = desk.crew.last
    assert isinstance(order, Restore)
    assert order.returned.lent == tuple(told_by_lender(desk, m) for m in rounds[1:])
    assert desk.stance._loan == loan
    await desk.stance.settle(head_of(rounds[-1]), checkpoint, None)
    assert desk.crew.last.returned == ALL


# -- the rules alone -------------------------------------------------------------------------------
def nobody_has(packet: Digest) -> None:
    return None


def test_the_rest_of_a_loan_goes_evenly_and_ends() -> None:
    loan = Loan(lenders=(A,), since=Round(10))
    assert [share_left(loan, 10 + n) for n in (0, BORROWED_ROUNDS // 2, BORROWED_ROUNDS)] == [
        1.0, 0.5, 0.0,
    ]  # fmt: skip
    assert share_left(loan, 5) == 1.0


def test_all_of_a_loan_goes_where_rounds_are_missing(desk: StanceDesk) -> None:
    loan, rounds = loan_of(desk), desk.scribe.play(GENESIS, 3, 1)
    body = desk.scribe.ledger.body
    assert returned(loan, 0, 3, rounds[1:], body) == ALL
    assert returned(loan, 0, 3, (), body) == ALL
    assert returned(loan, 0, 3, rounds, nobody_has) == ALL
    assert returned(loan, 0, 3, rounds, body) != ALL
    assert returned(loan, 2, 3, rounds, body) != ALL  # a fork: more than what is new
    assert returned(None, 0, 3, (), body) == Returned()
