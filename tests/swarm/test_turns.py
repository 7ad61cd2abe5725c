"""The small tables behind routing: slots, turns, holders, and whom to ask first."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable

import pytest

from demoloco.swarm.blobs import holders as holders_module
from demoloco.swarm.blobs.holders import Holders
from demoloco.swarm.blobs.preference import BUSY_SECONDS, FULL_SECONDS, LAST_SECONDS, Preference
from demoloco.swarm.blobs.slots import (
    MAX_OF_ONE,
    MAX_SLOTS,
    SMALL_BYTES,
    SMALL_SLOTS,
    SPARE_SECONDS,
    STALL_SECONDS,
    UNKNOWN_SLOTS,
    Slots,
    is_thin,
    spare_seconds,
)
from demoloco.swarm.blobs.turns import MAX_DOWNLOADS, MAX_TURNS, MIN_TURNS, UNKNOWN_TURNS, Turns
from demoloco.swarm.port import Link
from demoloco.swarm.standing import Standing
from demoloco.types import Digest, PeerId
from demoloco.wire import digest_of
from tests.contract.swarm_lab import Shelf
from tests.faults.virtual_time import in_virtual_time
from tests.wire.values import ME

MBIT = 125_000.0
LARGE = 1 << 20
ANN, BOB, CAT = PeerId("ann"), PeerId("bob"), PeerId("cat")


def name(number: int) -> Digest:
    return digest_of(b"%d" % number)


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def slots_of(up: float) -> tuple[Slots, Clock]:
    clock = Clock()
    return Slots(lambda: Link(up=up), clock), clock


# -- slots -----------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("mbit", "count"),
    [(0, UNKNOWN_SLOTS), (0.5, 1), (2, 1), (5, 1), (10, 2), (20, 4), (1000, MAX_SLOTS)],
)
def test_an_uplink_has_as_many_slots_as_it_carries(mbit: float, count: int) -> None:
    slots, _ = slots_of(mbit * MBIT)
    assert slots.count == count
    taken = [slots.take(PeerId(f"{n}"), name(n), LARGE) for n in range(2 * MAX_SLOTS)]
    assert sum(upload is not None for upload in taken) == count


def test_a_slot_that_is_free_again_is_given_again() -> None:
    slots, _ = slots_of(MBIT)
    upload = slots.take(ANN, name(1), LARGE)
    assert upload is not None
    assert slots.taking(name(1)) == [ANN]
    assert slots.take(BOB, name(2), LARGE) is None
    slots.free(upload)
    assert slots.take(BOB, name(2), LARGE) is not None


def test_one_peer_has_at_most_half_of_the_slots() -> None:
    slots, _ = slots_of(40 * MBIT)
    taken = [slots.take(ANN, name(n), LARGE) for n in range(8)]
    assert sum(upload is not None for upload in taken) == 4
    assert slots.take(BOB, name(9), LARGE) is not None


def test_one_blob_goes_to_a_few_at_a_time() -> None:
    slots, _ = slots_of(1000 * MBIT)
    taken = [slots.take(PeerId(f"{n}"), name(1), LARGE) for n in range(8)]
    assert sum(upload is not None for upload in taken) == MAX_OF_ONE


def test_small_blobs_wait_behind_no_large_one() -> None:
    slots, _ = slots_of(MBIT)
    assert slots.take(ANN, name(1), LARGE) is not None
    small = [slots.take(PeerId(f"{n}"), name(2 + n), SMALL_BYTES) for n in range(8)]
    assert sum(upload is not None for upload in small) == SMALL_SLOTS


def test_who_takes_nothing_for_a_moment_holds_no_slot() -> None:
    slots, clock = slots_of(MBIT)
    upload = slots.take(ANN, name(1), LARGE)
    assert upload is not None
    clock.now += STALL_SECONDS
    slots.moved(upload)
    clock.now += STALL_SECONDS
    assert slots.take(BOB, name(1), LARGE) is None
    clock.now += 0.1
    assert slots.take(BOB, name(1), LARGE) is not None


def test_a_thin_node_sends_each_elsewhere_for_a_while_and_a_fast_one_nobody() -> None:
    thin, clock = slots_of(2 * MBIT)
    assert thin.spares(ANN, name(1), 1000)
    clock.now += SPARE_SECONDS
    assert not thin.spares(ANN, name(1), 1000)
    assert thin.spares(BOB, name(1), 1000)
    assert thin.spares(ANN, name(2), 1000)
    assert not slots_of(20 * MBIT)[0].spares(ANN, name(1), 1000)
    assert not slots_of(0)[0].spares(ANN, name(1), 1000)
    assert spare_seconds(10 << 20) > 10 * SPARE_SECONDS


def test_a_link_is_thin_up_to_5_mbit_and_unknown_is_not() -> None:
    assert [is_thin(rate * MBIT) for rate in (0, 0.1, 5, 5.1)] == [False, True, True, False]


# -- turns -----------------------------------------------------------------------------------------
class Loads:
    """Downloads that say when they began."""

    def __init__(self, down: float) -> None:
        self.turns = Turns(lambda: Link(down=down))
        self.began: list[tuple[int, float]] = []

    async def load(self, number: int, rank: Callable[[], int], seconds: float) -> None:
        async with self.turns.turn(lambda: (rank(),)):
            now = asyncio.get_running_loop().time()
            self.began.append((number, now))
            ends = now + seconds
            while (now := asyncio.get_running_loop().time()) < ends:
                await asyncio.sleep(min(0.1, ends - now))
                self.turns.came(100_000)


@pytest.mark.parametrize(
    ("mbit", "count"), [(0, UNKNOWN_TURNS), (1, MIN_TURNS), (20, 4), (1000, MAX_TURNS)]
)
def test_a_downlink_has_so_many_downloads_at_once(mbit: float, count: int) -> None:
    async def story() -> int:
        loads = Loads(mbit * MBIT)
        await asyncio.gather(*(loads.load(n, lambda: 0, 0.5) for n in range(12)))
        return sum(at < 0.1 for _, at in loads.began)

    assert in_virtual_time(story()) == count


def test_what_matters_most_goes_first_by_what_is_so_when_a_place_is_free() -> None:
    async def story() -> list[int]:
        loads = Loads(MBIT)
        ranks = [0, 0, 5, 4, 3]
        work = [loads.load(n, lambda n=n: ranks[n], 0.5) for n in range(5)]
        tasks = [asyncio.create_task(one) for one in work]
        await asyncio.sleep(0.1)
        ranks[3] = 1
        await asyncio.gather(*tasks)
        return [number for number, _ in loads.began]

    assert in_virtual_time(story()) == [0, 1, 3, 4, 2]


def test_slow_downloads_hold_up_others_for_a_moment_only() -> None:
    async def story(down: float) -> float:
        loads = Loads(down)
        work = [loads.load(n, lambda: 0, 9.0) for n in range(loads.turns.count)]
        await asyncio.gather(*work, loads.load(99, lambda: 1, 0.1))
        return dict(loads.began)[99]

    assert in_virtual_time(story(200 * MBIT)) == pytest.approx(1.0, abs=0.05)
    assert in_virtual_time(story(0.0)) == pytest.approx(1.0, abs=0.05)
    assert in_virtual_time(story(16 * MBIT)) == pytest.approx(5.0, abs=0.05)  # full


def test_the_downloads_under_way_are_bounded() -> None:
    async def story() -> int:
        loads = Loads(0.0)
        tasks = [asyncio.create_task(loads.load(n, lambda: 0, 99.0)) for n in range(50)]
        await asyncio.sleep(50.0)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        return len(loads.began)

    assert in_virtual_time(story()) == MAX_DOWNLOADS


def test_who_is_cancelled_leaves_its_place_to_others() -> None:
    async def story() -> list[int]:
        loads = Loads(MBIT)
        tasks = [asyncio.create_task(loads.load(n, lambda: 0, 0.9)) for n in range(4)]
        await asyncio.sleep(0.1)
        for task in (tasks[0], tasks[2]):
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        return [number for number, at in loads.began if at < 0.5]

    assert in_virtual_time(story()) == [0, 1, 3]


# -- holders ---------------------------------------------------------------------------------------
def test_holders_are_noted_and_forgotten() -> None:
    book = Holders()
    book.note(ANN, name(1))
    book.note(ANN, name(1))
    book.note(BOB, name(1))
    assert book.of(name(1)) == (ANN, BOB)
    book.forget(ANN, name(1))
    book.forget(CAT, name(2))
    assert book.of(name(1)) == (BOB,)
    assert book.of(name(2)) == ()


def test_the_book_of_holders_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(holders_module, "MAX_BLOBS", 3)
    monkeypatch.setattr(holders_module, "MAX_HOLDERS", 2)
    book = Holders()
    for number in range(9):
        book.note(ANN, name(0))  # what is spoken of stays
        book.note(PeerId(f"{number}"), name(number))
    assert len(book) == 3
    assert book.of(name(0))
    assert book.of(name(1)) == ()
    for number in range(9):
        book.note(PeerId(f"{number}"), name(8))
    assert book.of(name(8)) == (PeerId("7"), PeerId("8"))


def test_who_waits_for_a_holder_hears_of_it_at_once() -> None:
    async def story() -> list[float]:
        book, now = Holders(), asyncio.get_running_loop().time
        loop = asyncio.get_running_loop()
        loop.call_later(1.0, book.note, ANN, name(2))
        loop.call_later(2.0, book.note, ANN, name(1))
        loop.call_later(3.0, book.look_again)
        times = []
        for _ in range(3):
            await book.news(name(1), 5.0)
            times.append(now())
        assert book._awaited == {}
        return times

    assert in_virtual_time(story()) == pytest.approx([2.0, 3.0, 8.0], abs=0.01)


# -- whom to ask -----------------------------------------------------------------------------------
@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def preference(clock: Clock) -> Preference:
    here = Standing(identity=ME, emit=[].append, library=Shelf(), rng=random.Random(0), now=clock)
    return Preference(here)


def first(preference: Preference, *known: PeerId, blind: bool = False) -> PeerId:
    return preference.ordered([ANN, BOB, CAT], known, blind=blind)[0]


def test_without_any_knowledge_the_given_order_counts(preference: Preference) -> None:
    assert preference.ordered([BOB, ANN], (), blind=False) == [BOB, ANN]
    assert preference.ordered([BOB, ANN], (), blind=True) == [BOB, ANN]


def test_who_is_known_to_have_it_is_asked_before_mere_guesses(preference: Preference) -> None:
    assert first(preference, CAT, blind=True) == CAT


def test_equals_are_asked_by_chance(preference: Preference) -> None:
    asked = {first(preference, ANN, BOB, CAT) for _ in range(50)}
    assert asked == {ANN, BOB, CAT}


def test_who_sent_faster_is_asked_first(preference: Preference) -> None:
    for peer, rate in ((ANN, 1e5), (BOB, 1e7), (CAT, 1e6)):
        preference.begins(peer)
        preference.ended(peer, int(rate), 1.0)
    assert preference.ordered([ANN, BOB, CAT], (), blind=False) == [BOB, CAT, ANN]


def test_who_is_sending_already_is_asked_later(preference: Preference) -> None:
    preference.begins(ANN)
    assert first(preference) == BOB


def test_who_was_busy_or_slow_is_asked_later_for_a_while(
    preference: Preference, clock: Clock
) -> None:
    preference.was_busy(ANN)
    assert preference.was_slow(BOB)
    assert not preference.was_slow(BOB)
    assert preference.ordered([ANN, BOB, CAT], (), blind=False) == [CAT, ANN, BOB]
    clock.now += BUSY_SECONDS + 0.1
    assert preference.ordered([ANN, BOB, CAT], (), blind=False) == [ANN, CAT, BOB]
    clock.now += LAST_SECONDS
    assert preference.ordered([ANN, BOB, CAT], (), blind=False) == [ANN, BOB, CAT]


def test_who_was_busy_while_it_sent_is_full_until_it_has_sent(
    preference: Preference, clock: Clock
) -> None:
    preference.begins(ANN)
    preference.was_busy(ANN)
    assert preference.is_full(ANN)
    assert not preference.is_free(ANN)
    preference.ended(ANN, LARGE, 1.0)
    assert not preference.is_full(ANN)
    assert preference.is_free(ANN)
    preference.begins(ANN)
    assert preference.is_full(ANN)
    clock.now += FULL_SECONDS
    assert not preference.is_full(ANN)
