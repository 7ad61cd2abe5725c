"""A task whose speed is told, not found."""

from __future__ import annotations

import time

import pytest
import torch

from benchmarks.paced import Paced
from demoloco.task.lm import LanguageModel
from demoloco.task.port import Shard


class Clock:
    """Time that goes forward only by sleep and by work."""

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(time, "monotonic", made.monotonic)
    monkeypatch.setattr(time, "sleep", made.sleep)
    return made


def shard() -> Shard:
    return Shard(0, "me", 2, torch.device("cpu"))


def moments(clock: Clock, work: list[float]) -> list[float]:
    """When each batch came, where the step before it took so long."""
    began = clock.now
    batches = Paced(pace_ms=100).batches(shard(), 0)
    found = []
    for seconds in work:
        clock.now += seconds
        next(batches)
        found.append(round(clock.now - began, 3))
    return found


def test_a_batch_comes_at_the_pace_whatever_a_step_takes(clock: Clock) -> None:
    assert moments(clock, [0, 0.01, 0.09, 0.0]) == [0.0, 0.1, 0.2, 0.3]


def test_a_little_delay_does_not_add_up(clock: Clock) -> None:
    assert moments(clock, [0, 0.15, 0.01, 0.01]) == [0.0, 0.15, 0.2, 0.3]


def test_after_a_pause_nothing_is_made_up_for(clock: Clock) -> None:
    assert moments(clock, [0, 5.0, 0.01, 0.01]) == [0.0, 5.0, 5.1, 5.2]


def test_the_batches_are_those_of_the_language_model(clock: Clock) -> None:
    ours = Paced().batches(shard(), 3)
    theirs = LanguageModel(depth=1, width=64, context=64).batches(shard(), 3)
    assert all(torch.equal(next(ours), next(theirs)) for _ in range(3))
