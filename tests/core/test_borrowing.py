"""A joiner that starts with a member's owed part: what it borrowed it never tells, and the law
learnt = told + owed holds for everybody."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from demoloco.outer.methods import Decoupled
from demoloco.outer.own import model_of, released
from tests.core.swarm_of_models import CHUNKS, Node, Swarm, coefficients, dense

TOLERANCE = 2e-4


def steps(seed: int, size: float = 0.1) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn((CHUNKS, 64, 64), generator=generator) * size


def trained(rounds: int, count: int = 2) -> Swarm:
    swarm = Swarm.start(Decoupled(), count)
    for number in range(rounds):
        play(swarm, number)
    return swarm


def play(swarm: Swarm, seed: int) -> None:
    """One round of all nodes; who borrowed gives back what its lender, node 0, told in it."""
    for number, node in enumerate(swarm.nodes):
        node.train(steps(1000 * seed + number))
    swarm.contribute()
    swarm.commit({number: 1 / len(swarm.nodes) for number in range(len(swarm.nodes))})
    lender = swarm.nodes[0].packet
    assert lender is not None
    for node in swarm.nodes[1:]:
        if node.memory is not None:
            node.own, node.memory = released(node.own, node.memory, [lender], 1.0)


def join(swarm: Swarm) -> Node:
    """A node that starts with all that node 0 owes."""
    agreed, donor = swarm.states[-1], swarm.nodes[0]
    borrowed = torch.from_numpy(agreed) - torch.from_numpy(coefficients(donor.own))
    joiner = Node(model_of(agreed, donor.own, borrowed), memory=borrowed)
    swarm.nodes.append(joiner)
    return joiner


def owed(swarm: Swarm, node: Node) -> NDArray[np.float64]:
    """A − DCT(x) − b."""
    borrowed = 0.0 if node.memory is None else node.memory.double().numpy()
    return swarm.states[-1].astype(np.float64) - coefficients(node.own) - borrowed


def test_a_joiner_starts_where_its_lender_is_and_owes_nothing() -> None:
    swarm = trained(3)
    joiner = join(swarm)
    torch.testing.assert_close(joiner.own, swarm.nodes[0].own, atol=TOLERANCE, rtol=0)
    assert np.abs(owed(swarm, joiner)).max() < TOLERANCE


def test_learnt_is_told_and_owed_for_borrower_and_lender() -> None:
    swarm = trained(3)
    join(swarm)
    for number in range(3, 9):
        play(swarm, number)
        for node in swarm.nodes:
            there = dense(node.told) + owed(swarm, node)
            np.testing.assert_allclose(there, node.learnt, atol=TOLERANCE)


def test_a_borrower_tells_nothing_of_what_it_borrowed() -> None:
    swarm = trained(3)
    joiner = join(swarm)
    swarm.contribute()
    assert joiner.packet is not None
    assert np.abs(joiner.packet.value).max() < TOLERANCE


def test_what_the_lender_tells_is_no_longer_borrowed_and_the_rest_is() -> None:
    swarm = trained(3)
    joiner = join(swarm)
    before = joiner.memory
    assert before is not None
    play(swarm, 3)
    packet = swarm.nodes[0].packet
    assert joiner.memory is not None
    assert packet is not None
    told = torch.zeros_like(before, dtype=torch.bool)
    told.scatter_(1, torch.from_numpy(packet.index.astype(np.int64)), True)
    assert not joiner.memory[told].any()
    torch.testing.assert_close(joiner.memory[~told], before[~told])


def test_the_mean_of_all_models_is_right_but_for_what_is_still_borrowed() -> None:
    """mean(x) = A₀ − mean of all that was learnt: the weights are equal, nothing else moves it."""
    swarm = trained(3)
    joiner = join(swarm)
    at_join = swarm.states[-1].astype(np.float64)
    owed_then = [owed(swarm, node) for node in swarm.nodes]
    learnt_then = [node.learnt.copy() for node in swarm.nodes]
    for number in range(3, 7):
        play(swarm, number)
    assert joiner.memory is not None
    mean = sum(coefficients(node.own).astype(np.float64) for node in swarm.nodes) / 3
    new = sum(n.learnt - then for n, then in zip(swarm.nodes, learnt_then, strict=True)) / 3
    expected = at_join - sum(owed_then) / 3 - new - joiner.memory.double().numpy() / 3
    np.testing.assert_allclose(mean, expected, atol=TOLERANCE)


@pytest.mark.parametrize("keep", [0.5, 0.0])
def test_what_is_let_go_of_leaves_the_model_and_changes_nothing_owed(keep: float) -> None:
    swarm = trained(3)
    joiner = join(swarm)
    joiner.train(steps(77))
    owed_then = owed(swarm, joiner)
    before = joiner.memory
    assert before is not None
    joiner.own, joiner.memory = released(joiner.own, before, [], keep)
    np.testing.assert_allclose(owed(swarm, joiner), owed_then, atol=TOLERANCE)
    if keep:
        assert joiner.memory is not None
        torch.testing.assert_close(joiner.memory, before * keep)
    else:
        assert joiner.memory is None


def test_a_borrower_that_is_restored_owes_what_it_owed() -> None:
    swarm = trained(3)
    joiner = join(swarm)
    joiner.train(steps(77))
    own, memory, owed_then = joiner.own, joiner.memory, owed(swarm, joiner)
    then = swarm.states[-1]
    swarm.contribute()
    swarm.commit({0: 0.5, 1: 0.5})
    joiner.own, joiner.memory = Decoupled().restore(own, then, swarm.states[-1], [], memory)
    np.testing.assert_allclose(owed(swarm, joiner), owed_then, atol=TOLERANCE)
