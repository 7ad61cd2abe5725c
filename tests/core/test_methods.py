"""Learnt = told + owed, whatever happens; and what is learnt arrives at the others."""

from __future__ import annotations

import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from demoloco.codec.dct import dct, idct
from demoloco.codec.packet import PacketSpec, Sparse, decode
from demoloco.config import METHOD_DEFAULTS, RunConfig
from demoloco.outer import own as parts
from demoloco.outer.method import Method
from demoloco.outer.methods import Decoupled, Diloco, Synced, method
from demoloco.outer.paper import Paper
from tests.core import twins
from tests.core.swarm_of_models import CHUNKS, Swarm, coefficients, dense, drift

METHODS = [Decoupled(), Synced(1.0), Diloco()]
LAWFUL = pytest.mark.parametrize("way", METHODS, ids=["decoupled", "synced", "diloco"])
EVERY = pytest.mark.parametrize(
    "way", [*METHODS, Paper(0.7, 0.9)], ids=["decoupled", "synced", "diloco", "paper"]
)
TOLERANCE = 2e-5  # of coefficients of order one, after some rounds in float32


def memory_of(way: Method) -> torch.Tensor | None:
    """One such as the method has after some rounds."""
    shapes = {Synced: (CHUNKS, 4096), Paper: (2, CHUNKS, 4096)}
    shape = shapes.get(type(way))
    return None if shape is None else torch.full(shape, 0.001)


def check_law(swarm: Swarm) -> None:
    for node in swarm.nodes:
        error = node.learnt - dense(node.told) - swarm.owed(node)
        assert np.abs(error).max() < TOLERANCE


def round_of(swarm: Swarm, number: int, weights: dict[int, float]) -> None:
    for place, node in enumerate(swarm.nodes):
        node.train(drift(place, number))
    swarm.contribute()
    swarm.commit(weights)


@LAWFUL
@settings(max_examples=10)
@given(data=st.data())
def test_learnt_is_told_plus_owed_whoever_is_left_out(way: Method, data: st.DataObject) -> None:
    alpha, momentum = data.draw(st.sampled_from([(0.4, 0.0), (1.0, 0.0), (0.7, 0.9)]))
    swarm = Swarm.start(way, 3, alpha=alpha, momentum=momentum)
    for number in range(data.draw(st.integers(1, 4))):
        inside = data.draw(st.sets(st.integers(0, 2), min_size=1))
        round_of(swarm, number, {place: 1 / len(inside) for place in sorted(inside)})
        check_law(swarm)


def test_the_mean_of_the_models_moves_by_training_alone_when_all_are_in() -> None:
    swarm = Swarm.start(Decoupled(), 3)
    weights = {0: 0.5, 1: 0.25, 2: 0.25}
    start = swarm.nodes[0].own.double()
    trained = torch.zeros_like(start)
    for number in range(5):
        round_of(swarm, number, weights)
        trained += sum(share * drift(place, number) for place, share in weights.items())
    mean = sum(share * swarm.nodes[place].own.double() for place, share in weights.items())
    assert float((mean - start - trained).abs().max()) < TOLERANCE


@LAWFUL
def test_a_node_that_is_left_out_tells_the_same_in_the_next_round(way: Method) -> None:
    swarm = Swarm.start(way, 2)
    for place, node in enumerate(swarm.nodes):
        node.train(drift(place, 0))
    swarm.contribute()
    left_out = swarm.nodes[1].packet
    swarm.commit({0: 1.0})
    swarm.contribute()
    again = swarm.nodes[1].packet
    assert np.array_equal(again.index, left_out.index)
    step = 0.2 * np.abs(left_out.value).mean()  # between the two smallest levels of eight bits
    assert np.allclose(again.value, left_out.value, rtol=0.05, atol=step)
    check_law(swarm)


