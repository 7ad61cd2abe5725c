"""Two real nodes train a task of somebody's own, and go on after both were killed at once."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

import pytest

from benchmarks.daemons import START_SECONDS, Daemon, World, await_end, sets, together, until
from demoloco_proto.v1.control_pb2 import StatusReply

pytestmark = pytest.mark.timeout(300)

OWN = Path(__file__).with_name("own_task.py")
TASK = ("--task", "own_task:Sine")


@dataclass(frozen=True)
class Story:
    """What was seen of both nodes, the founder first."""

    begun: list[StatusReply]
    trained: list[StatusReply]
    killed: list[StatusReply]
    back: list[StatusReply]
    stood: list[int]  # the round from which each went on
    goes_on: list[StatusReply]
    survivors: list[object]


@pytest.fixture(scope="module")
def nodes(place: World) -> tuple[Daemon, Daemon]:
    shutil.copy(OWN, place.root)
    founder, joiner = place.daemon("founder"), place.daemon("joiner")
    founder.start(*TASK, *sets(threads=1, evaluate_every=1, inner_steps=200, learning_rate=1e-4))
    joiner.start(*TASK, "--peers", founder.address, *sets(threads=1))
    return founder, joiner


@pytest.fixture(scope="module")
def story(nodes: tuple[Daemon, Daemon]) -> Story:
    begun = [node.wait_for(_has_told_and_evaluated) for node in nodes]
    goal = max(status.round for status in begun) + 6
    trained = [node.wait_for_round(goal) for node in nodes]
    families = [process for node in nodes for process in node.family()]
    for node in nodes:
        node.kill()
    killed = [node.status for node in nodes]
    survivors = await_end(families)
    for node in nodes:
        node.start()
    back = [node.ready() for node in nodes]
    stood = [node.lines("worker stands")[0]["round"] for node in nodes]
    until(lambda: together(*nodes), START_SECONDS, "a round that both are in")
    goes_on = [
        node.wait_for(lambda status, then=then: status.rounds_contributed > then.rounds_contributed)
        for node, then in zip(nodes, killed, strict=True)
    ]
    return Story(begun, trained, killed, back, stood, goes_on, list(survivors))


def _has_told_and_evaluated(status: StatusReply) -> bool:
    return status.rounds_contributed >= 2 and status.HasField("eval_loss")


def test_a_task_of_somebodys_own_trains_on_both(story: Story) -> None:
    untrained = story.trained[0].eval_loss_first
    for before, after in zip(story.begun, story.trained, strict=True):
        assert after.task == "own_task:Sine"
        assert after.eval_loss < 0.5 * untrained
        assert after.rounds_contributed > before.rounds_contributed


def test_killing_all_nodes_at_once_leaves_no_process(story: Story) -> None:
    assert story.survivors == []


def test_the_run_goes_on_from_disk_when_all_were_killed(story: Story) -> None:
    for killed, back, stood in zip(story.killed, story.back, story.stood, strict=True):
        assert back.run_id == killed.run_id
        assert back.peer_id == killed.peer_id
        assert back.run_id
        assert stood >= killed.round
    for killed, after in zip(story.killed, story.goes_on, strict=True):
        assert after.rounds_contributed > killed.rounds_contributed


def test_the_restarted_nodes_agree_again(nodes: tuple[Daemon, Daemon], story: Story) -> None:
    """Until they meet each trains alone; then the heavier chain is everybody's."""
    met = max(together(*nodes))
    assert met > max(story.stood)
    for node in nodes:
        node.wait_for_round(met + 3)
    founder, joiner = ({moment.round: moment for moment in node.moments()} for node in nodes)
    shared = [number for number in founder.keys() & joiner.keys() if number >= met]
    assert shared
    assert [founder[number] for number in shared] == [joiner[number] for number in shared]
