"""The worker counts what it learns: each good inner step once, nothing that is borrowed."""

from __future__ import annotations

from pathlib import Path

import pytest

from demoloco.types import Round
from demoloco.worker.checkpoint import newest_whole
from demoloco.worker.port import (
    Cut,
    Progress,
    Restore,
    SaveCheckpoint,
    Saved,
    Skipped,
    TakeAgreed,
    Train,
    Trained,
)
from tests.worker.desk import CONFIG, Desk

BATCH = CONFIG.batch_size


@pytest.fixture
def agreed(tmp_path: Path) -> Path:
    return tmp_path / "agreed"


@pytest.fixture
def desk(agreed: Path) -> Desk:
    made = Desk()
    made.start(agreed)
    return made


def save(desk: Desk, agreed: Path) -> Path:
    directory = agreed.parent / "checkpoint"
    desk.tell(SaveCheckpoint(directory=directory, agreed=agreed, head=bytes(32)))
    return directory


def test_each_inner_step_counts_over_the_rounds(desk: Desk, agreed: Path) -> None:
    desk.train(1, 3)
    assert desk.last(Trained).learnt == 3 * BATCH
    desk.body(agreed)
    desk.train(2, 2)
    assert desk.last(Trained).learnt == desk.last(Progress).learnt == 5 * BATCH


def test_the_time_in_inner_steps_adds_up_over_the_rounds(desk: Desk, agreed: Path) -> None:
    desk.train(1, 3)
    first = desk.last(Trained).busy_seconds
    desk.body(agreed)
    desk.train(2, 2)
    assert 0 < first < desk.last(Trained).busy_seconds == desk.last(Progress).busy_seconds


def test_a_step_that_is_not_taken_counts_nothing(desk: Desk) -> None:
    desk.loop._training.task.loss = lambda model, batch: (  # type: ignore[method-assign]
        float("nan") * next(model.parameters()).sum()
    )
    desk.train(1, 2)
    assert desk.last(Skipped).in_a_row == 2
    assert desk.last(Trained).learnt == 0


def test_a_cut_leaves_the_steps_that_were_made(desk: Desk) -> None:
    desk.tell(Train(round=Round(1), steps=9))
    desk.steps(4)
    desk.tell(Cut())
    assert desk.last(Trained).learnt == 4 * BATCH


def test_a_checkpoint_counts_what_its_model_holds_in_the_midst_of_a_round(
    desk: Desk, agreed: Path
) -> None:
    desk.tell(Train(round=Round(1), steps=9))
    desk.steps(4)
    directory = save(desk, agreed)
    desk.steps(5)
    found = newest_whole(directory)
    assert found is not None
    assert found.counters.samples_learnt == desk.last(Saved).learnt == 4 * BATCH
    desk.tell(Restore(checkpoint=directory, agreed=agreed, round=Round(0), told_since=()))
    desk.train(1, 1)
    assert desk.last(Trained).learnt == 5 * BATCH


def test_what_was_told_after_the_checkpoint_is_learnt(desk: Desk, agreed: Path) -> None:
    desk.train(1, 1)
    directory = save(desk, agreed)
    told = Restore(
        checkpoint=directory, agreed=agreed, round=Round(0), told_since=(), told_samples=6 * BATCH
    )
    desk.tell(told)
    desk.train(1, 1)
    assert desk.last(Trained).learnt == 7 * BATCH


def test_on_the_agreed_state_only_what_was_told_is_learnt(desk: Desk, agreed: Path) -> None:
    desk.train(1, 5)
    desk.tell(TakeAgreed(agreed=agreed, round=Round(0), told_samples=2 * BATCH))
    desk.train(1, 1)
    assert desk.last(Trained).learnt == 3 * BATCH
