"""Whole nodes together: the promises, over a network that a test commands."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from demoloco.node import ledger
from demoloco.rounds import decide
from demoloco.rounds import events as ev
from demoloco.rounds.rules import succession
from demoloco.rounds.tempo import Tempo
from demoloco.types import Draft, Manifest
from demoloco.worker.port import Correct
from tests.node.cluster import DEADLINE_SECONDS, TIMING, Cluster, ClusterNode, cluster


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
    np.testing.assert_allclose(there, worker.values(0 * node.agreed() + worker.learnt), atol=2e-5)


async def assert_all_is_well(made: Cluster) -> None:
    """Let all leave in order; they agree, and none lost anything."""
    for node in made.nodes:
        node.driver.post(ev.LeaveRequested())
    await asyncio.gather(*(node.task for node in made.nodes if node.task))
    await made.until(lambda: all(node.settled for node in made.nodes))
    assert_agreed(made.nodes)
    for node in made.nodes:
        assert_nothing_lost(node)


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


async def test_a_slow_node_is_waited_for_no_longer_than_the_grace(tmp_path: Path) -> None:
    async with cluster(tmp_path) as made:
        nodes = [made.node() for _ in range(3)]
        nodes[2].seconds_a_turn = 0.15
        await nodes[0].start(stop_after=8)
        await asyncio.gather(*(n.start((nodes[0].address,), stop_after=8) for n in nodes[1:]))
        await made.all_reach(8)
        await made.until(lambda: all(node.settled for node in nodes))
        assert_agreed(nodes)
        fast, slow = nodes[0].feed.status, nodes[2].feed.status
        assert slow.rounds_contributed < fast.rounds_contributed
        for node in nodes:
            assert_nothing_lost(node)


async def test_a_node_joins_late_and_takes_part(tmp_path: Path) -> None:
    async with cluster(tmp_path) as made:
        nodes = await made.found(2)
        await made.all_reach(5)
        late = made.node()
        await late.start((nodes[1].address,))
        await made.until(lambda: late.feed.status.rounds_contributed >= 2)
        assert late.chain()[0].round > 0
        await assert_all_is_well(made)


async def test_a_node_that_is_killed_has_noted_where_the_others_are(tmp_path: Path) -> None:
    """Else nodes that a power cut ended, started again without --peers, never meet again."""
    async with cluster(tmp_path) as made:
        nodes = await made.found(2)
        await made.all_reach(3)
        for node, other in (nodes, reversed(nodes)):
            await made.until(
                lambda here=node, there=other: (
                    there.address in (here.parts.ledger.noted_json("peers") or ())
                )
            )


async def test_a_node_that_leaves_hands_over_what_it_has_and_the_others_go_on(
    tmp_path: Path,
) -> None:
    async with cluster(tmp_path) as made:
        nodes = await made.found(3)
        await made.all_reach(2)
        leaver = nodes[2]
        await made.until(lambda: leaver.worker.steps_under_way == 1)
        await leaver.leave()
        labour, last = leaver.parts.machine.state.labour, leaver.parts.machine.state.round
        assert last is not None
        if last.mine is not None:  # in no manifest yet that the leaver heard of
            packet = last.mine.packet
            assert all(node.parts.ledger.store.get(packet) is not None for node in nodes[:2])
            assert last.mine.samples == labour.owed_samples
        else:
            assert labour.owed_samples == 0
        left_at = nodes[0].round
        await made.all_reach(left_at + 2, nodes[:2])
        assert_agreed(made.nodes)


@pytest.mark.parametrize("step", ["train", "propose", "commit"])
@pytest.mark.parametrize("at_once", [False, True])
async def test_a_proposer_that_leaves_costs_the_others_no_waiting(
    tmp_path: Path, step: str, at_once: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Asked to leave while it trains, has drafted, has committed and perhaps not published."""
    monkeypatch.setattr(Tempo, "turn", lambda tempo: 2 * DEADLINE_SECONDS)
    async with cluster(tmp_path) as made:
        nodes = await made.found(3)
        await made.all_reach(2)
        leaver = await _ask_the_proposer(made, step, at_once)
        await leaver.end()
        others = [node for node in nodes if node is not leaver]
        left_at = max(node.round for node in nodes)
        await made.all_reach(left_at + 2, others)
        assert_agreed(others)
        last = leaver.parts.machine.state.round
        if last is not None and last.mine is not None and not at_once:
            told = [entry.packet for manifest in others[0].chain() for entry in manifest.entries]
            assert last.mine.packet in told


async def _ask_the_proposer(made: Cluster, step: str, at_once: bool) -> ClusterNode:
    """Ask the next node that comes to this step of a round of its own to leave, there."""
    asked: list[ClusterNode] = []

    def ask(node: ClusterNode) -> None:
        if not asked:
            asked.append(node)
            node.driver.post(ev.LeaveRequested(at_once))
            made.news.set()

    def watch(node: ClusterNode) -> None:
        doings = node.driver._doings
        propose, commit = doings.propose, doings.commit

        def proposing(draft: Draft) -> None:
            if step == "propose":
                ask(node)
            propose(draft)

        async def committing(manifest: Manifest) -> None:
            await commit(manifest)
            if step == "commit" and manifest.proposer == node.identity.peer_id:
                ask(node)

        doings.propose, doings.commit = proposing, committing  # type: ignore[method-assign]

    if step == "train":
        node = made.nodes[0]
        await made.until(lambda: _is_its_turn(node) and node.worker.steps_under_way == 1)
        ask(node)
    else:
        for node in made.nodes:
            watch(node)
    await made.until(lambda: bool(asked))
    return asked[0]


