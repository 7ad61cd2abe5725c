"""Numbers that are none: the step is not taken, the round is not sent, the model goes back."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path

import pytest
import torch

from demoloco.types import Round
from demoloco.worker.inner import MAX_BAD_STEPS
from demoloco.worker.loop import MAX_LAPSES
from demoloco.worker.port import (
    Contribute,
    Contributed,
    Correct,
    Cut,
    Failed,
    Lapsed,
    NotSaved,
    Restore,
    SaveCheckpoint,
    Skipped,
    TakeAgreed,
    Train,
    Trained,
)
from tests.worker.desk import CONFIG, Desk


@pytest.fixture
def agreed(tmp_path: Path) -> Path:
    return tmp_path / "agreed"


def with_fault(fault: str) -> Desk:
    return Desk(dataclasses.replace(CONFIG, task_args={"fault": fault}))


def test_steps_without_a_finite_loss_are_not_taken_and_ten_in_a_row_are_too_many() -> None:
    desk = with_fault("nan")
    before = desk.model()["first.weight"]
    desk.train(1, MAX_BAD_STEPS - 1)
    assert torch.equal(desk.model()["first.weight"], before)
    assert desk.last(Trained).samples == 0
    desk.train(1, 1)
    assert "10 inner steps in a row, up to batch 9, had no finite loss" in desk.last(Lapsed).why


def test_the_batch_whose_step_was_not_taken_is_named() -> None:
    desk = with_fault("batch 2")
    desk.train(1, 4)
    skipped = desk.last(Skipped)
    assert (skipped.first_batch, skipped.last_batch, skipped.in_a_row) == (2, 2, 1)
    assert not math.isfinite(skipped.loss)
    assert desk.last(Trained).samples == 3 * CONFIG.batch_size


def test_of_several_micro_batches_the_bad_one_is_named() -> None:
    config = dataclasses.replace(CONFIG, task_args={"fault": "batch 6"})
    desk = Desk(config, accumulate=4)
    desk.train(1, 3)
    skipped = desk.last(Skipped)
    assert (skipped.first_batch, skipped.last_batch) == (6, 6)


def test_an_update_that_is_not_finite_is_noticed_and_its_batch_named(agreed: Path) -> None:
    desk = Desk()
    desk.start(agreed)
    desk.train(1, 3)
    with torch.no_grad():
        desk.loop._own.tensors["first.weight"][3, 3] = math.nan
    desk.train(1, 2)
    assert desk.last(Lapsed).why == "the model is not finite, seen at batch 3"
    assert not desk.loop.training


def test_after_a_lapse_nothing_is_done_until_the_model_is_put_back(agreed: Path) -> None:
    desk = Desk()
    desk.start(agreed)
    with torch.no_grad():
        desk.loop._own.tensors["first.weight"][3, 3] = math.inf
    desk.tell(Contribute(ticket=1, agreed=agreed, k=64))
    desk.events.clear()
    desk.tell(Train(round=Round(1), steps=2), Contribute(ticket=2, agreed=agreed, k=64))
    desk.tell(Correct(before=agreed, after=agreed, round=Round(1)), Cut())
    desk.tell(SaveCheckpoint(directory=agreed.parent / "c", agreed=agreed, head=b"h" * 32))
    assert [type(event) for event in desk.events] == [NotSaved]
    assert not desk.loop.training
    desk.tell(TakeAgreed(agreed=agreed, round=Round(1)))
    desk.train(1, 2)
    assert desk.last(Trained).samples == 2 * CONFIG.batch_size


def test_a_model_that_is_not_finite_is_not_saved(agreed: Path) -> None:
    desk = Desk()
    desk.start(agreed)
    desk.train(1, 2)
    with torch.no_grad():
        desk.loop._own.tensors["norm.running_mean"][0] = math.nan
    directory = agreed.parent / "c"
    desk.tell(SaveCheckpoint(directory=directory, agreed=agreed, head=b"h" * 32))
    assert desk.last(NotSaved).why == "the model is not finite"
    assert desk.last(Lapsed).why == "the model is not finite after batch 1"
    assert not directory.exists()


def test_a_restored_worker_reads_on_behind_the_batch_that_led_to_the_lapse(agreed: Path) -> None:
    desk = Desk()
    desk.start(agreed)
    desk.train(1, 2)
    directory = agreed.parent / "c"
    desk.tell(SaveCheckpoint(directory=directory, agreed=agreed, head=b"h" * 32))
    kept = desk.model()["first.weight"]
    desk.train(1, 3)
    with torch.no_grad():
        desk.loop._own.tensors["first.weight"][3, 3] = math.nan
    desk.tell(Contribute(ticket=1, agreed=agreed, k=64))
    desk.tell(Restore(checkpoint=directory, agreed=agreed, round=Round(1), told_since=()))
    assert torch.equal(desk.model()["first.weight"], kept)
    assert desk.loop._training.batches_read == 5


def test_a_model_that_lapses_again_and_again_is_the_runs_fault(agreed: Path) -> None:
    desk = with_fault("nan")
    desk.start(agreed)
    for _ in range(MAX_LAPSES):
        desk.train(1, MAX_BAD_STEPS)
        assert isinstance(desk.events[-1], Lapsed)
        desk.tell(TakeAgreed(agreed=agreed, round=Round(1)))
    desk.train(1, MAX_BAD_STEPS)
    failed = desk.last(Failed)
    assert "4 times in a row without a round in between" in failed.why
    assert "smaller --set learning_rate (now 0.01)" in failed.fix


def test_a_packet_between_two_lapses_starts_the_count_anew(agreed: Path) -> None:
    desk = Desk()
    desk.start(agreed)
    for _ in range(MAX_LAPSES + 2):
        desk.train(1, 2)
        desk.body(agreed)
        with torch.no_grad():
            desk.loop._own.tensors["first.weight"][3, 3] = math.nan
        desk.tell(Contribute(ticket=1, agreed=agreed, k=64))
        assert isinstance(desk.events[-1], Lapsed)
        desk.tell(TakeAgreed(agreed=agreed, round=Round(1)))


def test_a_model_that_is_not_finite_tells_nothing(agreed: Path) -> None:
    desk = Desk()
    desk.start(agreed)
    with torch.no_grad():
        desk.loop._own.tensors["first.weight"][3, 3] = math.inf
    desk.tell(Contribute(ticket=1, agreed=agreed, k=64))
    assert "not finite" in desk.last(Lapsed).why
    assert not any(isinstance(event, Contributed) for event in desk.events)
