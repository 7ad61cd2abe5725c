"""Figures of courses that are made up, so that each can be told by hand."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pytest

from benchmarks import reckoning
from benchmarks.faults import DEATHS, Kind
from benchmarks.records import Course, Line, Outage, Stroke, Word

STEPS, BATCH, PACE = 10, 2, 1.0


def course(
    times: Sequence[float], nodes: int = 2, without: Sequence[tuple[int, int]] = ()
) -> Course:
    """Round n+1 was committed at times[n] by all; `without`: (round, node) whose packet is out."""
    made = Course(nodes, STEPS, BATCH, PACE, first=1, last=len(times))
    for number, at in enumerate(times, 1):
        out = {node for round_, node in without if round_ == number}
        for node in range(nodes):
            packets = nodes - len(out)
            facts = {
                "event": "round committed",
                "round": number,
                "head": f"h{number}",
                "packets": packets,
                "samples": packets * STEPS * BATCH,
                "mine": "out" if node in out else "in",
            }
            made.lines.append(Line(at + 0.1 * node, node, 1, facts))
    return made


def word(at: float, node: int, life: int = 1, step: int = 0, told: int = 0, owed: int = 0) -> Word:
    return Word(at, node, life, "training", step, 1, "h1", told, owed)


def line(at: float, node: int, event: str, **facts: object) -> Line:
    return Line(at, node, 1, {"event": event, **facts})


# -- the chain -------------------------------------------------------------------------------------
def test_a_round_is_of_the_moment_at_which_the_first_node_had_it() -> None:
    assert [one.at for one in reckoning.counted(course([0, 10, 20]))] == [0, 10, 20]


def test_a_round_that_was_undone_does_not_count() -> None:
    made = course([0, 10])
    lost = {"round": 2, "head": "lost", "packets": 1, "samples": 999, "mine": "in"}
    made.lines.insert(2, line(5, 0, "round committed", **lost))
    made.lines.insert(3, line(9, 0, "round undone", round=2, head="lost"))
    assert reckoning.winning(made)[2].head == "h2"
    assert reckoning.useful_steps(made) == 2 * STEPS


def test_where_one_node_never_said_that_it_left_a_fork_most_nodes_decide() -> None:
    made = course([0, 10], nodes=3)
    made.lines[3] = line(
        9, 0, "round committed", round=2, head="x", packets=1, samples=1, mine="in"
    )
    assert reckoning.winning(made)[2].head == "h2"


# -- useful work -----------------------------------------------------------------------------------
def test_a_run_without_faults_has_the_rate_that_it_has() -> None:
    calm = course([0, 12, 24])  # 10 steps in 12 s: 2 s of waits a round
    assert reckoning.useful_steps(calm) == 40
    assert reckoning.healthy_seconds(calm) == 48
    assert reckoning.rate(calm) == pytest.approx(10 / 12)


def test_a_packet_that_is_missing_is_lost_work() -> None:
    struck = course([0, 10, 20, 30, 40], without=[(3, 1)])
    assert reckoning.rate(struck) == pytest.approx(7 / 8)


def test_time_in_which_a_node_is_out_is_not_asked_of_it() -> None:
    struck = course([0, 10, 20, 30, 40], without=[(3, 1)])
    struck.outages.append(Outage(1, 12, 22))
    assert reckoning.rate(struck) == pytest.approx(1.0)


def test_an_outage_counts_only_within_the_counted_rounds() -> None:
    struck = course([10, 20, 30])
    struck.outages += [Outage(0, 0, 12), Outage(1, 25), Outage(0, 40, 50)]
    assert reckoning.healthy_seconds(struck) == 2 * 20 - 2 - 5


# -- rounds lost -----------------------------------------------------------------------------------
def test_a_death_that_holds_up_a_round_is_a_stall_of_its_length() -> None:
    struck = course([0, 10, 20, 35, 45, 55])
    struck.strokes.append(Stroke(22, Kind.KILL_NODE, 1, 1))
    assert reckoning.stalls(struck, 10.0, DEATHS) == [pytest.approx(0.5)]
    assert reckoning.lost_per_death(struck, 10.0) == pytest.approx(0.5)


def test_a_stall_that_the_next_round_makes_up_for_is_none() -> None:
    struck = course([0, 10, 20, 33, 40, 50])
    struck.strokes.append(Stroke(22, Kind.LEAVE, 1, 1))
    assert reckoning.lost_per_death(struck, 10.0) == pytest.approx(0.0)


def test_stalls_are_told_by_kind_and_only_deaths_are_deaths() -> None:
    struck = course([0, 10, 20, 35, 45, 55])
    struck.strokes.append(Stroke(22, Kind.STOP, 1, 1))
    assert reckoning.stalls(struck, 10.0, [Kind.STOP]) == [pytest.approx(0.5)]
    assert math.isnan(reckoning.lost_per_death(struck, 10.0))


def test_what_was_learnt_and_is_neither_told_nor_owed_is_lost() -> None:
    struck = course([0, 10, 20, 30, 40])
    struck.strokes.append(Stroke(12, Kind.KILL_NODE, 1, 1))
    struck.words += [word(at, 0, told=20, owed=20 if at < 15 else 0) for at in range(40)]
    assert reckoning.forgotten_samples(struck) == 20
    assert reckoning.lost_per_death(struck, 10.0) == pytest.approx(1.0)


def test_what_is_owed_again_or_told_is_not_lost() -> None:
    struck = course([0, 10])
    struck.words += [word(0, 0, told=0, owed=20), word(5, 0, told=20, owed=0)]
    struck.words += [word(6, 0, told=0, owed=0), word(7, 0, told=0, owed=20)]  # seen in between
    struck.words += [word(20, 0, told=20, owed=10)]
    assert reckoning.forgotten_samples(struck) == 0


def test_what_a_fallen_worker_or_a_dead_node_takes_along_is_no_survivors_loss() -> None:
    struck = course([0, 10])
    struck.words += [word(0, 0, owed=20), word(10, 0, owed=5), word(10, 1, owed=20)]
    struck.words += [word(20, 1, life=2, owed=0)]
    struck.lines.append(line(5, 0, "worker lost", why="killed"))
    assert reckoning.forgotten_samples(struck) == 0


# -- coming back -----------------------------------------------------------------------------------
def test_a_return_is_told_in_seconds_and_in_rounds_without_the_node() -> None:
    struck = course([0, 10, 20, 30, 40], without=[(2, 1), (3, 1)])
    struck.strokes.append(Stroke(5, Kind.KILL_NODE, 1, 1, mended=8))
    struck.words += [word(4, 1, step=3), word(12, 1, life=2), word(13, 1, life=2, step=1)]
    (back,) = reckoning.returns(struck)
    assert (back.seconds, back.rounds) == (5, 1)  # round 3 closed without it


def test_who_is_in_the_first_round_that_closes_missed_none() -> None:
    struck = course([0, 10, 20], without=[(2, 1)])
    struck.strokes.append(Stroke(5, Kind.KILL_NODE, 1, 1, mended=8))
    struck.words.append(word(12, 1, life=2, step=1))
    assert reckoning.returns(struck)[0].rounds == 0


def test_who_is_never_seen_again_did_not_return() -> None:
    struck = course([0, 10, 20], without=[(2, 1), (3, 1)])
    struck.strokes.append(Stroke(5, Kind.KILL_NODE, 1, 1, mended=8))
    assert reckoning.returns(struck)[0].seconds is None
    struck.words.append(word(9, 1, life=2, step=1))
    assert reckoning.returns(struck)[0].rounds is None


def test_a_worker_is_back_when_the_next_one_stands() -> None:
    struck = course([0, 10])
    struck.strokes.append(Stroke(5, Kind.KILL_WORKER, 1, 1))
    struck.lines += [line(6, 0, "worker stands"), line(9, 1, "worker stands")]
    assert reckoning.worker_returns(struck) == [4]


# -- loss ------------------------------------------------------------------------------------------
def test_the_loss_is_the_mean_of_each_nodes_newest_evaluations() -> None:
    made = course([0, 10])
    for at in range(10):
        made.lines += [line(at, 0, "evaluated", eval_loss=10.0 - at)]
        made.lines += [line(at, 1, "evaluated", eval_loss=20.0 - at)]
    values = reckoning.losses(made, until=8.0)
    assert values[0] == [6.0, 5.0, 4.0, 3.0, 2.0]
    assert reckoning.mean_loss(values) == pytest.approx((4.0 + 14.0) / 2)
    assert reckoning.loss_noise(values) == pytest.approx(math.sqrt(2.0 / 10))
