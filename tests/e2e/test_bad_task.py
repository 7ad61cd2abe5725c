"""A real node whose task goes wrong while it trains: bad numbers end nothing; what raises again and
again ends the node with the place of the traceback."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from benchmarks.daemons import World, sets

pytestmark = pytest.mark.timeout(200)

BAD = Path(__file__).with_name("bad_task.py")


@pytest.fixture(scope="module")
def room(place: World) -> World:
    shutil.copy(BAD, place.root)
    return place


def test_bad_numbers_cost_a_few_steps_and_the_node_goes_on(room: World) -> None:
    settings = sets(threads=1, evaluate_every=1)
    node = room.daemon("poisoned").start("--task", "bad_task:Poisoned", *settings)
    status = node.wait_for(lambda status: status.counters["worker_lapses"] > 0)
    status = node.wait_for_round(status.round + 3)
    assert status.counters["worker_lapses"] == 1
    assert status.counters["worker_restarts"] == 0
    skipped = node.lines("inner step not taken: loss or gradient is not finite")
    assert [line["batch"] for line in skipped] == [30]
    (lapse,) = node.lines("going back to the last checkpoint")
    assert lapse["why"] == "the model is not finite, seen at batch 90"
    assert "the checkpoint of round" in node.lines("worker stands")[-1]["on"]
    assert status.eval_loss < status.eval_loss_first
    node.kill()


def test_what_raises_again_and_again_ends_the_node_with_its_traceback(room: World) -> None:
    settings = sets(threads=1, max_worker_restarts=1)
    node = room.daemon("raising").start("--task", "bad_task:Raising", *settings)
    assert node.exit_code(120.0) == 1
    traceback = node.home / "worker-traceback.txt"
    assert 'bad_task.py", line' in traceback.read_text()
    words = node.log.read_text()
    assert "the worker failed 2 times in a row" in words
    assert (
        f"the task's loss raised ValueError: these shapes do not fit (traceback in {traceback})"
        in words
    )
    assert "fix: correct loss at the place that the traceback" in words
