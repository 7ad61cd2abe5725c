"""Method paper against its published equations, in float64 and one matrix a node; and its drift."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from demoloco.outer.paper import Paper
from tests.core.swarm_of_models import Swarm, coefficients, dense, drift

ALPHA, BETA = 0.7, 0.9
TOLERANCE = 5e-5


def swarm_of(count: int, over: str = "all") -> Swarm:
    return Swarm.start(Paper(ALPHA, BETA), count, alpha=ALPHA, mean_over=over, k=64, bits=8)


def mean_of(packets: list[np.ndarray], over: str) -> np.ndarray:
    """U, of equal weights."""
    total = sum(packets)
    if over == "all":
        return total / len(packets)
    return total / np.maximum(sum((packet != 0).astype(int) for packet in packets), 1)


class Replica:
    """The published step: momentum δ and parameters θ of one worker, in coefficients."""

    def __init__(self, theta: np.ndarray) -> None:
        self.theta = theta.astype(np.float64)
        self.delta = np.zeros_like(self.theta)

    def collect(self, learnt: np.ndarray) -> None:
        self.learnt = learnt
        self.delta = BETA * self.delta + learnt

    def step(self, sent: np.ndarray, mean: np.ndarray) -> None:
        self.delta = self.delta - sent + mean
        self.theta = self.theta - ALPHA * (self.learnt + BETA * self.delta)


@pytest.mark.parametrize("over", ["all", "senders"])
def test_every_replica_moves_as_the_published_equations_say(over: str) -> None:
    swarm = swarm_of(3, over)
    replicas = [Replica(swarm.states[0]) for _ in swarm.nodes]
    for number in range(6):
        for place, (node, replica) in enumerate(zip(swarm.nodes, replicas, strict=True)):
            step = drift(place, number)
            node.train(step)
            replica.collect(-coefficients(step).astype(np.float64))
        swarm.contribute()
        sent = [dense([node.packet]) for node in swarm.nodes]
        for node, replica in zip(swarm.nodes, replicas, strict=True):
            assert np.abs(node.memory[0].numpy() - replica.delta).max() < TOLERANCE
        swarm.commit(dict.fromkeys(range(3), 1 / 3))
        mean = mean_of(sent, over)
        for node, replica, packet in zip(swarm.nodes, replicas, sent, strict=True):
            replica.step(packet, mean)
            assert np.abs(coefficients(node.own) - replica.theta).max() < TOLERANCE
            assert np.abs(node.memory[0].numpy() - replica.delta).max() < TOLERANCE


def test_it_takes_no_part_of_the_step_away_that_training_goes_on_under() -> None:
    """With overlap the next inner steps lie between telling and the correction."""
    calm, busy = swarm_of(1), swarm_of(1)
    for swarm, late in ((calm, False), (busy, True)):
        node = swarm.nodes[0]
        node.train(drift(0, 0))
        swarm.contribute()
        if late:
            node.train(drift(0, 1))
        swarm.commit({0: 1.0})
        if not late:
            node.train(drift(0, 1))
        swarm.contribute()
    assert np.abs(coefficients(calm.nodes[0].own - busy.nodes[0].own)).max() < TOLERANCE
    assert np.array_equal(calm.nodes[0].packet.index, busy.nodes[0].packet.index)


@settings(max_examples=6)
@given(
    st.floats(0.2, 1.0), st.floats(0.0, 0.95), st.lists(st.integers(1, 9), min_size=3, max_size=3)
)
def test_the_mean_of_the_models_is_that_of_dense_nesterov_where_all_contributors_count(
    alpha: float, beta: float, samples: list[int]
) -> None:
    """The law of this method: what each adds for itself alone adds up to no more than the mean."""
    swarm = Swarm.start(Paper(alpha, beta), 3, alpha=alpha, k=64, bits=8)
    shares = [count / sum(samples) for count in samples]
    weights = torch.nn.Parameter(torch.from_numpy(swarm.states[0].copy()).double())
    optimizer = torch.optim.SGD([weights], lr=alpha, momentum=beta, nesterov=beta > 0)
    for number in range(5):
        for place, node in enumerate(swarm.nodes):
            node.train(drift(place, number))
        swarm.contribute()
        swarm.commit(dict(enumerate(shares)))
        learnt = sum(w * -coefficients(drift(place, number)) for place, w in enumerate(shares))
        weights.grad = torch.from_numpy(np.asarray(learnt)).double()
        optimizer.step()
        models = zip(shares, swarm.nodes, strict=True)
        mean = sum(w * coefficients(node.own).astype(np.float64) for w, node in models)
        assert np.abs(mean - weights.detach().numpy()).max() < TOLERANCE


def spread(swarm: Swarm) -> float:
    models = [coefficients(node.own) for node in swarm.nodes]
    return float(np.mean([np.linalg.norm(model - sum(models) / len(models)) for model in models]))


def test_the_replicas_drift_apart_without_bound() -> None:
    swarm, apart = swarm_of(2), []
    for number in range(60):
        for place, node in enumerate(swarm.nodes):
            node.train(drift(place, number))
        swarm.contribute()
        swarm.commit({0: 0.5, 1: 0.5})
        apart.append(spread(swarm))
    assert apart[59] > 1.3 * apart[29] > 1.3 * 1.3 * apart[9]


def test_the_mean_over_senders_adds_more_than_the_nodes_have_learnt() -> None:
    """Why it diverges: a coefficient that one of four sends comes back to all four whole."""
    moved = {}
    for over in ("all", "senders"):
        swarm = swarm_of(4, over)
        for number in range(20):
            for place, node in enumerate(swarm.nodes):
                node.train(drift(place, number))
            swarm.contribute()
            swarm.commit(dict.fromkeys(range(4), 0.25))
        momenta = [node.memory[0].numpy() for node in swarm.nodes]
        moved[over] = np.linalg.norm(sum(momenta) / 4)
    assert moved["senders"] > 2 * moved["all"]


def test_who_is_left_out_keeps_its_momentum_and_moves_with_the_agreed_state() -> None:
    swarm = swarm_of(2)
    for place, node in enumerate(swarm.nodes):
        node.train(drift(place, 0))
    swarm.contribute()
    out = swarm.nodes[1]
    momentum, own = out.memory[0].clone(), coefficients(out.own)
    swarm.commit({0: 1.0})
    assert torch.equal(out.memory[0], momentum)
    change = swarm.states[1] - swarm.states[0]
    assert np.abs(coefficients(out.own) - own - change).max() < TOLERANCE


def test_an_abandoned_fork_gives_its_packets_back_to_the_momentum() -> None:
    swarm = swarm_of(1)
    node = swarm.nodes[0]
    node.train(drift(0, 0))
    swarm.contribute()
    swarm.commit({0: 1.0})
    momentum, own = node.memory[0].clone(), coefficients(node.own)
    told = dense([node.packet])
    swarm.move(node, swarm.states[1], swarm.states[0], [], [node.packet])
    assert np.abs(node.memory[0].numpy() - momentum.numpy() - told).max() < TOLERANCE
    back = swarm.states[0] - swarm.states[1] - ALPHA * BETA * told
    assert np.abs(coefficients(node.own) - own - back).max() < TOLERANCE


def test_a_restored_replica_goes_on_with_its_momentum_but_for_what_was_told_since() -> None:
    swarm = swarm_of(2)
    for number in range(3):
        for place, node in enumerate(swarm.nodes):
            node.train(drift(place, number))
        swarm.contribute()
        swarm.commit({0: 0.5, 1: 0.5})
        if number == 0:
            own, memory, then = (
                swarm.nodes[0].own.clone(),
                swarm.nodes[0].memory.clone(),
                swarm.states[-1],
            )
    since, now = swarm.nodes[0].told[1:], swarm.states[-1]
    back, kept = Paper(ALPHA, BETA).restore(own, then, now, since, memory)
    assert kept is not None
    gone = np.where(dense(since) != 0, memory[0].numpy(), 0)
    assert np.abs(kept[0].numpy() - memory[0].numpy() + gone).max() < TOLERANCE
    moved = coefficients(back) - coefficients(own)
    assert np.abs(moved - (now - then) - ALPHA * BETA * gone).max() < TOLERANCE
    assert (
        np.abs(coefficients(back) - kept[1].numpy() - coefficients(own) + memory[1].numpy()).max()
        < TOLERANCE
    )


def test_a_replica_that_told_nothing_yet_is_restored_as_it_is() -> None:
    swarm = swarm_of(1)
    node, state = swarm.nodes[0], swarm.states[0]
    node.train(drift(0, 0))
    own, memory = Paper(ALPHA, BETA).restore(node.own, state, state + 1, [], None)
    assert memory is None
    assert np.abs(coefficients(own) - coefficients(node.own) - 1).max() < TOLERANCE
