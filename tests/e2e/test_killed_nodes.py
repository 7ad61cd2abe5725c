"""A real node that is killed at chosen points of its life, one life after the other, and loses
nothing. `tests/node/test_killpoints.py` looks at every point; here the processes are real."""

from __future__ import annotations

import signal
import sys
from pathlib import Path

import pytest

from benchmarks.daemons import START_SECONDS, Daemon, World, sets, together, until, world
from demoloco.types import Manifest, PeerId
from tests.e2e.on_disk import chain_on_disk

KILLED = Path(__file__).parents[1] / "faults" / "killed_node.py"
SETTINGS = sets(inner_steps=16, evaluate_every=0, threads=1, task__depth=1, task__width=64)
OFTEN = "checkpoint_share=1"

FEW = ("replace:head:3", "Announce:before:3", "hear:Saved:before:2")
MANY = (
    "tell:Restore:before:1",
    "Settle:after:1",
    "Train:after:2",
    "hear:Trained:before:2",
    "Contribute:after:2",
    "hear:Contributed:before:2",
    "replace:notes/pending:2",
    "Announce:before:2",
    "Announce:after:2",
    "Fetch:before:2",
    "Commit:before:2",
    "Commit:after:2",
    "replace:log/*:2",
    "Apply:before:2",
    "posix_fallocate:tmp/*:2",
    "replace:states/*.json:2",
    "replace:states/*.f32:2",
    "replace:head:2",
    "fsync:home:3",
    "tell:Correct:before:2",
    "hear:Corrected:after:2",
    "replace:notes/tally:2",
    "unlink:states/*.f32:1",
    "tell:SaveCheckpoint:after:2",
    "hear:Saved:before:2",
    "replace:notes/owed:2",
)


@pytest.mark.timeout(500)
def test_a_node_that_is_killed_where_it_hurts_comes_back_and_loses_nothing() -> None:
    with world() as place:
        lives_and_dies(place, FEW)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_a_node_that_is_killed_at_each_kind_of_point_comes_back_and_loses_nothing() -> None:
    with world() as place:
        lives_and_dies(place, MANY)


def lives_and_dies(place: World, points: tuple[str, ...]) -> None:
    first, killed = place.daemon("first"), place.daemon("killed")
    first.start(*SETTINGS)
    seeds = ("--peers", first.address, *sets(threads=1), "--set", OFTEN)
    killed.start(*seeds)
    until(lambda: bool(together(first, killed)), START_SECONDS, "a round that both are in")
    until(lambda: killed.lines("round committed"), START_SECONDS, "a round")
    peer, run = PeerId(killed.status.peer_id), killed.status.run_id
    killed.kill()
    for point in points:
        reached = newest_round(killed)
        killed.program = ["env", f"KILL_AT={point}", sys.executable, "-P", str(KILLED)]
        killed.start()
        assert killed.exit_code(START_SECONDS) == -signal.SIGKILL, f"{point}\n{killed.tail()}"
        stood_where_it_was(killed, reached, point)
    reached = newest_round(killed)
    killed.program = place.daemon("as ever").program
    killed.start()
    until(lambda: bool(together(first, killed)), START_SECONDS, "a round that both are in")
    stood_where_it_was(killed, reached, "the last life")
    assert killed.status.run_id == run
    assert killed.said("run founded") == []
    for node in (first, killed):
        node.kill()
    assert_one_chain(chain_on_disk(first), chain_on_disk(killed), peer)


def newest_round(node: Daemon) -> int:
    """That its disk holds, as far as its log tells: a round is on disk before it is logged."""
    return max((facts["round"] for facts in node.lines("round committed")), default=0)


def stood_where_it_was(node: Daemon, reached: int, point: str) -> None:
    """Its first word of this life about a state is not of an older one."""
    stood = node.lines("worker stands")[:1]
    assert all(facts["round"] >= reached for facts in stood), point
    assert all(str(facts["on"]).startswith("the checkpoint") for facts in stood), point


def assert_one_chain(one: list[Manifest], other: list[Manifest], peer: PeerId) -> None:
    """The two agree where both have a round, and no packet of that peer counts twice."""
    rounds = [{manifest.round: manifest.digest for manifest in chain} for chain in (one, other)]
    common = set(rounds[0]) & set(rounds[1])
    assert common
    apart = [number for number in common if rounds[0][number] != rounds[1][number]]
    assert all(number >= max(common) - 1 for number in apart)  # who ended first had none of it
    entries = [manifest.entry_of(peer) for manifest in one]
    packets = [entry.packet for entry in entries if entry is not None]
    assert packets
    assert len(set(packets)) == len(packets)
