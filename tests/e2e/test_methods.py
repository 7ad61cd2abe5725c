"""Two real nodes train with each of the other methods, asked for by its name alone."""

from __future__ import annotations

import pytest

from benchmarks.daemons import START_SECONDS, Daemon, World, sets, together, until

pytestmark = pytest.mark.timeout(300)

SETTINGS = sets(inner_steps=10, evaluate_every=1, batch_size=4, task__depth=1, task__width=64)
WORDS = {"synced": "synced", "paper": "paper: models drift", "diloco": "diloco"}
Pair = tuple[Daemon, Daemon]


def train_together(place: World, method: str, name: str) -> Pair:
    """Until both told something twice; they agree, and learn."""
    first, second = place.daemon(f"{name} first"), place.daemon(f"{name} second")
    first.start(*SETTINGS, *sets(method=method, threads=1))
    second.start("--peers", first.address, *sets(threads=1))
    goal = second.wait_for(lambda status: status.rounds_contributed >= 2).round + 1
    for node in (first, second):
        node.wait_for_round(goal)
        assert node.status.method == WORDS[method]
        assert bool(node.said("the members' models drift")) == (method == "paper")
    assert_equal_states(first, second)
    losses = [loss for _, loss in first.evaluations()]
    assert losses[-1] < losses[0]
    return first, second


def assert_equal_states(*nodes: Daemon) -> None:
    """Of each round that both showed."""
    one, other = ({m.round: m.fingerprint for m in node.moments()} for node in nodes)
    assert one.keys() & other.keys()
    assert all(one[number] == other[number] for number in one.keys() & other.keys())


def test_nodes_that_ask_for_diloco_agree_and_learn(place: World) -> None:
    for node in train_together(place, "diloco", "new"):
        node.kill()


@pytest.mark.slow
@pytest.mark.parametrize("method", WORDS)
def test_a_node_of_any_method_that_is_killed_comes_back(place: World, method: str) -> None:
    first, second = train_together(place, method, method)
    first.wait_for_round(first.status.round + 2)  # a checkpoint is written by then
    second.kill()
    second.start()
    until(lambda: together(first, second), START_SECONDS, "a round that both are in")
    assert second.lines("worker stands")[0]["on"].startswith("the checkpoint of round ")
    goal = max(together(first, second)) + 2
    for node in (first, second):
        node.wait_for_round(goal)
    assert_equal_states(first, second)
    for node in (first, second):
        node.kill()
