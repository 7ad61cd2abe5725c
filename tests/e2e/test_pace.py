"""Real nodes in a run that counts time instead of steps, and in one that rests while packets are
out."""

from __future__ import annotations

import pytest

from benchmarks.daemons import Daemon, World, sets, together

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

SETTINGS = sets(evaluate_every=1, batch_size=8, task__depth=1, task__width=64)
ROUND_SECONDS = 2.0
ROUNDS = 3


def _train(place: World, name: str, *settings: str) -> tuple[Daemon, Daemon]:
    """Two nodes that made some rounds together."""
    first, second = place.daemon(f"{name} first"), place.daemon(f"{name} second")
    first.start(*SETTINGS, *sets(threads=1), *settings)
    second.start("--peers", first.address, *sets(threads=1))
    goal = second.wait_for(lambda status: status.rounds_contributed >= 1).round + ROUNDS
    for node in (first, second):
        node.wait_for_round(goal)
    assert together(first, second)
    return first, second


def test_where_time_counts_rounds_take_about_as_long_and_no_number_of_steps_is_told(
    place: World,
) -> None:
    nodes = _train(place, "timed", *sets(round_seconds=ROUND_SECONDS, inner_steps=100_000))
    for node in nodes:
        assert 0.8 * ROUND_SECONDS < node.status.round_seconds < 10 * ROUND_SECONDS
        assert node.status.inner_steps == 0
        shown = place.run("demoloco", "status", "--home", str(node.home)).stdout
        assert ", inner step " in shown
        assert " of 0 " not in shown
        node.kill()


def test_with_overlap_0_nothing_is_learnt_while_a_packet_is_out(place: World) -> None:
    nodes = _train(place, "resting", *sets(overlap=0, inner_steps=10))
    for node in nodes:
        learnt: dict[int, set[int]] = {}
        for status in node.statuses:
            if status.phase == "exchanging":
                learnt.setdefault(status.round, set()).add(status.samples_learnt)
        assert learnt
        assert all(len(seen) == 1 for seen in learnt.values())
        node.kill()
