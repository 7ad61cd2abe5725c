"""Peers that are away for hours, in virtual time: they are dialled for ever, ever more rarely, and
found again wherever they come back."""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from demoloco.swarm.port import MemberLost, MemberSeen
from demoloco.swarm.timing import Timing
from demoloco.types import Digest
from tests.contract.swarm_lab import MemoryLab, Node, a_run
from tests.faults.virtual_time import in_virtual_time

HOUR = 3600.0
DEFAULT = Timing()


class Dials:
    """When which address was dialled."""

    def __init__(self, node: Node) -> None:
        self.times: list[tuple[float, tuple[str, ...]]] = []
        transport = node.swarm._transport
        connect = transport.connect

        async def noted(peer: Any, addresses: Sequence[str], seconds: float) -> None:
            now = asyncio.get_running_loop().time()
            self.times.append((now, tuple(addresses)))
            await connect(peer, addresses, seconds)

        transport.connect = noted

    def pauses(self) -> list[float]:
        times = [at for at, _ in self.times]
        return [later - before for before, later in itertools.pairwise(times)]


async def grown_up(lab: MemoryLab, *seeds: str, run: Digest | None = None, **options: Any) -> Node:
    """A node with the patience of a real one."""
    node = lab.node(*seeds, timing=DEFAULT, **options)
    await node.start(run or a_run(node))
    return node


async def seen(node: Node, other: Node) -> None:
    """Wait in virtual time; how long is for the caller to judge."""
    while other.peer not in node.swarm._standing.roster:  # noqa: ASYNC110
        await asyncio.sleep(0.5)


@pytest.fixture
def lab(tmp_path: Path) -> MemoryLab:
    return MemoryLab(tmp_path)


def test_a_seed_is_dialled_for_ever_and_ever_more_rarely(
    lab: MemoryLab, caplog: pytest.LogCaptureFixture
) -> None:
    async def story() -> tuple[Dials, float]:
        seed = lab.node(timing=DEFAULT)
        node = lab.node(seed.address, timing=DEFAULT)
        dials = Dials(node)
        await node.start(a_run(seed))
        await asyncio.sleep(3 * HOUR)
        back = asyncio.get_running_loop().time()
        await seed.start(a_run(seed))
        await seen(node, seed)
        took = asyncio.get_running_loop().time() - back
        await lab.close()
        return dials, took

    dials, took = in_virtual_time(story())
    pauses = dials.pauses()
    longest = DEFAULT.seed_retry_seconds * 1.5 + DEFAULT.heartbeat_seconds
    assert max(pauses[:3]) < 15.0
    assert sum(pauses[:3]) < sum(pauses[10:13])
    assert all(pause <= longest for pause in pauses)
    assert 3 * HOUR / 32 < len(pauses) < 3 * HOUR / 20
    assert took <= longest + 2 * DEFAULT.heartbeat_seconds
    away = [r.getMessage() for r in caplog.records if "seed=away" in r.getMessage()]
    assert len(away) == 1
    assert "connection refused; it is dialled for ever" in away[0]


def test_a_member_that_is_lost_is_dialled_for_ever_at_least_every_ten_minutes(
    lab: MemoryLab,
) -> None:
    async def story() -> list[float]:
        first = await grown_up(lab)
        second = await grown_up(lab, first.address, run=a_run(first))
        await seen(first, second)
        await lab.kill(second)
        await asyncio.sleep(60)
        dials = Dials(first)
        await asyncio.sleep(HOUR)
        await lab.close()
        return dials.pauses()

    pauses = in_virtual_time(story())
    longest = DEFAULT.known_retry_seconds * 1.5 + DEFAULT.heartbeat_seconds
    assert len(pauses) > HOUR / longest - 1
    assert max(pauses) <= longest
    assert pauses[0] < pauses[-1]


def test_a_seed_that_comes_back_elsewhere_after_an_hour_is_found_through_another_member(
    lab: MemoryLab,
) -> None:
    async def story() -> tuple[Node, Node, str]:
        seed = await grown_up(lab)
        run, was = a_run(seed), seed.address
        first = await grown_up(lab, was, run=run)
        second = await grown_up(lab, was, run=run)
        await asyncio.gather(seen(first, second), seen(second, seed))
        identity = seed.swarm._identity
        await lab.kill(seed)
        await seed.swarm._tasks.cancel()
        await asyncio.sleep(HOUR)
        elsewhere = lab.node(
            identity=identity, address="/memory/elsewhere", timing=DEFAULT,
            known_members=(second.address,),
        )  # fmt: skip
        await elsewhere.start(run)
        async with asyncio.timeout(60):
            await seen(first, elsewhere)
        await lab.close()
        return first, elsewhere, was

    first, elsewhere, was = in_virtual_time(story())
    known = first.swarm.known_addresses()
    assert f"/memory/elsewhere/p2p/{elsewhere.peer}" in known
    assert was in known  # the operator said that it is there
    assert any(isinstance(event, MemberLost) for event in first.heard)


def test_a_node_without_any_seed_left_meets_those_that_it_noted(lab: MemoryLab) -> None:
    async def story() -> None:
        seed = await grown_up(lab)
        run = a_run(seed)
        first = await grown_up(lab, seed.address, run=run)
        second = await grown_up(lab, seed.address, run=run)
        await asyncio.gather(seen(first, second), seen(second, seed))
        noted, identity = first.swarm.known_addresses(), first.swarm._identity
        for gone in (seed, first):
            await lab.kill(gone)
            await gone.swarm._tasks.cancel()
        await asyncio.sleep(60)
        again = lab.node(
            seed.address, identity=identity, address="/memory/again", timing=DEFAULT,
            known_members=noted,
        )  # fmt: skip
        await again.start(run)
        async with asyncio.timeout(30):
            await seen(again, second)
        await lab.close()

    in_virtual_time(story())


def test_a_seed_that_answers_again_is_away_again_with_a_new_line(
    lab: MemoryLab, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)

    async def story() -> Node:
        seed = await grown_up(lab)
        node = await grown_up(lab, seed.address, run=a_run(seed))
        for _ in range(2):
            await seen(node, seed)
            lab.network.partition([node.peer], [seed.peer])
            await asyncio.sleep(120)
            lab.network.heal()
        await seen(node, seed)
        await lab.close()
        return node

    node = in_virtual_time(story())
    away = [r.getMessage() for r in caplog.records if "seed=away" in r.getMessage()]
    assert len(away) == 2
    assert all("no answer in time" in line for line in away)
    seen_times = [event for event in node.heard if isinstance(event, MemberSeen)]
    assert len(seen_times) >= 3
