"""A real node that joins late starts where the swarm is, and the swarm's loss does not jump."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise

import pytest

from benchmarks.daemons import World, sets

pytestmark = pytest.mark.timeout(300)

JOIN_AFTER = 6
ROUNDS_AFTER = 3
NOISE = 0.02  # of a held-out loss from one round to the next
# Small packets: much of what is learnt is not told yet, so the agreed state lags behind.
SETTINGS = sets(inner_steps=20, evaluate_every=1, threads=1, k=8, task__depth=1, task__width=64)


@dataclass
class Story:
    """What was seen."""

    joined_at: int = 0
    agreed_loss: float = 0.0  # of a model that would start from the agreed state
    gift_loss: float = 0.0  # of the one that started with the gift
    gift_bytes: int = 0
    snapshot_bytes: int = 0
    members: list[list[tuple[int, float]]] = field(default_factory=list)
    late: list[tuple[int, float]] = field(default_factory=list)


@pytest.fixture(scope="module")
def story(place: World) -> Story:
    told = Story()
    first, second, late = (place.daemon(name) for name in ("first", "second", "late"))
    first.start(*SETTINGS)
    second.start("--peers", first.address, *sets(threads=1))
    first.wait_for_round(JOIN_AFTER)
    second.wait_for(lambda status: status.rounds_contributed >= JOIN_AFTER - 2)
    late.start("--peers", second.address, *sets(threads=1))
    late.wait_for(lambda status: status.rounds_contributed >= ROUNDS_AFTER)
    (started,) = late.lines("started with a gift")
    (fetched,) = late.lines("fetched a gift")
    (snapshot,) = late.lines("fetching the agreed state")
    told.agreed_loss, told.gift_loss = started["agreed_loss"], started["gift_loss"]
    told.gift_bytes, told.snapshot_bytes = fetched["bytes"], snapshot["bytes"]
    (stands,) = late.lines("worker stands")
    told.joined_at = stands["round"]
    told.members = [first.evaluations(), second.evaluations()]
    told.late = late.evaluations()
    return told


def loss_at(evaluations: list[tuple[int, float]], round: int) -> float:
    return min(evaluations, key=lambda one: abs(one[0] - round))[1]


def test_a_joiner_starts_with_the_loss_of_a_member(story: Story) -> None:
    there = max(loss_at(member, story.joined_at) for member in story.members)
    assert story.agreed_loss > there
    assert story.gift_loss - there < 0.25 * (story.agreed_loss - there) + 0.02


def test_a_joiner_goes_on_where_it_started(story: Story) -> None:
    assert all(loss < story.agreed_loss for _, loss in story.late)
    assert story.late[-1][1] < story.gift_loss + 0.02


def test_the_members_loss_shows_no_step_where_a_node_joins(story: Story) -> None:
    for member in story.members:
        before = [loss for round, loss in member if round <= story.joined_at]
        after = [loss for round, loss in member if round > story.joined_at]
        assert len(after) >= 2
        assert after[-1] < before[-1]
        assert max(rises([before[-1], *after])) <= max(*rises(before), NOISE)


def rises(losses: list[float]) -> list[float]:
    """From each round to the next; below nothing where it fell."""
    return [after - before for before, after in pairwise(losses)]


def test_a_gift_is_smaller_than_the_agreed_state(story: Story) -> None:
    assert 0 < story.gift_bytes < 0.8 * story.snapshot_bytes
