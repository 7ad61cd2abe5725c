"""Ctrl-C in a terminal: the first asks the node to leave, the second stops it. Two real nodes with
method synced."""

from __future__ import annotations

import signal
from dataclasses import dataclass

import pytest

from benchmarks.daemons import Daemon, Moment, World, await_end, sets, until
from demoloco_proto.v1.control_pb2 import StatusReply

pytestmark = pytest.mark.timeout(300)

FORCED_SECONDS = 60.0  # half of what it would wait; a crowded machine is slow
SETTINGS = sets(
    method="synced", inner_steps=16, evaluate_every=1, threads=1, task__depth=1, task__width=64
)


@dataclass(frozen=True)
class Story:
    """What was seen."""

    trained: list[StatusReply]
    moments: list[set[Moment]]
    left_code: int
    told_at: int  # the last round that the one that left knows its packet in
    after: dict[int, dict[str, object]]  # rounds of the one that stayed
    heard: list[str]  # why the one that stayed lost the other
    forced_code: int
    survivors: list[object]


@pytest.fixture(scope="module")
def story(place: World) -> Story:
    stays, leaves = place.daemon("stays"), place.daemon("leaves")
    stays.start(*SETTINGS, *sets(leave_seconds=120))
    leaves.start("--peers", stays.address, *sets(threads=1))
    goal = leaves.wait_for(lambda status: status.rounds_contributed >= 2).round + 4
    trained = [node.wait_for_round(goal) for node in (stays, leaves)]
    moments = [node.moments() for node in (stays, leaves)]

    family = leaves.family()
    leaves.interrupt()
    left_code = leaves.exit_code(60.0)
    told_at = max(number for number, facts in leaves.chain().items() if facts["mine"] == "in")
    stays.wait_for_round(told_at + 3)
    after = stays.chain()
    heard = [facts["why"] for facts in stays.lines("member went")]

    leaves.start()
    stays.wait_for(lambda status: len(status.members) == 2)
    leaves.wait_for(lambda status: status.rounds_contributed > trained[1].rounds_contributed)
    forced_code = _force(stays, holding_up=leaves)
    family += leaves.family()
    leaves.kill()
    return Story(
        trained, moments, left_code, told_at, after, heard, forced_code, list(await_end(family))
    )


def _force(node: Daemon, holding_up: Daemon) -> int:
    """Ctrl-C twice, while the node still waits for a peer that has stopped answering."""
    holding_up.signal(signal.SIGSTOP)
    try:
        node.interrupt()
        until(
            lambda: node.lines("leaving: contributing what is done; a second Ctrl-C stops at once"),
            30.0,
            "the node says that it leaves",
        )
        node.interrupt()
        return node.exit_code(FORCED_SECONDS)
    finally:
        holding_up.signal(signal.SIGCONT)


def test_method_synced_trains_two_nodes(story: Story) -> None:
    for status in story.trained:
        assert status.method == "synced"
        assert status.rounds_contributed >= 4
        assert status.eval_loss < status.eval_loss_first
    ours, theirs = ({moment.round: moment for moment in seen} for seen in story.moments)
    assert len(ours.keys() & theirs.keys()) >= 3
    assert all(ours[number] == theirs[number] for number in ours.keys() & theirs.keys())


def test_ctrl_c_leaves_in_order(story: Story) -> None:
    assert story.left_code == 0
    assert story.heard == ["said goodbye"]


def test_what_a_leaving_node_has_done_is_in_the_run(story: Story) -> None:
    """It may be gone before the round of its last packet is closed. When it is told to leave, one
    round may be under way, and the next in training."""
    shared = [number for number, facts in story.after.items() if facts["packets"] == 2]
    assert max(shared) in range(story.told_at, story.told_at + 3)
    assert story.after[max(shared) + 1]["packets"] == 1


def test_a_second_ctrl_c_stops_at_once(story: Story) -> None:
    assert story.forced_code == 130


def test_a_forced_end_leaves_no_process(story: Story) -> None:
    assert story.survivors == []
