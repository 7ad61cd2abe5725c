"""Whole nodes together: the promises, over a network that a test commands."""

from __future__ import annotations

import asyncio
from pathlib import Path

import numpy as np

from tests.node.cluster import ClusterNode, cluster


def assert_agreed(nodes: list[ClusterNode]) -> None:
    """Where two chains have a round in common, it is the same round with the same state."""
    states = [{m.round: (m.digest, m.state) for m in node.chain()} for node in nodes]
    common = set.intersection(*(set(rounds) for rounds in states))
    assert common
    for round in common:
        assert len({rounds[round] for rounds in states}) == 1


def assert_nothing_lost(node: ClusterNode) -> None:
    """learnt = told + owed, but for the rounding of some dozen steps in float32."""
    assert node.settled
    worker = node.worker
    there = worker.values(node.told() + node.owed())
    np.testing.assert_allclose(there, worker.values(worker.learnt), atol=2e-5)


async def test_three_nodes_agree_bit_for_bit_and_lose_nothing(tmp_path: Path) -> None:
    async with cluster(tmp_path) as made:
        nodes = await made.found(3, stop_after=6)
        await asyncio.gather(*(node.task for node in nodes if node.task))
        await made.until(lambda: all(node.settled for node in nodes))
        assert_agreed(nodes)
        assert len({node.parts.machine.fingerprint for node in nodes}) == 1
        for node in nodes:
            assert_nothing_lost(node)
        assert nodes[0].feed.status.eval_loss < nodes[0].feed.status.eval_loss_first
