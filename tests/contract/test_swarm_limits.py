"""Limits over libp2p as it is: blobs keep to them, words do not wait behind blobs."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from pathlib import Path
from statistics import median

import pytest

from demoloco.swarm.calls import Hello, encode_hello
from demoloco.swarm.hivemind.transport import HivemindSwarm
from demoloco.swarm.links.access import Access, Lane
from demoloco.swarm.links.limits import BURST_SECONDS, Gate
from demoloco.swarm.transport import Method
from tests.contract.swarm_lab import HIVEMIND_WARNINGS, HivemindLab, Node, two

pytestmark = HIVEMIND_WARNINGS

RATE = 500_000.0  # 4 Mbit/s
SIZE = 1_250_000
PIECE_BYTES = 4096


class Watched(Gate):
    """Notes what passes, and when, in small pieces."""

    def __init__(self, rate: float) -> None:
        super().__init__(rate, now=time.monotonic)
        self.passed: list[tuple[float, int]] = []

    @property
    def slice_bytes(self) -> int:
        return PIECE_BYTES

    async def pass_(self, size: int, *, paced: bool = True) -> float:
        held = await super().pass_(size, paced=paced)
        self.passed.append((time.monotonic(), size))
        return held

    def most_in_a_second(self) -> int:
        return max(
            sum(size for at, size in self.passed if begin <= at < begin + 1)
            for begin, _ in self.passed
        )


def access_of(node: Node) -> Access:
    assert isinstance(node.swarm, HivemindSwarm)
    return node.swarm.transport.meter.access


def watch(lane: Lane, rate: float) -> Watched:
    lane.gate = Watched(rate)
    return lane.gate


@pytest.fixture
async def lab(tmp_path: Path) -> AsyncIterator[HivemindLab]:
    lab = HivemindLab(tmp_path)
    yield lab
    await lab.close()


async def hello_seconds(node: Node, other: Node) -> float:
    assert isinstance(node.swarm, HivemindSwarm)
    asked = time.monotonic()
    body = encode_hello(Hello(None, ()))
    await node.swarm.transport.call(other.peer, Method.HELLO, body, 3.0)
    return time.monotonic() - asked


@pytest.mark.parametrize("limited", ["upload", "download"])
async def test_a_limit_is_kept_and_used_and_words_do_not_wait(
    lab: HivemindLab, limited: str
) -> None:
    owner, fetcher = await two(lab)
    blob = owner.shelf.put(bytes(SIZE))
    watch(access_of(owner).up, RATE if limited == "upload" else 0.0)
    came = watch(access_of(fetcher).down, RATE if limited == "download" else 0.0)
    began = time.monotonic()
    fetching = asyncio.create_task(fetcher.swarm.fetch(blob, [owner.peer]))
    waits = [await hello_seconds(fetcher, owner) for _ in range(5)]
    assert not fetching.done()
    assert await fetching == bytes(SIZE)
    assert 0.85 * RATE < SIZE / (time.monotonic() - began) < 1.1 * RATE
    assert came.most_in_a_second() <= RATE * (1 + BURST_SECONDS) + 16 * PIECE_BYTES
    assert median(waits) < 0.3


async def test_transfers_tell_what_the_link_carries(lab: HivemindLab) -> None:
    owner, fetcher = await two(lab)
    assert (owner.swarm.link.up, fetcher.swarm.link.down) == (0, 0)
    watch(access_of(owner).up, RATE)  # a thin link, as far as the fetcher knows
    await fetcher.swarm.fetch(owner.shelf.put(bytes(SIZE // 2)), [owner.peer])
    assert fetcher.swarm.link.down == pytest.approx(RATE, rel=0.25)
    assert owner.swarm.link.up == pytest.approx(RATE, rel=0.25)  # no more than its limit
    assert fetcher.swarm.link.up == 0