@LAWFUL
def test_all_is_told_in_the_end(way: Method) -> None:
    """Without training, round after round takes what is owed out, down to nothing."""
    swarm = Swarm.start(way, 2, k=512)
    for place, node in enumerate(swarm.nodes):
        node.train(drift(place, 0))
    first = [np.linalg.norm(swarm.owed(node)) for node in swarm.nodes]
    for _ in range(24):
        swarm.contribute()
        swarm.commit({0: 0.5, 1: 0.5})
    last = [np.linalg.norm(swarm.owed(node)) for node in swarm.nodes]
    assert all(after < 0.01 * before for before, after in zip(first, last, strict=True))
    mean = swarm.states[0] - sum(node.learnt for node in swarm.nodes) / 2
    assert np.linalg.norm(swarm.states[-1] - mean) < 0.01 * sum(first)


@LAWFUL
def test_after_an_abandoned_fork_its_packets_are_owed_again(way: Method) -> None:
    swarm = Swarm.start(way, 2)
    round_of(swarm, 0, {0: 0.5, 1: 0.5})
    for number in (1, 2):  # alone on a fork
        round_of(swarm, number, {0: 1.0})
    node, tip = swarm.nodes[0], swarm.states[-1]
    fork = node.told[1:]
    assert len(fork) == 2
    winner = swarm.states[1] + np.float32(0.01)
    swarm.states.append(winner)
    for other, untold in zip(swarm.nodes, (fork, []), strict=True):
        swarm.move(other, tip, winner, [], untold)
    check_law(swarm)
    swarm.contribute()
    swarm.commit({0: 0.5, 1: 0.5})
    check_law(swarm)


@LAWFUL
def test_rounds_that_were_missed_move_the_model_and_change_nothing_that_is_owed(
    way: Method,
) -> None:
    swarm = Swarm.start(way, 1)
    round_of(swarm, 0, {0: 1.0})
    node, then = swarm.nodes[0], swarm.states[-1]
    before = swarm.owed(node)
    swarm.states.append(then + np.random.default_rng(0).normal(size=then.shape).astype("f4"))
    swarm.move(node, then, swarm.states[-1], [], [])
    assert np.abs(swarm.owed(node) - before).max() < TOLERANCE


@LAWFUL
def test_a_restored_node_owes_what_its_checkpoint_owed_but_for_what_was_told(way: Method) -> None:
    swarm = Swarm.start(way, 2)
    round_of(swarm, 0, {0: 0.5, 1: 0.5})
    node = swarm.nodes[0]
    saved_own, saved_memory, then = node.own.clone(), node.memory, swarm.states[-1]
    owed_then = swarm.owed(node)
    for number in (1, 2):
        round_of(swarm, number, {0: 0.5, 1: 0.5})
    told_since = node.told[1:]
    node.own, node.memory = way.restore(saved_own, then, swarm.states[-1], told_since, saved_memory)
    named = sum(dense([packet]) != 0 for packet in told_since)
    expected = np.where(named > 0, 0, owed_then)
    assert np.abs(swarm.owed(node) - expected).max() < TOLERANCE


@LAWFUL
def test_a_checkpoint_of_this_very_round_is_restored_as_it_was(way: Method) -> None:
    swarm = Swarm.start(way, 2)
    round_of(swarm, 0, {0: 0.5, 1: 0.5})
    node, state = swarm.nodes[0], swarm.states[-1]
    node.train(drift(0, 1))
    own, memory = way.restore(node.own, state, state, [], node.memory)
    assert torch.allclose(own, node.own, atol=TOLERANCE)
    assert memory is None or torch.equal(memory, node.memory)


def test_a_synced_node_restores_a_checkpoint_that_never_contributed() -> None:
    swarm = Swarm.start(Synced(0.9), 1)
    node, state = swarm.nodes[0], swarm.states[0]
    assert Synced(0.9).restore(node.own, state, state, [], None)[1] is None


