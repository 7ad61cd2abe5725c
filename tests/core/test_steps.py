"""The outer step with a momentum, and with the mean that the published code takes."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from demoloco.codec.packet import Sparse
from demoloco.config import RunConfig
from demoloco.outer import agreed
from demoloco.outer.agreed import advance
from demoloco.outer.steps import OuterStep
from tests.core import twins
from tests.core.test_agreed import packets_of, state_of

F = np.float32


def everything(chunks: int, seed: int) -> Sparse:
    """A packet of every coefficient."""
    return twins.largest(twins.momenta(chunks, seed), 4096)


def slow_step(
    step: OuterStep,
    before: np.ndarray,
    packets: list[Sparse],
    weights: list[float],
) -> np.ndarray:
    """One coefficient after the other, in float32 scalars."""
    chunks = len(before) // step.planes
    after = before.copy()
    for chunk, place in np.ndindex(chunks, 4096):
        total = share = F(0)
        for packet, weight in zip(packets, weights, strict=True):
            for found in np.flatnonzero(packet.index[chunk] == place):
                total = F(total + F(weight) * packet.value[chunk, found])
                share = F(share + F(weight))
        if step.mean_over == "senders" and share > 0:
            total = F(total / share)
        if step.momentum:
            factor, velocity = F(step.momentum), before[chunks + chunk, place]
            after[chunks + chunk, place] = velocity = F(F(velocity * factor) + total)
            total = F(F(velocity * factor) + total)
        after[chunk, place] = F(before[chunk, place] - F(total * F(step.alpha)))
    return after


@pytest.mark.parametrize(
    "step",
    [
        OuterStep(0.7, 0.9),
        OuterStep(1.3, 0.0, "senders"),
        OuterStep(0.7, 0.5, "senders"),
        OuterStep(0.9),
    ],
    ids=["nesterov", "senders", "both", "plain"],
)
def test_every_step_is_that_of_scalars_one_after_the_other(step: OuterStep) -> None:
    before = state_of(step.planes)
    packets = [*packets_of(1, [8, 64]), everything(1, 7)]
    out = np.empty_like(before)
    step.advance(before, packets, [0.5, 0.2, 0.3], out)
    assert out.tobytes() == slow_step(step, before, packets, [0.5, 0.2, 0.3]).tobytes()
    step.advance(before, packets, [0.5, 0.2, 0.3], before)
    assert out.tobytes() == before.tobytes()


@pytest.mark.parametrize("slab", [1, 7, 1000])
def test_the_size_of_a_slab_changes_no_bit(slab: int, monkeypatch: pytest.MonkeyPatch) -> None:
    step, before, packets = OuterStep(0.7, 0.9), state_of(40), packets_of(20, [64, 8, 32])
    reference, out = np.empty_like(before), np.empty_like(before)
    step.advance(before, packets, [0.5, 0.3, 0.2], reference)
    monkeypatch.setattr(agreed, "SLAB", slab)
    step.advance(before, packets, [0.5, 0.3, 0.2], out)
    assert out.tobytes() == reference.tobytes()


@given(st.floats(0.1, 2), st.sampled_from([0.5, 0.9, 0.99]))
def test_the_momentum_is_that_of_torch(alpha: float, momentum: float) -> None:
    step, state = OuterStep(alpha, momentum), np.concatenate([state_of(1), np.zeros((1, 4096), F)])
    weights = torch.nn.Parameter(torch.from_numpy(state[:1].copy()).double())
    optimizer = torch.optim.SGD([weights], lr=alpha, momentum=momentum, nesterov=True)
    for number in range(4):
        packet = everything(1, number)
        step.advance(state, [packet], [1.0], state)
        weights.grad = torch.from_numpy(packet.value).double()
        optimizer.step()
    assert np.allclose(state[:1], weights.detach().numpy(), atol=1e-5)


def test_without_momentum_a_state_is_advanced_as_ever() -> None:
    before, packets = state_of(2), packets_of(2, [8, 64])
    out, expected = np.empty_like(before), np.empty_like(before)
    OuterStep(0.8).advance(before, packets, [0.5, 0.5], out)
    advance(before, packets, [0.5, 0.5], 0.8, expected)
    assert out.tobytes() == expected.tobytes()


def test_who_alone_sends_a_coefficient_moves_it_whole_only_where_senders_are_counted() -> None:
    index = [np.array([[3]], np.int32), np.array([[5]], np.int32)]
    packets = [Sparse(one, np.ones((1, 1), F)) for one in index]
    zero = np.zeros((1, 4096), F)
    for over, expected in (("all", -0.5), ("senders", -1.0)):
        out = np.empty_like(zero)
        OuterStep(1.0, 0.0, over).advance(zero, packets, [0.5, 0.5], out)
        assert out[0, 3] == out[0, 5] == expected
        assert np.count_nonzero(out) == 2


def test_what_does_not_fit_is_an_error() -> None:
    step, packets = OuterStep(1.0, 0.9), packets_of(2, [8])
    with pytest.raises(ValueError, match="not of 1 chunks"):
        step.advance(state_of(2), packets, [1.0], state_of(2))
    with pytest.raises(ValueError, match="5 and 5 rows"):
        step.advance(state_of(5), packets, [1.0], state_of(5))
    with pytest.raises(ValueError, match="1 packets and 0 weights"):
        step.advance(state_of(4), packets, [], state_of(4))


def test_a_run_says_how_its_state_advances() -> None:
    assert OuterStep.of(RunConfig()) == OuterStep(1.0)
    assert OuterStep.of(RunConfig.of(method="diloco")) == OuterStep(0.7, 0.9)
    senders = RunConfig.of(method="paper", mean_over="senders")
    assert OuterStep.of(senders) == OuterStep(0.7, 0.0, "senders")
    assert [OuterStep(1.0).planes, OuterStep(1.0, 0.9).planes] == [1, 2]
