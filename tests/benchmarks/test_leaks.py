"""A leak is seen through restarts and noise; noise is no leak."""

from __future__ import annotations

import random

import pytest

from benchmarks.leaks import descriptor_slope, memory_slope, slope
from benchmarks.records import Sample


def samples(
    per_hour: float, *, lives: int = 6, seconds: int = 600, noise: float = 0.5
) -> list[Sample]:
    """Processes of which each begins with another size, grows fast for a minute, then as told."""
    draw = random.Random(1)
    made = []
    for life in range(lives):
        base = draw.uniform(50, 500)
        for at in range(0, seconds, 5):
            grown = min(at, 60) * 2.0 + per_hour * at / 3600 + draw.gauss(0, noise)
            when = life * seconds + at
            made.append(Sample(when, "node", f"{life}", base + grown, int(40 + grown)))
    return made


def test_a_leak_is_seen_over_many_lives() -> None:
    found = memory_slope(samples(30.0), "node")
    assert found.per_hour == pytest.approx(30.0, abs=3 * found.error)
    assert found.per_hour > 10 * found.error
    assert found.lives == 6


def test_noise_is_no_leak() -> None:
    found = memory_slope(samples(0.0, seconds=1200), "node")
    assert abs(found.per_hour) < 3 * found.error
    assert found.error < 1.0


def test_lives_of_different_size_are_no_leak() -> None:
    grows_by_restart = [
        Sample(life * 600 + at, "node", f"{life}", 100.0 * life, 10 * life)
        for life in range(5)
        for at in range(0, 600, 5)
    ]
    assert memory_slope(grows_by_restart, "node").per_hour == 0
    assert descriptor_slope(grows_by_restart, "node").per_hour == 0


def test_descriptors_that_are_never_closed_are_seen() -> None:
    leaking = [Sample(at, "p2pd", "1", 10.0, 40 + at // 60) for at in range(0, 1800, 5)]
    assert descriptor_slope(leaking, "p2pd").per_hour == pytest.approx(60, rel=0.05)
    assert memory_slope(leaking, "p2pd").per_hour == 0


def test_roles_are_told_apart() -> None:
    assert memory_slope(samples(30.0), "worker").lives == 0


def test_a_life_that_is_over_in_a_minute_says_nothing() -> None:
    assert memory_slope(samples(30.0, seconds=55), "node").lives == 0


def test_a_slope_is_that_of_the_line_through_the_points() -> None:
    found = slope([[0, 10, 20], [100, 110, 120]], [[1, 2, 3], [50, 51, 52]])
    assert found.per_hour == pytest.approx(360)
    assert found.error == pytest.approx(0, abs=1e-9)
