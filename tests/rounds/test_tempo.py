"""The waits' arithmetic, for any course of the last rounds."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.simulator.parts import digest
from demoloco.rounds.tempo import (
    GRACE_CEILING,
    GRACE_FLOOR,
    GRACE_UNMEASURED,
    MAD_TO_SIGMA,
    MIN_ROUNDS,
    PATIENCE_FLOOR,
    PATIENCE_SECONDS,
    SPREAD,
    TURN_CEILING,
    TURN_FLOOR,
    WINDOW_ROUNDS,
    Course,
    Tempo,
    usual,
)
from demoloco.types import PeerId

seconds = st.floats(-1e4, 1e4)
waits = st.floats(0, 1e5)


def course(name: object, latenesses: list[float]) -> Course:
    arrivals = {PeerId(f"peer{n}"): late for n, late in enumerate(latenesses)}
    return Course(digest(name), 0.0, frozenset(arrivals), arrivals)


@given(samples=st.lists(seconds, min_size=1, max_size=40))
def test_what_is_usual_is_at_least_the_median(samples: list[float]) -> None:
    assert usual(samples) >= sorted(samples)[(len(samples) - 1) // 2]


@given(samples=st.lists(seconds, min_size=1, max_size=40), by=st.floats(0, 1e4))
def test_when_all_are_later_the_wait_is_longer_by_as_much(samples: list[float], by: float) -> None:
    later = usual([sample + by for sample in samples])
    assert later == pytest.approx(usual(samples) + by, abs=1e-6)


@given(samples=st.lists(seconds, min_size=1, max_size=40), times=st.floats(1, 100))
def test_when_all_vary_more_the_wait_grows_in_proportion(
    samples: list[float], times: float
) -> None:
    wider = usual([sample * times for sample in samples])
    assert wider == pytest.approx(usual(samples) * times, rel=1e-6, abs=1e-6)


@given(
    many=st.lists(st.floats(-10, 10), min_size=2, max_size=40),
    few=st.lists(st.floats(-1e9, 1e9), max_size=39),
)
def test_a_minority_cannot_stretch_the_wait_beyond_what_the_others_could(
    many: list[float], few: list[float]
) -> None:
    few = few[: (len(many) - 1)]
    spread = max(many) - min(many)
    most = max(many) + SPREAD * MAD_TO_SIGMA * spread
    assert usual([*many, *few]) <= most + 1e-6


@given(
    rounds=st.lists(st.lists(seconds, min_size=1, max_size=9), max_size=12),
    short=waits,
    more=waits,
)
def test_the_grace_is_bounded_and_grows_with_the_time_of_the_quorum(
    rounds: list[list[float]], short: float, more: float
) -> None:
    tempo = Tempo()
    for number, latenesses in enumerate(rounds):
        tempo.ran(course(number, latenesses))
    floor = GRACE_FLOOR if len(rounds) >= MIN_ROUNDS else GRACE_UNMEASURED
    assert floor <= tempo.grace(short) <= max(floor, GRACE_CEILING * short)
    assert tempo.grace(short) <= tempo.grace(short + more)


@given(samples=st.lists(waits, max_size=12), short=waits, more=waits)
def test_patience_is_bounded_and_grows_with_the_time_of_the_first_packet(
    samples: list[float], short: float, more: float
) -> None:
    tempo = Tempo()
    for sample in samples:
        tempo.gathered(sample)
    assert PATIENCE_FLOOR <= tempo.patience(short) <= max(PATIENCE_SECONDS, 4 * short)
    assert short + tempo.patience(short) <= short + more + tempo.patience(short + more) + 1e-6


@given(samples=st.lists(waits, max_size=12))
def test_a_turn_is_bounded_whatever_was_heard(samples: list[float]) -> None:
    tempo = Tempo()
    for sample in samples:
        tempo.heard(sample)
        tempo.fetched(sample)
    assert TURN_FLOOR <= tempo.turn() <= TURN_CEILING
    assert tempo.fetching() == tempo.turn()


@given(old=st.lists(st.floats(5, 9), min_size=MIN_ROUNDS, max_size=8))
def test_only_the_last_rounds_count(old: list[float]) -> None:
    tempo = Tempo()
    for sample in [*old, *[2.0] * WINDOW_ROUNDS]:
        tempo.heard(sample)
    assert tempo.turn() == 2.0


def test_a_swarm_with_jitter_has_a_grace_that_its_packets_keep_and_one_without_has_little() -> None:
    jittery, even = Tempo(), Tempo()
    for number in range(WINDOW_ROUNDS):
        jittery.ran(course(number, [-0.5, -0.3, 0.0, 0.4]))
        even.ran(course(number, [-0.01, -0.01, 0.0, 0.01]))
    assert 0.4 < jittery.grace(20.0) < 4.0
    assert even.grace(20.0) == GRACE_FLOOR
