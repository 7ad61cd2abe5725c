"""Whole nodes: a joiner starts where the swarm is, and a bad batch never ends a node."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
from blake3 import blake3

from demoloco.node import lending
from demoloco.swarm.calls import decode_chunk, encode_blob_request
from demoloco.types import PeerId
from demoloco.worker.port import (
    Contribute,
    Correct,
    GiftTried,
    SaveCheckpoint,
    TakeAgreed,
    Train,
    WorkerEvent,
)
from tests.node.cluster import ClusterNode, cluster
from tests.node.test_cluster import assert_all_is_well, assert_nothing_lost

# A small packet of a model that learns fast: much is owed.
SPARSE = {"k": 8, "task": "tests.worker.tasks:Tiny", "inner_steps": 6, "batch_size": 16}


class Ear:
    """What a node's workers tell, from now on."""

    def __init__(self, node: ClusterNode) -> None:
        self.heard: list[WorkerEvent] = []
        hear = node.driver._doings.hear_worker

        def listening(event: WorkerEvent, spawn: object) -> None:
            self.heard.append(event)
            hear(event, spawn)  # type: ignore[arg-type]

        node.driver._doings.hear_worker = listening  # type: ignore[method-assign]


async def test_a_joiner_starts_near_its_lender_and_learnt_is_told_and_owed(tmp_path: Path) -> None:
    async with cluster(tmp_path, **SPARSE) as made:
        nodes = await made.found(2)
        await made.all_reach(8)
        late = made.node()
        await late.start((nodes[1].address,))
        ear = Ear(late)
        await made.until(lambda: any(isinstance(event, GiftTried) for event in ear.heard))
        (tried,) = (event for event in ear.heard if isinstance(event, GiftTried))
        assert tried.taken
        of_members = [node.feed.status.eval_loss for node in nodes]
        gap = tried.agreed_loss - max(of_members)
        assert gap > 0
        assert tried.gift_loss < tried.agreed_loss - 0.5 * gap
        await made.until(lambda: late.feed.status.rounds_contributed >= 3)
        assert late.worker.borrowed is not None
        await assert_all_is_well(made)


async def test_a_reader_that_takes_its_time_holds_up_no_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is served what it began with, though that is pruned meanwhile; no round waits for it."""
    monkeypatch.setattr(lending, "RECENT_SECONDS", 0.0)
    async with cluster(tmp_path, **SPARSE) as made:
        donor, reader = await made.found(2)
        await made.all_reach(5)
        service = cast(Any, donor.swarm)._transport.service
        snapshot = donor.parts.ledger.store.served_snapshot()
        assert snapshot is not None
        (blob,) = snapshot.blobs
        request = encode_blob_request(donor.run.digest, blob.digest, 0)
        stream = service.open_stream(reader.identity.peer_id, request)
        lost = Lost(reader)
        began, contributed = donor.round, donor.feed.status.rounds_contributed
        asked = len(donor.worker.told)
        await made.all_reach(began + 10)
        assert donor.feed.status.rounds_contributed - contributed >= donor.round - began - 1
        kinds = {type(command) for command in donor.worker.told[asked:]}
        assert kinds <= {Train, Contribute, Correct, SaveCheckpoint}
        assert lost.members == []
        store = donor.parts.ledger.store
        assert store.state(snapshot.head.digest) is None  # pruned
        read = b"".join(decode_chunk(frame).data for frame in stream.frames())
        stream.close()
        assert blake3(read).digest() == blob.digest
        await assert_all_is_well(made)


class Lost:
    """The members that a node loses, from now on."""

    def __init__(self, node: ClusterNode) -> None:
        self.members: list[PeerId] = []
        lose = node.parts.report.member_lost

        def losing(peer: PeerId, why: str) -> None:
            self.members.append(peer)
            lose(peer, why)

        node.parts.report.member_lost = losing  # type: ignore[method-assign]


async def test_what_a_joiner_borrowed_it_never_tells(tmp_path: Path) -> None:
    """What it tells first is a part of the little that it has learnt itself."""
    async with cluster(tmp_path, **SPARSE) as made:
        nodes = await made.found(2)
        await made.all_reach(6)
        late = made.node()
        await late.start((nodes[0].address,))
        await made.until(lambda: late.feed.status.rounds_contributed >= 1)
        order = next(o for o in late.worker.told if isinstance(o, TakeAgreed))
        assert order.start is not None
        told, learnt = (np.linalg.norm(c) for c in (late.told(), late.worker.learnt))
        assert 0 < told < learnt
        await assert_all_is_well(made)


async def test_a_borrowers_worker_that_falls_comes_back_with_what_it_owes(tmp_path: Path) -> None:
    async with cluster(tmp_path, **SPARSE) as made:
        nodes = await made.found(2)
        await made.all_reach(5)
        late = made.node()
        await late.start((nodes[0].address,))
        await made.until(lambda: late.feed.status.rounds_contributed >= 2)
        late.worker.kill()
        await made.until(lambda: late.restores == 1)
        again = late.feed.status.rounds_contributed + 2
        await made.until(lambda: late.feed.status.rounds_contributed >= again)
        await assert_all_is_well(made)


async def test_a_batch_of_bad_numbers_costs_a_step_and_ends_nothing(tmp_path: Path) -> None:
    async with cluster(tmp_path, **SPARSE, task_args={"fault": "batch 9"}) as made:
        nodes = await made.found(2)
        await made.all_reach(5)
        for node in nodes:
            assert node.feed.status.counters["steps_skipped"] == 1
            assert node.feed.status.counters.get("worker_restarts", 0) == 0
        await assert_all_is_well(made)


async def test_a_model_of_bad_numbers_goes_back_and_its_node_stays(tmp_path: Path) -> None:
    async with cluster(tmp_path, **SPARSE) as made:
        nodes = await made.found(3)
        await made.all_reach(3)
        hurt = nodes[1]
        hurt.worker.poison()
        await made.until(lambda: hurt.feed.status.counters.get("worker_lapses", 0) == 1)
        await made.until(lambda: hurt.restores == 1)
        again = hurt.feed.status.rounds_contributed + 2
        await made.until(lambda: hurt.feed.status.rounds_contributed >= again)
        assert len(hurt.workers) == 1  # the same process
        for node in nodes:
            assert np.isfinite(node.agreed()).all()
        await assert_all_is_well(made)
        assert_nothing_lost(hurt)
