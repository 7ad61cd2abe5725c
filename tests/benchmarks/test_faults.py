"""The schedule of faults: drawn once, Poisson, and never against the last whole node."""

from __future__ import annotations

import itertools
import statistics
from collections import Counter

import pytest

from benchmarks.faults import SECONDS, SHARES, Kind, schedule

HOUR = 3600.0


def test_the_same_seed_gives_the_same_schedule() -> None:
    assert schedule(4, 80, HOUR, seed=3) == schedule(4, 80, HOUR, seed=3)
    assert schedule(4, 80, HOUR, seed=3) != schedule(4, 80, HOUR, seed=4)


def test_a_longer_schedule_begins_like_a_shorter_one() -> None:
    short = schedule(4, 80, HOUR, seed=3)
    assert schedule(4, 80, 2 * HOUR, seed=3)[: len(short)] == short


def test_without_a_rate_there_is_no_fault() -> None:
    assert schedule(4, 0, HOUR, seed=1) == ()


def test_faults_come_as_a_poisson_process_of_the_rate() -> None:
    """As many as told; pauses as exponential ones, whose mean and deviation are alike."""
    faults = schedule(64, 80, 100 * HOUR, seed=1)
    assert len(faults) == pytest.approx(8000, rel=0.04)
    times = [0.0, *(fault.at for fault in faults)]
    pauses = [after - before for before, after in itertools.pairwise(times)]
    assert statistics.mean(pauses) == pytest.approx(45.0, rel=0.04)
    assert statistics.pstdev(pauses) == pytest.approx(statistics.mean(pauses), rel=0.05)


def test_kinds_come_in_their_shares_and_last_as_told() -> None:
    faults = schedule(64, 80, 100 * HOUR, seed=1)
    counts = Counter(fault.kind for fault in faults)
    assert sum(SHARES.values()) == pytest.approx(1.0)
    for kind in Kind:
        assert counts[kind] / len(faults) == pytest.approx(SHARES[kind], abs=0.02)
    assert all(
        SECONDS[fault.kind][0] <= fault.seconds <= SECONDS[fault.kind][1] for fault in faults
    )


def test_all_nodes_are_struck_alike() -> None:
    counts = Counter(fault.node for fault in schedule(4, 80, 100 * HOUR, seed=2))
    assert sorted(counts) == [0, 1, 2, 3]
    assert max(counts.values()) < 1.1 * min(counts.values())


@pytest.mark.parametrize("nodes", [2, 3, 4])
def test_one_node_at_least_is_whole_at_any_time(nodes: int) -> None:
    faults = schedule(nodes, 2000, HOUR, seed=5)
    assert len(faults) > 50
    for fault in faults:
        broken = {one.node for one in faults if one.at <= fault.at < one.over}
        assert len(broken) < nodes


def test_a_node_that_is_broken_is_not_struck_again() -> None:
    faults = schedule(4, 2000, HOUR, seed=5)
    for number, fault in enumerate(faults):
        assert not [
            one for one in faults[:number] if one.node == fault.node and one.over > fault.at
        ]
