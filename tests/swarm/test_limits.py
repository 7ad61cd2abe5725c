"""A gate lets blobs through at its rate, words always, and everybody in the order of coming."""

from __future__ import annotations

import asyncio
import heapq
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from demoloco.swarm.links.limits import (
    BURST_SECONDS,
    MAX_SLICE_BYTES,
    SOON_SECONDS,
    THIN_SLICE_BYTES,
    Gate,
)


class Clock:
    """Time that passes only while somebody sleeps."""

    def __init__(self) -> None:
        self.at = 0.0
        self._sleepers: list[tuple[float, int, asyncio.Future[None]]] = []

    def now(self) -> float:
        return self.at

    async def sleep(self, seconds: float) -> None:
        woken = asyncio.get_running_loop().create_future()
        heapq.heappush(self._sleepers, (self.at + seconds, id(woken), woken))
        await woken

    async def run(self, *work: asyncio.Task[None]) -> None:
        """Until all of these are done."""
        while not all(task.done() for task in work):
            for _ in range(8):
                await asyncio.sleep(0)
            if self._sleepers:
                self.at, _, woken = heapq.heappop(self._sleepers)
                woken.set_result(None)


def gate_of(clock: Clock, rate: float) -> Gate:
    return Gate(rate, now=clock.now, sleep=clock.sleep)


async def passed(clock: Clock, gate: Gate, sizes: list[int], seen: list[tuple[float, int]]) -> None:
    for size in sizes:
        await gate.pass_(size)
        seen.append((clock.at, size))


@given(
    st.floats(16_000, 1e7),
    st.lists(st.lists(st.integers(1, THIN_SLICE_BYTES), max_size=40), min_size=1, max_size=4),
)
async def test_never_more_than_the_rate_and_one_burst_in_any_time(
    rate: float, streams: list[list[int]]
) -> None:
    clock, seen = Clock(), list[tuple[float, int]]()
    gate = gate_of(clock, rate)
    await clock.run(*[asyncio.create_task(passed(clock, gate, sizes, seen)) for sizes in streams])
    assert len(seen) == sum(map(len, streams))
    for first in range(len(seen)):
        size = 0
        for at, one in seen[first:]:
            size += one
            allowed = rate * (at - seen[first][0] + BURST_SECONDS + SOON_SECONDS) + THIN_SLICE_BYTES
            assert size <= allowed * (1 + 1e-9) + 1


async def test_it_is_no_slower_than_its_rate() -> None:
    clock, seen = Clock(), list[tuple[float, int]]()
    await clock.run(asyncio.create_task(passed(clock, gate_of(clock, 100_000), [1000] * 500, seen)))
    assert clock.at == pytest.approx(5.0, rel=0.02)


async def test_words_never_wait_and_blobs_wait_for_them() -> None:
    clock, seen = Clock(), list[tuple[float, int]]()
    gate = gate_of(clock, 10_000)
    gate.note(20_000)
    await clock.run(asyncio.create_task(passed(clock, gate, [1], seen)))
    assert clock.at == pytest.approx(2.0 - BURST_SECONDS)


async def test_streams_share_evenly() -> None:
    clock = Clock()
    gate = gate_of(clock, 100_000)
    one, other = list[tuple[float, int]](), list[tuple[float, int]]()
    await clock.run(
        asyncio.create_task(passed(clock, gate, [1000] * 100, one)),
        asyncio.create_task(passed(clock, gate, [1000] * 100, other)),
    )
    assert abs(one[-1][0] - other[-1][0]) <= 2 * BURST_SECONDS
    assert all(later[0] >= earlier[0] for earlier, later in pairwise(one))


async def test_without_a_rate_nothing_waits() -> None:
    clock = Clock()
    assert await gate_of(clock, 0).pass_(1 << 30) == 0.0
    assert clock.at == 0


@given(st.floats(16_000, 1e10))
def test_slices_are_small_where_the_rate_is(rate: float) -> None:
    size = gate_of(Clock(), rate).slice_bytes
    assert size <= (THIN_SLICE_BYTES if rate < 1e6 else MAX_SLICE_BYTES)
    assert size <= max(4096, rate * 0.05)
