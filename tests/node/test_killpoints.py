"""A crash at any point of a node's life loses nothing: every point of a passage is met by a walk
through it, and the node is killed there, started again in what is left, and has to keep the law."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import pytest

from demoloco.swarm.timing import Timing
from demoloco.types import Digest
from tests.node.cluster import TIMING, Cluster, ClusterNode, cluster
from tests.node.killing import PACE, RECENT, Victim, World
from tests.node.memory_folder import memory_folder
from tests.node.mortal import watched
from tests.node.passages import Passage
from tests.points import Homes

QUICK = replace(TIMING, heartbeat_seconds=0.06, settle_seconds=0.1)
IMPATIENT = replace(
    QUICK,
    call_seconds=0.4,
    connect_seconds=0.4,
    chunk_seconds=0.4,
    hint_seconds=0.15,
    seed_retry_seconds=0.15,
    known_retry_seconds=0.2,
)
RUN = {"evaluate_every": 0, "inner_steps": 2, "snapshot_every": 3}
Test = TypeVar("Test", bound=Callable[..., object])
LANES = 3
QUIET = 2


pytestmark = pytest.mark.timeout(400)


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    with memory_folder(tmp_path) as made:
        yield made


@pytest.fixture
def homes(monkeypatch: pytest.MonkeyPatch) -> Iterator[Homes]:
    monkeypatch.setattr("tests.node.cluster.DEADLINE_SECONDS", 150.0)  # many nodes at once
    with watched(monkeypatch) as made:
        yield made


async def come_back(
    victim: Victim, seeds: tuple[str, ...], starting: Passage | None = None
) -> None:
    """Lives in which it may die while it starts, and one that is well."""
    before = victim.life.last_head
    while True:
        victim.walk(starting)
        await victim.begin(seeds)
        if not victim.dead:
            await victim.cluster.until(lambda: victim.dead or victim.lives_well or victim.wrong)
        if not victim.dead:
            victim.end_of_walk()
            victim.verify(before)
            victim.walk(None)
            return
        await victim.bury()


async def in_lanes(
    folder: Path,
    story: Callable[[Cluster], Coroutine[Any, Any, None]],
    timing: Timing = QUICK,
    **run: Any,
) -> None:
    """The same story in swarms that know nothing of each other: while one waits another works."""
    async with cluster(folder, QUICK, **RUN):
        lanes = [Cluster(folder / str(number), RUN | run, timing) for number in range(LANES)]
        try:
            async with asyncio.TaskGroup() as group:
                for made in lanes:
                    made.folder.mkdir()
                    group.create_task(story(made))
        finally:
            for made in lanes:
                for node in made.nodes:
                    await node.close()
        assert [breach for made in lanes for breach in made.breaches] == []


async def two(made: Cluster, homes: Homes, **config: Any) -> tuple[ClusterNode, Victim]:
    """A swarm of two, one of which is going to die."""
    world = World(made, homes)
    other = made.node()
    other.seconds_a_turn = PACE
    await other.start(**config)
    victim = world.victim()
    await victim.begin((other.address,))
    await made.until(lambda: victim.lives_well or victim.wrong)
    victim.verify(None)
    return other, victim


async def dies_in_rounds(made: Cluster, homes: Homes, passage: Passage) -> None:
    other, victim = await two(made, homes, checkpoint_share=0.001)
    while passage.quiet < QUIET:
        victim.walk(passage)
        await made.until(lambda: victim.dead or passage.quiet >= QUIET)
        if victim.dead:
            await victim.bury()
            await come_back(victim, (other.address,))
            await made.until(lambda: agree(other, victim))


async def dies_as_it_starts(made: Cluster, homes: Homes, passage: Passage) -> None:
    other, victim = await two(made, homes, checkpoint_share=0.001)
    while passage.quiet < QUIET:
        victim.kill()
        await victim.bury()
        await come_back(victim, (other.address,), passage)
        await made.until(lambda: agree(other, victim))


async def dies_as_it_leaves(made: Cluster, homes: Homes, passage: Passage) -> None:
    other, victim = await two(made, homes, checkpoint_share=0.001)
    while passage.quiet < QUIET:
        victim.walk(passage)
        leaving = asyncio.create_task(victim.leave())
        await made.until(lambda left=leaving: victim.dead or left.done())
        if victim.dead:
            leaving.cancel()
            await asyncio.gather(leaving, return_exceptions=True)
            await victim.bury()
        else:
            leaving.result()
            victim.end_of_walk()
            await victim.close()
        await come_back(victim, (other.address,))
        await made.until(lambda: agree(other, victim))


async def dies_as_it_joins(made: Cluster, homes: Homes, passage: Passage) -> None:
    other, first = await two(made, homes)
    await first.leave()
    other.worker._seconds_a_turn = 0.05  # else its log is long soon, and is fetched each time
    while passage.quiet < QUIET:
        victim = first.world.victim()
        await comes_up(victim, (other.address,), passage)
        await made.until(lambda who=victim: agree(other, who))
        await victim.crash()
        victim.unwatch()


async def dies_as_it_founds(made: Cluster, homes: Homes, passage: Passage) -> None:
    world = World(made, homes)
    while passage.quiet < QUIET:
        victim = world.victim()
        await comes_up(victim, (), passage)
        await victim.crash()
        victim.unwatch()


async def comes_up(victim: Victim, seeds: tuple[str, ...], passage: Passage) -> None:
    """The first life of a node; if it ends in the passage there is a second one."""
    victim.walk(passage)
    await victim.begin(seeds)
    if not victim.dead:
        await victim.cluster.until(lambda: victim.dead or victim.lives_well or victim.wrong)
    if victim.dead:
        await victim.bury()
        await come_back(victim, seeds)
    else:
        victim.verify(None)
        victim.walk(None)


async def dies_as_a_fork_heals(made: Cluster, homes: Homes, passage: Passage) -> None:
    other, victim = await two(made, homes, checkpoint_share=0.001)
    other.worker._seconds_a_turn = 0.04  # who is many rounds behind has to catch up with it
    while passage.quiet < QUIET:
        # Not while it waits for a packet: it would ask for it for a quarter of a minute.
        await made.until(lambda: agree(other, victim) and same_head(other, victim))
        made.network.partition([other.identity.peer_id], [victim.identity.peer_id])
        victim.worker._seconds_a_turn = 0.1  # the lighter chain
        apart = max(node.round for node in (other, victim))
        await made.until(lambda at=apart: victim.round >= at + 1 and other.round >= at + 4)
        victim.walk(passage)
        made.network.heal()
        goal = victim.parts.report.account.tally.rounds_contributed + 2
        await made.until(lambda to=goal: victim.dead or victim.feed.status.rounds_contributed >= to)
        if victim.dead:
            await victim.bury()
            await come_back(victim, (other.address,))
        else:
            victim.walk(None)
        await made.until(lambda: agree(other, victim))


def _head(node: ClusterNode) -> Digest:
    head = node.parts.machine.head
    assert head is not None
    return head.digest


def same_head(one: ClusterNode, other: ClusterNode) -> bool:
    """Both train on it."""
    labours = [node.parts.machine.state.labour for node in (one, other)]
    return _head(one) == _head(other) and all(labour.training for labour in labours)


def agree(one: ClusterNode, other: ClusterNode) -> bool:
    """One's chain is the beginning of the other's; where they have a state in common it is one."""
    chains = [node.parts.ledger.chain(_head(node), RECENT) for node in (one, other)]
    rounds = [{m.round: (m.digest, m.state) for m in chain} for chain in chains]
    common = set(rounds[0]) & set(rounds[1])
    if not common or any(rounds[0][number] != rounds[1][number] for number in common):
        return False
    stores = [node.parts.ledger.store for node in (one, other)]
    kept = [{m.digest: store.snapshot_of(m.digest) for m in chains[0]} for store in stores]
    both = [d for d in kept[0] if kept[0][d] is not None and kept[1][d] is not None]
    assert all(kept[0][digest] == kept[1][digest] for digest in both)
    return bool(both)


def rare(test: Test) -> Test:
    """What takes minutes is played by `make faults`; what a node does every day by `make test`."""
    return pytest.mark.slow(pytest.mark.timeout(900)(test))


def effects(*names: str) -> set[str]:
    return {f"{name} {when}" for name in names for when in ("before", "after")}


async def test_a_node_that_dies_at_any_point_of_a_round_loses_nothing(
    folder: Path, homes: Homes
) -> None:
    passage = Passage("Train before")
    await in_lanes(folder, lambda made: dies_in_rounds(made, homes, passage))
    assert len(passage.met) >= 90
    assert passage.names >= effects("Train", "Contribute", "Announce", "Fetch", "Commit")
    assert passage.names >= effects("Propose", "Publish", "Apply", "Say")
    assert passage.names >= effects("tell Train", "tell Contribute", "tell Correct")
    assert passage.names >= effects("tell SaveCheckpoint", "hear Saved", "hear Contributed")
    assert passage.names >= effects("call announce", "call publish")
    assert passage.names >= {"replace head", "replace log/*", "replace blobs/*/*"}
    assert passage.names >= {"replace states/*.f32", "unlink states/*.f32", "rename checkpoint/*"}


async def test_a_node_that_dies_as_it_starts_again_loses_nothing(
    folder: Path, homes: Homes
) -> None:
    passage = Passage(ends="Train before")
    await in_lanes(folder, lambda made: dies_as_it_starts(made, homes, passage))
    assert len(passage.met) >= 20
    assert passage.names >= effects("Settle", "tell Restore", "Say")


@rare
async def test_a_node_that_dies_as_it_joins_can_join_again(folder: Path, homes: Homes) -> None:
    passage = Passage(ends="Contribute before", alike=2)
    # Rounds are so short here that a snapshot would be gone before it is fetched.
    slow = {"snapshot_every": 12}
    await in_lanes(folder, lambda made: dies_as_it_joins(made, homes, passage), **slow)
    assert len(passage.met) >= 20
    assert passage.names >= effects("FetchSnapshot", "tell TakeAgreed", "call gift")


@rare
async def test_a_node_that_dies_as_it_leaves_comes_back_and_loses_nothing(
    folder: Path, homes: Homes
) -> None:
    passage = Passage(ends="never")
    await in_lanes(folder, lambda made: dies_as_it_leaves(made, homes, passage))
    assert len(passage.met) >= 20


async def test_a_node_that_dies_as_it_founds_a_run_founds_one(folder: Path, homes: Homes) -> None:
    passage = Passage(ends="Train before")
    await in_lanes(folder, lambda made: dies_as_it_founds(made, homes, passage))
    assert len(passage.met) >= 20


@rare
async def test_a_node_that_dies_as_its_fork_is_undone_owes_what_it_told_on_it(
    folder: Path, homes: Homes
) -> None:
    passage = Passage("Apply with undo before", "Train before", alike=2)
    await in_lanes(folder, lambda made: dies_as_a_fork_heals(made, homes, passage), IMPATIENT)
    assert len(passage.met) >= 20
    assert passage.names >= effects("Apply with undo")
