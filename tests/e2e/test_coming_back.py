"""Of two real nodes one is killed while it joins, and loses its worker later; then both lose their
power. The story is told once; each test is one claim about it. That learnt = told + owed all the
while is the world's own claim."""

from __future__ import annotations

import signal
from dataclasses import dataclass, field
from typing import Any

import pytest

from benchmarks.daemons import START_SECONDS, Daemon, World, sets, together, until
from benchmarks.leaks import is_worker
from demoloco_proto.v1.control_pb2 import StatusReply

pytestmark = pytest.mark.timeout(400)

STEPS = 40
SETTINGS = sets(inner_steps=STEPS, evaluate_every=0, threads=1, task__depth=1, task__width=64)


@dataclass
class Story:
    """What was seen."""

    joining: StatusReply = field(default_factory=StatusReply)
    before: list[StatusReply] = field(default_factory=list)  # at the fall, at the cut
    after: list[StatusReply] = field(default_factory=list)
    stands: list[dict[str, Any]] = field(default_factory=list)  # of the worker that came
    at_the_cut: dict[str, StatusReply] = field(default_factory=dict)
    again: dict[str, StatusReply] = field(default_factory=dict)
    rounds: set[int] = field(default_factory=set)  # that both are in, after the cut


@pytest.fixture(scope="module")
def story(place: World) -> Story:
    told = Story()
    first, second = nodes = place.daemon("first"), place.daemon("second")
    first.start(*SETTINGS)
    _joiner_is_killed(second, first.address)
    second.start(*sets(threads=1))  # with nothing but its home
    told.joining = second.ready()
    second.wait_for(lambda status: status.rounds_contributed >= 2)
    _worker_falls(told, second)
    told.at_the_cut = {node.name: node.status for node in nodes}
    for node in nodes:
        node.signal(signal.SIGKILL)
    for node in nodes:
        node.exit_code(30.0)
    for node in nodes:
        node.start(*sets(threads=1))  # without a seed: each is the other's only way back
    told.again = {node.name: node.ready() for node in nodes}
    until(lambda: together(*nodes), START_SECONDS, "a round that both are in")
    told.rounds = together(*nodes)
    return told


def _joiner_is_killed(node: Daemon, address: str) -> None:
    """As soon as it has a home, and long before it knows its run."""
    node.start("--peers", address, *sets(threads=1))
    until((node.home / "notes" / "seeds").exists, START_SECONDS, "the joiner has a home")
    node.kill()


def _worker_falls(told: Story, node: Daemon) -> None:
    """In the midst of its inner steps."""
    told.before.append(node.wait_for(lambda status: STEPS // 2 < status.inner_step < STEPS))
    (worker,) = (one for one in node.family() if is_worker(one))
    worker.kill()
    until(lambda: len(node.lines("worker stands")) == 2, START_SECONDS, "another worker stands")
    goal = told.before[0].rounds_contributed + 2
    told.after.append(node.wait_for(lambda status: status.rounds_contributed >= goal))
    told.stands = node.lines("worker stands")


def test_a_joiner_killed_before_it_had_joined_joins_when_it_comes_back(story: Story) -> None:
    assert story.joining.run_id == story.at_the_cut["first"].run_id


def test_a_killed_worker_is_restored_and_what_that_lost_is_told_in_one_line(story: Story) -> None:
    at_first, again = story.stands
    assert "samples_lost" not in at_first
    assert again["on"].startswith("the checkpoint of round ")
    assert again["samples_lost"] > 0
    assert again["level"] == "warning"
    assert story.after[0].counters["samples_lost"] == again["samples_lost"]
    assert story.after[0].counters["worker_restarts"] == 1


def test_after_a_power_cut_the_run_goes_on_from_the_disks(story: Story) -> None:
    runs = {one.run_id for one in (*story.at_the_cut.values(), *story.again.values())}
    assert len(runs) == 1
    for name, before in story.at_the_cut.items():
        assert story.again[name].round >= before.round
        assert story.again[name].samples_told >= before.samples_told
    assert min(story.rounds) > max(one.round for one in story.at_the_cut.values())
