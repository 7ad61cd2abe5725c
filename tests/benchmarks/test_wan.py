"""What the benchmark of thin links reckons: rounds from log lines, the limit, the figures."""

from __future__ import annotations

from math import isnan
from typing import Any

import pytest

from benchmarks.wan.cases import HOSTS, SETTINGS
from benchmarks.wan.course import Round, read, training_share
from benchmarks.wan.figures import complaints, figures
from benchmarks.wan.limit import WIRE_SHARE, drained, exchange_limit
from benchmarks.wan.measure import Choice, measure, nothing

LINKS = {node: {"up": 8e6, "down": 8e6} for node in ("a", "b", "c")}  # a megabyte a second


def line(event: str, second: float, **facts: Any) -> dict[str, Any]:
    return {"event": event, "time": f"2026-01-01T00:00:{second:09.6f}Z", **facts}


def a_round(made: dict[str, float], size: float = 1e6 / WIRE_SHARE) -> Round:
    return Round(1, made=made, sizes=dict.fromkeys(made, round(size)))


# -- rounds ----------------------------------------------------------------------------------------
def test_a_round_is_read_from_the_lines_of_all_nodes() -> None:
    logs = {
        "a": [
            line("packet made", 1.0, round=5, k=64, bytes=100),
            line("manifest kept", 3.5, round=5),
            line("round committed", 4.0, round=5, packets=2, own_samples=80),
        ],
        "b": [
            line("packet made", 2.0, round=5, k=32, bytes=60),
            line("manifest kept", 3.0, round=5),
            line("round committed", 3.25, round=5, packets=2, own_samples=40),
        ],
    }
    (one,) = read(logs)
    assert one.whole(["a", "b"])
    assert one.exchange_seconds() == pytest.approx([1.5, 1.0])
    assert one.apply_seconds() == pytest.approx([0.5, 0.25])
    assert (one.k, one.samples) == ({"a": 64, "b": 32}, {"a": 80, "b": 40})


def test_a_round_without_some_node_is_not_whole() -> None:
    (one,) = read({"a": [line("manifest kept", 1.0, round=5)], "b": []})
    assert not one.whole(["a", "b"])


def test_the_time_between_packets_is_training_as_far_as_steps_fill_it() -> None:
    rounds = [Round(n, made={"a": 10.0 * n}, samples={"a": 64}) for n in range(4)]
    assert training_share(rounds, "a", step_seconds=1.0, batch=8) == pytest.approx(0.8)


# -- the limit -------------------------------------------------------------------------------------
def test_packets_made_at_once_take_their_bytes_and_two_round_trips() -> None:
    one = a_round({"a": 5.0, "b": 5.0, "c": 5.0})
    assert exchange_limit(one, LINKS, 0.1) == pytest.approx(2.0 + 0.2, rel=1e-4)


def test_what_could_travel_before_the_last_packet_is_no_part_of_the_limit() -> None:
    one = a_round({"a": 5.0, "b": 5.0, "c": 9.0})
    assert exchange_limit(one, LINKS, 0.1) == pytest.approx(1.0 + 0.2, rel=1e-4)


def test_a_thin_uplink_carries_its_packet_once() -> None:
    links = LINKS | {"a": {"up": 0.8e6, "down": 8e6}}
    one = a_round({"a": 5.0, "b": 5.0, "c": 5.0})
    assert exchange_limit(one, links, 0.0) == pytest.approx(10.0, rel=1e-4)


def test_a_link_carries_one_job_after_the_other_and_waits_for_late_ones() -> None:
    assert drained([(0.0, 2.0), (1.0, 2.0)], rate=1.0) == 4.0
    assert drained([(10.0, 2.0), (0.0, 2.0)], rate=1.0) == 12.0


@pytest.mark.parametrize("name", SETTINGS)
def test_a_setting_is_what_its_name_says(name: str) -> None:
    setting = SETTINGS[name]
    links = setting.links
    assert tuple(links) == HOSTS
    a, b = links["node1"], links["node2"]
    assert 2 * (a["delay"] + b["delay"]) == pytest.approx(setting.trip_seconds)
    assert 1 - (1 - a["loss"]) * (1 - b["loss"]) == pytest.approx(setting.loss)


# -- figures ---------------------------------------------------------------------------------------
def a_row(**facts: Any) -> dict[str, Any]:
    usual = {"link": "x", "mbit": 20, "millions": 25.0, "exchange_seconds": 1.0, "overrun": 0}
    shares = {"ratio_to_limit": 1.1, "training_share": 0.99, "rounds": 5, "whole_rounds": 5}
    return usual | shares | facts


def found(**facts: Any) -> dict[str, Any]:
    usual: dict[str, Any] = {"ours": [], "pinned": [], "hivemind": []}
    return usual | {"slowdown": None, "join": None} | facts


def test_figures_are_the_worst_of_all_rows() -> None:
    rows = [a_row(), a_row(mbit=10, ratio_to_limit=1.4, training_share=0.95)]
    reckoned = figures(found(ours=rows))
    assert reckoned["worst_ratio_to_limit"] == 1.4
    assert reckoned["training_share_min"] == reckoned["training_share_10mbit"] == 0.95


def test_a_speedup_compares_one_link_and_one_size() -> None:
    theirs = [
        {"link": "x", "millions": 25.0, "compression": "float16", "seconds": 50.0},
        {"link": "x", "millions": 10.0, "compression": "float16", "seconds": 20.0},
        {"link": "y", "millions": 25.0, "compression": "float16", "seconds": 30.0},
    ]
    reckoned = figures(found(pinned=[a_row()], hivemind=theirs))
    assert reckoned["speedup_over_hivemind_fp16_min"] == 50.0
    assert isnan(reckoned["speedup_over_hivemind_8bit_min"])


def test_a_slower_fast_node_and_a_slow_join_are_seen() -> None:
    slowdown = {"fast_round_seconds": 5.0, "thin_round_seconds": 5.1}
    join = {"seconds": 12.0, "limit_seconds": 10.0, "rounds_lost": 0}
    reckoned = figures(found(slowdown=slowdown, join=join))
    assert reckoned["fast_node_slowdown"] == pytest.approx(0.02)
    assert reckoned["join_ratio_to_limit"] == pytest.approx(1.2)


def test_a_run_that_the_machine_was_too_slow_for_says_so() -> None:
    told = complaints(found(ours=[a_row(overrun=3), a_row(whole_rounds=4)]))
    assert [one.split(": ")[1] for one in told] == [
        "the router was too slow for 3 packets",
        "1 of 5 rounds closed without some member",
    ]


# -- a run that goes on ----------------------------------------------------------------------------
def test_what_is_recorded_is_not_measured_again() -> None:
    link, kept, said = SETTINGS["20mbit-100ms"], [], []
    choice = Choice([link], [10.0], quick=False, tcp="cubic")
    baselines = [
        {"link": link.name, "millions": 25.0, "compression": one} for one in ("float16", "uniform8")
    ]
    found = nothing() | {
        "ours": [{"link": link.name, "millions": 10.0}],
        "pinned": [{"link": link.name, "millions": 25.0}],
        "hivemind": baselines,
        "slowdown": {"thin_round_seconds": 8.0},
        "join": {"seconds": 1.0},
    }
    before = {name: list(rows) for name, rows in found.items() if isinstance(rows, list)}
    after = measure(choice, said.append, found, kept.append)
    assert {name: after[name] for name in before} == before
    assert not said
    assert not kept