def _is_its_turn(node: ClusterNode) -> bool:
    chain = node.parts.machine.state.chain
    assert chain is not None
    head = chain.head.digest
    return succession(head, chain.contributors(head))[0] == node.identity.peer_id


def _has_checkpoint(node: ClusterNode) -> bool:
    return node.parts is not None and len(node.parts.stance._checkpoints) > 0


async def test_a_fallen_worker_is_restored_and_the_node_stays(tmp_path: Path) -> None:
    async with cluster(tmp_path) as made:
        nodes = await made.found(3)
        await made.all_reach(3)
        hurt = nodes[1]
        await made.until(lambda: _has_checkpoint(hurt))
        hurt.worker.kill()
        await made.until(lambda: hurt.restores == 1)
        again = hurt.feed.status.rounds_contributed + 2
        await made.until(lambda: hurt.feed.status.rounds_contributed >= again)
        await assert_all_is_well(made)


@pytest.mark.parametrize("depth", [16, 1], ids=["replayed", "by a snapshot"])
async def test_two_halves_train_on_and_one_chain_wins_where_they_meet(
    tmp_path: Path, depth: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ledger, "STATES_KEPT", depth)
    async with cluster(tmp_path) as made:
        nodes = await made.found(3)
        await made.all_reach(2)
        alone, pair = nodes[2], nodes[:2]
        made.network.partition([alone.identity.peer_id], [n.identity.peer_id for n in pair])
        apart = nodes[0].round
        await made.all_reach(apart + 4)
        assert alone.chain()[-1].digest not in {m.digest for m in nodes[0].chain()}
        made.network.heal()
        await made.until(lambda: alone.feed.status.head == nodes[0].feed.status.head)
        again = alone.feed.status.rounds_contributed + 2
        await made.until(lambda: alone.feed.status.rounds_contributed >= again)
        await assert_all_is_well(made)


async def test_a_node_that_crashed_comes_back_and_has_lost_only_what_no_checkpoint_had(
    tmp_path: Path,
) -> None:
    async with cluster(tmp_path) as made:
        nodes = await made.found(3)
        await made.all_reach(3)
        hurt = nodes[1]
        await made.until(lambda: _has_checkpoint(hurt))
        await hurt.crash()
        gone_at = nodes[0].round
        await made.all_reach(gone_at + 3, [nodes[0], nodes[2]])
        await hurt.start((nodes[0].address,))
        await made.until(lambda: hurt.restores == 1)
        again = hurt.feed.status.rounds_contributed + 2
        await made.until(lambda: hurt.feed.status.rounds_contributed >= again)
        await assert_all_is_well(made)


async def test_what_was_told_before_a_snapshot_is_told_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A node falls with its packet out; when it comes back the others are far ahead, and have that
    packet in a round that it never sees but in the log."""
    monkeypatch.setattr(decide, "MAX_REPLAY", 2)
    async with cluster(tmp_path) as made:
        nodes = await made.found(3)
        await made.all_reach(3)
        away, others = nodes[2], nodes[:2]
        for node in others:
            node.seconds_a_turn = 0.05
        await made.until(lambda: _mine_is_with(away, others))
        await away.crash()
        await made.all_reach(nodes[0].round + 8, others)
        await away.start((nodes[0].address,))
        await made.until(lambda: away.round >= nodes[0].round - 1)
        assert "took a snapshot" in caplog.text
        assert "cannot be accounted for" not in caplog.text
        assert away.parts.ledger.fork(away.run.digest, away.parts.machine.head.digest) is not None
        await assert_all_is_well(made)


def _mine_is_with(node: ClusterNode, others: list[ClusterNode]) -> bool:
    """Its packet for the open round is with these, too."""
    round_ = node.parts.machine.state.round
    if round_ is None or round_.mine is None:
        return False
    packet = round_.mine.packet
    return all(packet in other.parts.machine.state.held for other in others)


async def test_words_that_get_lost_cost_time_and_nothing_else(tmp_path: Path) -> None:
    impatient = replace(TIMING, call_seconds=0.3, connect_seconds=0.3, chunk_seconds=0.3)
    async with cluster(tmp_path, impatient) as made:
        made.network.loss = 0.04
        nodes = await made.found(3)
        await made.until(lambda: all(n.feed.status.rounds_contributed >= 2 for n in nodes))
        made.network.loss = 0.0
        await assert_all_is_well(made)


async def test_a_worker_that_falls_as_a_round_is_applied_is_put_on_the_new_state(
    tmp_path: Path,
) -> None:
    async with cluster(tmp_path) as made:
        nodes = await made.found(2)
        await made.all_reach(2)
        hurt = nodes[0]
        hurt.worker.falls_at = lambda command: isinstance(command, Correct)
        await made.until(lambda: hurt.restores == 1)
        again = hurt.feed.status.rounds_contributed + 2
        await made.until(lambda: hurt.feed.status.rounds_contributed >= again)
        await assert_all_is_well(made)
