"""How far the inner steps of a round are, as the learning rate and people see it."""

from __future__ import annotations

import pytest

from demoloco.config import RunConfig
from demoloco.types import Round
from demoloco.worker.stint import Stint

BY_STEPS = RunConfig(inner_steps=10)
BY_TIME = RunConfig(round_seconds=8.0)


def test_planned_steps_fill_the_round() -> None:
    stint = Stint(Round(1), 4, began=0.0)
    assert [stint.share(BY_STEPS, 99.0), stint.shown(BY_STEPS)] == [0.25, (0, 4)]
    stint.done = 4
    assert stint.is_done


def test_steps_beyond_those_of_a_round_stay_at_its_end() -> None:
    stint = Stint(Round(1), None, began=0.0, done=3)
    assert [stint.share(BY_STEPS, 99.0), stint.shown(BY_STEPS)] == [1.0, (13, 10)]
    assert not stint.is_done


@pytest.mark.parametrize(("now", "share"), [(1.0, 0.0), (5.0, 0.5), (9.0, 1.0), (99.0, 1.0)])
def test_with_a_time_the_share_is_that_of_the_time(now: float, share: float) -> None:
    stint = Stint(Round(1), None, began=1.0, done=3)
    assert [stint.share(BY_TIME, now), stint.shown(BY_TIME)] == [share, (3, 0)]


def test_a_cut_waits_for_the_steps_that_it_names() -> None:
    stint = Stint(Round(1), None, began=0.0, end=1)
    assert not stint.is_done
    stint.done = 1
    assert stint.is_done