def test_synced_replicas_are_the_agreed_state() -> None:
    swarm = Swarm.start(Synced(0.95), 3)
    for number in range(3):
        round_of(swarm, number, {0: 0.5, 2: 0.5})
    for node in swarm.nodes:
        assert np.abs(coefficients(node.own) - swarm.states[-1]).max() < TOLERANCE


def test_what_synced_owes_decays_by_beta() -> None:
    swarm = Swarm.start(Synced(0.5), 1)
    swarm.nodes[0].train(drift(0, 0))
    swarm.contribute()
    first = swarm.nodes[0].memory.clone()
    swarm.contribute()
    assert torch.allclose(swarm.nodes[0].memory, first / 2, atol=TOLERANCE)


# -- what is computed, and how --------------------------------------------------------------------
def test_a_packet_holds_the_largest_coefficients_of_what_is_owed() -> None:
    swarm = Swarm.start(Decoupled(), 1)
    node = swarm.nodes[0]
    node.train(drift(0, 0))
    momentum = parts.momentum(swarm.states[0], node.own).numpy()
    slow = swarm.states[0] - twins.transform(node.own.numpy()).reshape(CHUNKS, 4096)
    assert np.allclose(momentum, slow, atol=TOLERANCE)
    swarm.contribute()
    assert np.array_equal(node.packet.index, twins.largest(momentum, 64).index)


@EVERY
def test_the_same_values_in_are_the_same_bits_out_and_nothing_is_written_to(way: Method) -> None:
    def run() -> tuple[bytes, ...]:
        swarm = Swarm.start(way, 1)
        node, state = swarm.nodes[0], swarm.states[0]
        node.train(drift(0, 0))
        memory = memory_of(way)
        inputs = node.own.clone(), state.copy(), None if memory is None else memory.clone()
        made = way.contribute(node.own, state, memory, swarm.spec, swarm.k)
        packet = decode(made.body, swarm.spec)
        own, kept = way.correct(made.own, state, state + 1, [packet], [packet], made.memory)
        back, _ = way.restore(made.own, state, state + 1, [packet], made.memory)
        assert torch.equal(node.own, inputs[0])
        assert np.array_equal(state, inputs[1])
        assert memory is None or torch.equal(memory, inputs[2])
        rest = b"" if kept is None else kept.numpy().tobytes()
        return made.body, own.numpy().tobytes(), back.numpy().tobytes(), rest

    assert run() == run()


@EVERY
def test_agreed_states_are_read_from_read_only_files_without_a_warning(
    way: Method, tmp_path: Path
) -> None:
    swarm = Swarm.start(way, 1)
    swarm.states[0].tofile(tmp_path / "state")
    state = np.memmap(tmp_path / "state", np.float32, "r", shape=(CHUNKS, 4096))
    node = swarm.nodes[0]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        from_file = way.contribute(node.own + drift(0, 0), state, None, swarm.spec, swarm.k)
        own, _ = way.correct(from_file.own, state, state, [], [], from_file.memory)
    tensor = torch.from_numpy(swarm.states[0])
    from_tensor = way.contribute(node.own + drift(0, 0), tensor, None, swarm.spec, swarm.k)
    assert from_file.body == from_tensor.body
    assert torch.equal(own, from_file.own)


def test_slabs_cover_a_model_of_many() -> None:
    chunks = 300
    own = torch.randn((chunks, 64, 64), generator=torch.Generator().manual_seed(0))
    state = dct(own).view(-1, 4096).numpy()
    spec = PacketSpec((chunks,), 2, (8,))
    assert torch.allclose(parts.model_of(state, own), own, atol=TOLERANCE)
    moved = own + 0.01 * torch.randn(own.shape, generator=torch.Generator().manual_seed(1))
    packet = decode(Decoupled().contribute(moved, state, None, spec, 8).body, spec)
    zero = Sparse(packet.index, np.zeros_like(packet.value))
    whole, _ = Decoupled().correct(moved, state, state, [packet], [zero], None)
    change = torch.zeros((chunks, 4096)).scatter_(
        1, torch.from_numpy(packet.index).long(), torch.from_numpy(packet.value)
    )
    assert torch.allclose(whole, moved + idct(change.view(-1, 64, 64)), atol=TOLERANCE)


