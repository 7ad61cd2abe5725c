"""The inner learning rate follows the round and nothing else."""

from __future__ import annotations

import inspect

import pytest

from demoloco.config import RunConfig
from demoloco.types import Round
from demoloco.worker.schedule import learning_rate

CONFIG = RunConfig(learning_rate=1.0, warmup_rounds=2, decay_rounds=10, final_lr_share=0.1)


@pytest.mark.parametrize(
    ("round", "done", "rate"),
    [
        (1, 0.0, 0.0),
        (1, 0.5, 0.25),
        (2, 0.0, 0.5),
        (3, 0.0, 1.0),
        (7, 0.0, 0.55),  # half way from round 2 to 10, and from 1.0 to 0.1
        (11, 0.0, 0.1),
        (500, 0.7, 0.1),
    ],
)
def test_it_rises_follows_a_cosine_and_stays(round: int, done: float, rate: float) -> None:
    assert learning_rate(CONFIG, Round(round), done) == pytest.approx(rate)


def test_it_takes_nothing_that_a_node_could_have_for_itself() -> None:
    assert list(inspect.signature(learning_rate).parameters) == ["config", "round", "done"]


def test_rounds_join_without_a_step() -> None:
    for round in range(1, 15):
        end = learning_rate(CONFIG, Round(round), 1.0)
        assert end == pytest.approx(learning_rate(CONFIG, Round(round + 1), 0.0))


def test_without_warm_up_it_starts_at_the_peak() -> None:
    config = RunConfig(learning_rate=1.0, warmup_rounds=0, decay_rounds=1, final_lr_share=1.0)
    assert learning_rate(config, Round(1), 0.0) == 1.0
