"""Packets of every rung of the ladder in one round: all nodes take them, and nothing is lost."""

from __future__ import annotations

import asyncio
from pathlib import Path

import numpy as np

from demoloco.node.density import Surroundings
from demoloco.types import Manifest
from tests.node.cluster import ClusterNode, cluster

FAT = Surroundings(up=1e15, speed=1e-3)
THIN = Surroundings(up=1e-3, speed=1e-3)


def rungs(node: ClusterNode, manifest: Manifest) -> set[int]:
    """The k of each packet of a round."""
    packets = [node.parts.ledger.packet(entry.packet) for entry in manifest.entries]
    assert None not in packets
    return {packet.sparse.k for packet in packets if packet is not None}


async def test_a_round_takes_the_packets_of_thin_and_fat_links(tmp_path: Path) -> None:
    async with cluster(tmp_path) as made:
        thin, fat = await made.found(2, stop_after=9)
        thin.parts.stance.density.look = lambda: THIN
        fat.parts.stance.density.look = lambda: FAT
        await asyncio.gather(*(node.task for node in made.nodes if node.task))
        await made.until(lambda: all(node.settled for node in made.nodes))
        assert {8, 512} in [rungs(thin, manifest) for manifest in thin.chain()]
        assert thin.parts.machine.fingerprint == fat.parts.machine.fingerprint
        assert (thin.feed.status.k, fat.feed.status.k) == (8, 512)
        for node in made.nodes:
            values = node.worker.values
            learnt = values(0 * node.agreed() + node.worker.learnt)
            np.testing.assert_allclose(values(node.told() + node.owed()), learnt, atol=2e-5)
