"""Every method in whole nodes: who joins, falls, is left out or parts from the others goes on."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from demoloco.rounds import events as ev
from tests.node.cluster import Cluster, ClusterNode, cluster
from tests.node.test_cluster import _has_checkpoint, assert_agreed, assert_nothing_lost

RUNS: dict[str, dict[str, Any]] = {
    "synced": {"method": "synced", "beta": 1.0},
    "paper": {"method": "paper"},
    "diloco": {"method": "diloco"},
}
"""With β = 1, for what synced forgets is learnt and neither told nor owed."""


def every(*quick: str) -> pytest.MarkDecorator:
    """All of them; those that are not named here take their time."""
    params = [
        pytest.param(run, id=name, marks=() if name in quick else pytest.mark.slow)
        for name, run in RUNS.items()
    ]
    return pytest.mark.parametrize("run", params)


async def assert_all_is_well(made: Cluster) -> None:
    """As for the default method; paper knows no law that its packets would keep."""
    for node in made.nodes:
        node.driver.post(ev.LeaveRequested())
    await asyncio.gather(*(node.task for node in made.nodes if node.task))
    await made.until(lambda: all(node.settled for node in made.nodes))
    assert_agreed(made.nodes)
    for node in made.nodes:
        assert np.isfinite(node.worker.model()).all()
        if node.run.config.method != "paper":
            assert_nothing_lost(node)


async def contributes(made: Cluster, node: ClusterNode, rounds: int = 2) -> None:
    again = node.feed.status.rounds_contributed + rounds
    await made.until(lambda: node.feed.status.rounds_contributed >= again)


@every("diloco")
async def test_a_joiner_and_a_node_that_crashed_take_part(
    tmp_path: Path, run: dict[str, Any]
) -> None:
    async with cluster(tmp_path, **run) as made:
        nodes = await made.found(2)
        await made.all_reach(3)
        late = made.node()
        await late.start((nodes[0].address,))
        await contributes(made, late)
        assert late.chain()[0].round > 0
        hurt = nodes[1]
        await made.until(lambda: _has_checkpoint(hurt))
        await hurt.crash()
        await made.all_reach(nodes[0].round + 3, [nodes[0], late])
        await hurt.start((nodes[0].address,))
        await made.until(lambda: hurt.restores == 1)
        await contributes(made, hurt)
        await assert_all_is_well(made)


@every()
async def test_who_is_left_out_and_who_comes_from_a_fork_go_on(
    tmp_path: Path, run: dict[str, Any]
) -> None:
    async with cluster(tmp_path, **run) as made:
        nodes = [made.node() for _ in range(3)]
        nodes[2].seconds_a_turn = 0.15
        await nodes[0].start()
        await asyncio.gather(*(node.start((nodes[0].address,)) for node in nodes[1:]))
        await made.all_reach(4)
        slow, fast = nodes[2].feed.status, nodes[0].feed.status
        assert slow.rounds_contributed < fast.rounds_contributed
        nodes[2].seconds_a_turn = 0.02
        alone, pair = nodes[2], nodes[:2]
        made.network.partition([alone.identity.peer_id], [n.identity.peer_id for n in pair])
        await made.all_reach(nodes[0].round + 3)
        made.network.heal()
        await made.until(lambda: alone.feed.status.head == nodes[0].feed.status.head)
        await contributes(made, alone)
        await assert_all_is_well(made)
