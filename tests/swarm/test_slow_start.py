"""What a cold connection waits is told from what the link takes."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from demoloco.swarm.links.congestion import begins_slowly
from demoloco.swarm.links.slow_start import MAX_IDLE_SHARE, TRIP_SHARE, WINDOW_BYTES, idle_seconds

MBIT = 125_000.0


def waits(size: int, rate: float, trip: float) -> float:
    """Of one new connection, by sending window after window."""
    window, sent, idle = WINDOW_BYTES, 0, 0.0
    while sent + window < size:
        idle += max(0.0, trip - window / rate)
        sent, window = sent + window, 2 * window
    return idle


@given(st.floats(0.5, 100), st.floats(0.01, 0.3), st.integers(20_000, 4_000_000))
def test_the_pauses_are_found_and_never_more_than_there_were(
    mbit: float, trip: float, size: int
) -> None:
    rate = mbit * MBIT
    idle = waits(size, rate, trip * TRIP_SHARE)
    seconds = size / rate + idle
    found = idle_seconds(size, seconds, trip, 1)
    assert found <= idle + 1e-5 * seconds
    assert found >= min(idle, MAX_IDLE_SHARE * seconds) - 1e-5 * seconds


@given(st.floats(0.01, 0.3), st.integers(1, 4_000_000), st.floats(0.001, 10))
def test_never_more_than_a_share_of_the_time_is_put_down_to_pauses(
    trip: float, size: int, seconds: float
) -> None:
    assert 0 <= idle_seconds(size, seconds, trip, 1) <= MAX_IDLE_SHARE * seconds


def test_what_was_quicker_than_a_cold_connection_was_not_cold() -> None:
    assert idle_seconds(600_000, 0.24, 0.1, 1) == 0


def test_what_fits_into_the_first_window_does_not_wait() -> None:
    assert idle_seconds(WINDOW_BYTES, 1.0, 0.1, 1) == 0
    assert idle_seconds(3 * WINDOW_BYTES, 1.0, 0.1, 3) == 0


@pytest.mark.parametrize(
    ("after_idle", "control", "slowly"),
    [("1", "cubic", True), ("0", "cubic", False), ("1", "bbr", False)],
)
def test_this_machines_tcp_says_whether_it_begins_slowly(
    tmp_path: Path, after_idle: str, control: str, slowly: bool
) -> None:
    (tmp_path / "tcp_slow_start_after_idle").write_text(f"{after_idle}\n")
    (tmp_path / "tcp_congestion_control").write_text(f"{control}\n")
    assert begins_slowly(tmp_path) is slowly


def test_a_machine_that_does_not_tell_begins_slowly(tmp_path: Path) -> None:
    assert begins_slowly(tmp_path)
