"""Whole nodes together in runs that count time instead of steps, and in such as rest."""

from __future__ import annotations

import asyncio
from pathlib import Path

from demoloco.worker.port import Contribute, Correct, Train
from tests.node.cluster import cluster
from tests.node.test_cluster import assert_agreed, assert_all_is_well, assert_nothing_lost

ROUNDS = 3


async def test_where_time_counts_a_slow_node_is_in_the_rounds_with_fewer_samples(
    tmp_path: Path,
) -> None:
    async with cluster(tmp_path, round_seconds=0.3) as made:
        fast, slow = nodes = [made.node() for _ in range(2)]
        slow.seconds_a_turn = 0.06
        await fast.start()
        await slow.start((fast.address,))
        await made.until(lambda: slow.feed.status.rounds_contributed >= ROUNDS)
        whose = [node.identity.peer_id for node in nodes]
        entries = [[one.entry_of(peer) for peer in whose] for one in fast.chain()]
        both = [(one.samples, other.samples) for one, other in entries if one and other]
        assert len(both) >= ROUNDS / 2
        assert sum(theirs < 0.7 * ours for ours, theirs in both) >= len(both) / 2
        await assert_all_is_well(made)


async def test_with_overlap_0_no_node_trains_while_its_packet_is_out(tmp_path: Path) -> None:
    async with cluster(tmp_path, overlap=0) as made:
        nodes = await made.found(3, stop_after=ROUNDS)
        await asyncio.gather(*(node.task for node in nodes if node.task))
        await made.until(lambda: all(node.settled for node in nodes))
        assert_agreed(nodes)
        for node in nodes:
            assert_nothing_lost(node)
            out = False
            for command in node.worker.told:
                assert not (out and isinstance(command, Train))
                out = isinstance(command, Contribute) or (out and not isinstance(command, Correct))
        told = [command for node in nodes for command in node.worker.told]
        assert sum(isinstance(command, Contribute) for command in told) >= ROUNDS
