"""The share of the time in which a node trains."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from demoloco.node.diligence import Diligence


@dataclass
class Desk:
    at: float = 100.0
    diligence: Diligence = field(init=False)

    def __post_init__(self) -> None:
        self.diligence = Diligence(lambda: self.at)

    def hear(self, after: float, busy: float) -> None:
        self.at += after
        self.diligence.hear(busy)


def test_nothing_is_said_before_the_first_inner_step() -> None:
    desk = Desk()
    assert desk.diligence.share == 0
    desk.hear(10, 0.0)
    desk.at += 10
    assert desk.diligence.share == 0


def test_the_time_counts_from_the_first_inner_step() -> None:
    desk = Desk()
    desk.hear(1000, 2.0)
    assert desk.diligence.share == pytest.approx(1.0)
    desk.hear(8, 8.0)
    assert desk.diligence.share == pytest.approx(0.8)


def test_a_worker_that_is_started_anew_adds_to_what_was() -> None:
    desk = Desk()
    desk.hear(0, 4.0)
    desk.hear(2, 1.0)
    desk.hear(4, 4.0)
    assert desk.diligence.share == pytest.approx(0.8)