@EVERY
def test_a_model_that_is_not_finite_is_not_told(way: Method) -> None:
    swarm = Swarm.start(way, 1)
    swarm.nodes[0].own[0, 0, 0] = float("nan")
    with pytest.raises(ValueError, match="diverged"):
        swarm.contribute()


def test_methods_are_made_of_a_run() -> None:
    assert method(RunConfig()) == Decoupled()
    assert method(RunConfig(method="synced", beta=0.9)) == Synced(0.9)
    assert method(RunConfig.of(method="paper", beta=0.9)) == Paper(0.7, 0.9)
    assert isinstance(method(RunConfig.of(method="diloco")), Diloco)
    assert set(METHOD_DEFAULTS) == {"paper", "diloco"}


def test_diloco_is_what_its_paper_says_but_for_eight_bits() -> None:
    """Dense means of pseudo-gradients, torch's Nesterov, and every node on the result."""
    swarm = Swarm.start(Diloco(), 3, alpha=0.7, momentum=0.9)
    weights = torch.nn.Parameter(torch.from_numpy(swarm.states[0].copy()).double())
    optimizer = torch.optim.SGD([weights], lr=0.7, momentum=0.9, nesterov=True)
    for number in range(4):
        round_of(swarm, number, dict.fromkeys(range(3), 1 / 3))
        check_law(swarm)
        learnt = sum(coefficients(drift(place, number)) for place in range(3)) / -3
        weights.grad = torch.from_numpy(learnt).double()
        optimizer.step()
        expected = weights.detach().numpy() - swarm.states[0]
        error = swarm.states[-1] - swarm.states[0] - expected
        assert np.linalg.norm(error) < 0.02 * np.linalg.norm(expected)
        for node in swarm.nodes:
            assert np.linalg.norm(swarm.owed(node)) < 0.02 * np.linalg.norm(node.learnt)


def test_a_dense_packet_tells_the_small_coefficients_beside_a_large_one() -> None:
    swarm = Swarm.start(Diloco(), 1)
    node = swarm.nodes[0]
    node.train(torch.full((CHUNKS, 64, 64), 3.0) + drift(0, 0))
    small = node.learnt.copy()
    small[:, 0] = 0
    swarm.contribute()
    told = dense([node.packet])
    told[:, 0] = 0
    assert np.linalg.norm(told - small) < 0.15 * np.linalg.norm(small)


# -- it learns ------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("way", "rounds", "step"),
    [
        (Decoupled(), 60, {}),
        (Synced(0.95), 80, {}),
        (Diloco(), 30, {"alpha": 0.7, "momentum": 0.9}),
    ],
    ids=["decoupled", "synced", "diloco"],
)
def test_three_nodes_find_the_common_minimum_of_three_quadratics(
    way: Method, rounds: int, step: dict[str, float]
) -> None:
    """Each node knows only its own target; the agreed state arrives at the mean of all three."""
    swarm = Swarm.start(way, 3, k=512, **step)
    targets = [drift(place, 0, size=1.0) for place in range(3)]
    common = sum(targets) / 3
    start = float((swarm.nodes[0].own - common).square().mean())
    for _ in range(rounds):
        for node, target in zip(swarm.nodes, targets, strict=True):
            for _ in range(5):
                node.train(0.02 * (target - node.own))
        swarm.contribute()
        swarm.commit(dict.fromkeys(range(3), 1 / 3))
    agreed = idct(torch.from_numpy(swarm.states[-1]).view(-1, 64, 64))
    assert float((agreed - common).square().mean()) < 0.02 * start
