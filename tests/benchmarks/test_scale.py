"""The arithmetic of growth, and that a small swarm can be counted."""

from __future__ import annotations

import io
import math

import pytest
from rich.console import Console

from benchmarks.scale import exponent, figures, larger_half, report, table
from benchmarks.simulator import sizes
from benchmarks.simulator.census import Census, take


def census(nodes: int, sent: float, messages: float) -> Census:
    return Census(
        nodes=nodes,
        rounds=1,
        messages={"hello": messages, "packet": 10.0**6},
        sent={"hello": sent / 2, "announcement": sent / 2, "packet": 10.0**9},
        commit_seconds=math.nan,
        join_seconds=1.0,
        views_seconds=1.0,
        death_seconds=(10.0, math.inf),
        false_losses=0,
    )


@pytest.mark.parametrize("power", [0.0, 0.5, 1.0, 2.0])
def test_the_exponent_is_the_power_of_growth(power: float) -> None:
    ns = [4, 8, 16, 64]
    assert exponent(ns, [3.0 * n**power for n in ns]) == pytest.approx(power, abs=1e-12)


def test_without_two_sizes_or_with_no_cost_no_growth_is_known() -> None:
    assert math.isnan(exponent([4], [1.0]))
    assert math.isnan(exponent([4, 4], [1.0, 2.0]))
    assert math.isnan(exponent([4, 8], [0.0, 2.0]))


def test_packets_are_told_beside_the_figures() -> None:
    one = census(4, 100.0, 7.0)
    assert (one.bytes_per_node, one.messages_per_node) == (100.0, 7.0)


def test_the_larger_half_has_the_middle() -> None:
    found = [census(n, n, 1.0) for n in (4, 8, 16, 32, 64)]
    assert [one.nodes for one in larger_half(found)] == [16, 32, 64]


def test_figures_are_fitted_over_all_sizes_and_over_the_larger_half() -> None:
    flat_then_steep = [census(4, 1.0, 5.0), census(8, 1.0, 5.0), census(16, 4.0, 5.0)]
    told = figures(flat_then_steep)
    assert told["bytes_per_node_growth_exponent"] == pytest.approx(1.0)
    assert told["bytes_per_node_growth_exponent_of_larger_half"] == pytest.approx(2.0)
    assert told["messages_per_node_growth_exponent"] == pytest.approx(0.0)


def test_what_is_not_known_is_null_in_the_report_and_can_be_shown() -> None:
    found = [census(4, 10.0, 1.0)]
    told = report(found, 1.0)
    assert told["figures"]["bytes_per_node_growth_exponent"] is None
    assert told["sizes"][0]["commit_seconds"] is None
    assert told["sizes"][0]["death_seconds"] == [10.0, None]
    console = Console(width=80, record=True, file=io.StringIO())
    console.print(table(found))
    text = console.export_text()
    assert "10-inf" in text
    assert "…" not in text


def test_sizes_are_those_of_the_real_encoders() -> None:
    assert sizes.hello(2, 0) - sizes.hello(1, 0) >= len(sizes.record())
    assert sizes.announcement(0, 0) == 0
    assert sizes.announcement(2, 0) - sizes.announcement(1, 0) > 100
    assert 8 <= sizes.announcement(0, 2) - sizes.announcement(0, 1) <= 9
    assert sizes.publication(3) > len(sizes.manifest(3))


def test_a_swarm_that_is_large_enough_for_gossip_is_counted() -> None:
    found = take(10, 2)
    assert found.rounds >= 2
    assert found.false_losses == 0
    assert 0 < found.bytes_per_node < 200_000
    assert found.messages["packet"] > 5
    assert found.join_seconds < found.views_seconds + 0.2 < 10
    assert 5 < found.death_seconds[1] < 30
