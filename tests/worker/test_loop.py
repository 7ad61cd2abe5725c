"""What the worker does for each command, with the true codec and a tiny model."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from demoloco.codec.chunks import from_chunks
from demoloco.codec.dct import idct
from demoloco.codec.layout import layout_from_bytes
from demoloco.codec.packet import decode
from demoloco.config import RunConfig
from demoloco.types import Round
from demoloco.worker.port import (
    Contributed,
    Correct,
    Corrected,
    Cut,
    Described,
    Died,
    Evaluated,
    Failed,
    Progress,
    Ready,
    TakeAgreed,
    Train,
    Trained,
    WriteInitial,
)
from tests.worker.desk import CONFIG, Desk, advance, read_state

State = NDArray[np.float32]


@pytest.fixture
def agreed(tmp_path: Path) -> Path:
    return tmp_path / "agreed-0"


# -- describe and begin ---------------------------------------------------------------------------
def test_a_model_is_described_by_its_float_tensors_tied_ones_once() -> None:
    described = Desk().last(Described)
    names = [tensor.name for tensor in layout_from_bytes(described.layout).tensors]
    assert names == [
        "first.weight",
        "first.bias",
        "norm.weight",
        "norm.bias",
        "norm.running_mean",
        "norm.running_var",
        "last.bias",
    ]
    assert described.unit == "vectors"
    assert described.defaults == {"inner_steps": 4}
    assert described.device == "cpu (1 thread)"


def test_the_seed_makes_the_model() -> None:
    one, same, other = Desk(), Desk(), Desk(dataclasses.replace(CONFIG, seed=1))
    assert torch.equal(one.model()["first.weight"], same.model()["first.weight"])
    assert not torch.equal(one.model()["first.weight"], other.model()["first.weight"])


def test_a_batch_that_does_not_divide_is_refused_with_what_does() -> None:
    failed = Desk(accumulate=3).last(Failed)
    assert failed.why == "a batch of 8 does not divide into 3 parts"
    assert failed.fix == "--accumulate 1, 2, 4, 8"


# -- agreed states --------------------------------------------------------------------------------
def test_taking_what_was_written_gives_the_same_model_and_owes_nothing(agreed: Path) -> None:
    desk = Desk()
    before = desk.model()
    desk.start(agreed)
    for name, tensor in desk.model().items():
        torch.testing.assert_close(tensor, before[name], atol=1e-6, rtol=1e-5)
    owed = decode(desk.body(agreed), desk.spec)
    assert np.abs(owed.value).max() < 1e-5


def test_an_agreed_state_of_another_size_is_refused(agreed: Path) -> None:
    desk = Desk()
    agreed.write_bytes(b"short")
    desk.tell(TakeAgreed(agreed=agreed, round=Round(0)))
    assert "5 bytes instead of" in desk.last(Failed).why


# -- training -------------------------------------------------------------------------------------
def test_inner_steps_are_counted_in_steps_and_samples(agreed: Path) -> None:
    desk = Desk()
    desk.start(agreed)
    desk.train(1, 5)
    trained = desk.last(Trained)
    assert (trained.round, trained.steps, trained.samples) == (1, 5, 40)
    assert 0 < trained.loss < 10
    progress = desk.last(Progress)
    assert (progress.step, progress.steps) == (5, 5)
    assert progress.samples_per_second > 0
    assert not desk.loop.training


def test_a_train_while_training_is_ignored(agreed: Path) -> None:
    desk = Desk()
    desk.start(agreed)
    desk.tell(Train(round=Round(1), steps=2), Train(round=Round(9), steps=50))
    desk.steps(2)
    assert desk.last(Trained).round == 1
    assert not desk.loop.training


def test_a_cut_tells_how_many_steps_were_made(agreed: Path) -> None:
    desk = Desk()
    desk.start(agreed)
    desk.tell(Train(round=Round(1), steps=100))
    desk.steps(3)
    desk.tell(Cut())
    assert (desk.last(Trained).steps, desk.last(Trained).samples) == (3, 24)
    assert not desk.loop.training


def test_a_cut_before_the_first_step_is_no_loss(agreed: Path) -> None:
    desk = Desk()
    desk.start(agreed)
    desk.tell(Train(round=Round(1), steps=100), Cut())
    assert desk.last(Trained).samples == 0
    assert math.isnan(desk.last(Trained).loss)


def test_a_cut_without_training_is_nothing() -> None:
    desk = Desk()
    desk.tell(Cut())
    assert isinstance(desk.events[-1], Ready)


def test_micro_batches_make_the_same_step() -> None:
    config = dataclasses.replace(CONFIG, task="tests.worker.tasks:Even")
    whole, parts = Desk(config), Desk(config, accumulate=4)
    for desk in (whole, parts):
        desk.train(1, 1)
    assert whole.last(Trained).samples == parts.last(Trained).samples == 8
    for ours, theirs in zip(whole.model().values(), parts.model().values(), strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=1e-4)


# -- rounds ---------------------------------------------------------------------------------------
def round_of(desks: list[Desk], number: int, directory: Path, steps: int = 10) -> None:
    """All train, all contribute, all take the same outer step."""
    before, after = directory / f"agreed-{number - 1}", directory / f"agreed-{number}"
    for desk in desks:
        desk.train(number, steps)
    bodies = [desk.body(before) for desk in desks]
    advance(before, after, bodies, desks[0].spec)
    for desk, body in zip(desks, bodies, strict=True):
        desk.tell(
            Correct(before=before, after=after, round=Round(number), told=(body,), evaluate=True)
        )


@pytest.mark.parametrize("method", ["decoupled", "synced"])
def test_two_workers_learn_together(tmp_path: Path, agreed: Path, method: str) -> None:
    config = dataclasses.replace(CONFIG, method=method)
    desks = [Desk(config, "a"), Desk(config, "b")]
    desks[0].start(agreed)
    desks[1].tell(TakeAgreed(agreed=agreed, round=Round(0)))
    losses = []
    for number in range(1, 9):
        round_of(desks, number, tmp_path)
        assert [desk.last(Corrected).round for desk in desks] == [number, number]
        losses.append([desk.last(Evaluated).loss for desk in desks])
    assert np.mean(losses[-1]) < 0.85 * np.mean(losses[0])
    assert abs(losses[-1][0] - losses[-1][1]) < 0.2 * losses[-1][0]
    if method == "synced":
        one, other = (desk.model()["first.weight"] for desk in desks)
        torch.testing.assert_close(one, other, atol=1e-5, rtol=1e-4)


def test_learnt_is_told_plus_owed(tmp_path: Path, agreed: Path) -> None:
    desk = Desk()
    desk.start(agreed)
    desk.train(1, 5)
    before = momentum(desk, agreed)
    body = desk.body(agreed)
    after = tmp_path / "agreed-1"
    advance(agreed, after, [body], desk.spec)
    desk.tell(Correct(before=agreed, after=after, round=Round(1), told=(body,)))
    told = np.zeros_like(read_state(agreed))
    sparse = decode(body, desk.spec)
    np.put_along_axis(told, sparse.index.astype(np.int64), sparse.value, axis=1)
    learnt = values(desk, told) + momentum(desk, after)
    np.testing.assert_allclose(learnt, before, atol=2e-6)


def test_a_node_left_out_still_owes_all(tmp_path: Path, agreed: Path) -> None:
    desk, other = Desk(node="a"), Desk(node="b")
    for each in (desk, other):
        each.start(agreed)
        each.train(1, 5)
    owed = momentum(desk, agreed)
    after = tmp_path / "agreed-1"
    advance(agreed, after, [other.body(agreed)], desk.spec)
    desk.tell(Correct(before=agreed, after=after, round=Round(1)))
    np.testing.assert_allclose(momentum(desk, after), owed, atol=2e-6)


def test_a_correction_reaches_the_model_while_it_trains(tmp_path: Path, agreed: Path) -> None:
    desk, still = Desk(), Desk()
    for each in (desk, still):
        each.start(agreed)
        each.tell(Train(round=Round(1), steps=4))
        each.steps(2)
    after = tmp_path / "agreed-1"
    shift = read_state(agreed) + np.float32(0.01)
    shift.tofile(after)
    desk.tell(Correct(before=agreed, after=after, round=Round(1)))
    assert desk.loop.training
    moved = desk.model()["last.bias"] - still.model()["last.bias"]
    assert moved.abs().max() > 0.005
    desk.steps(2)
    assert desk.last(Trained).steps == 4
    assert desk.events.index(desk.last(Corrected)) < desk.events.index(desk.last(Trained))


def test_an_untold_packet_is_owed_again(tmp_path: Path, agreed: Path) -> None:
    desk = Desk()
    desk.start(agreed)
    desk.train(1, 5)
    owed = momentum(desk, agreed)
    body = desk.body(agreed)
    after = tmp_path / "agreed-1"
    advance(agreed, after, [body], desk.spec)
    desk.tell(
        Correct(before=agreed, after=after, round=Round(1), told=(body,)),
        Correct(before=after, after=agreed, round=Round(0), untold=(body,)),
    )
    np.testing.assert_allclose(momentum(desk, agreed), owed, atol=2e-6)


def test_a_ticket_comes_back_with_its_packet(agreed: Path) -> None:
    desk = Desk()
    desk.start(agreed)
    desk.body(agreed, k=8)
    contributed = desk.last(Contributed)
    assert (contributed.ticket, contributed.k) == (1, 8)
    assert decode(contributed.body, desk.spec).k == 8


def momentum(desk: Desk, agreed: Path) -> State:
    """IDCT(A − DCT(x)), with the genesis command as the transform."""
    own = agreed.with_name("own")
    desk.tell(WriteInitial(path=own))
    return values(desk, read_state(agreed) - read_state(own))


def values(desk: Desk, coefficients: State) -> State:
    """The parameters' own values, without the padding of their chunks."""
    chunks = idct(torch.from_numpy(coefficients).view(-1, 64, 64))
    tensors = from_chunks(chunks, layout_from_bytes(desk.last(Described).layout))
    return torch.cat([tensor.flatten() for tensor in tensors.values()]).numpy()


# -- faults ---------------------------------------------------------------------------------------
def with_fault(fault: str) -> Desk:
    return Desk(dataclasses.replace(CONFIG, task_args={"fault": fault}))


def test_what_a_task_raises_is_told_with_its_place() -> None:
    desk = with_fault("loss")
    desk.train(1, 1)
    failed = desk.last(Failed)
    assert failed.why == "the task's loss raised ValueError: shapes do not fit"
    assert "correct loss" in failed.fix
    assert "tasks.py" in failed.detail
    assert not desk.loop.training


def test_batches_that_end_are_told() -> None:
    desk = with_fault("no batches")
    desk.train(1, 1)
    assert desk.last(Failed).why == "the task's batches ended"


@pytest.mark.parametrize(
    ("fault", "why", "fix"),
    [
        ("no model", "the task's model is a str", "return a torch.nn.Module"),
        ("frozen", "no parameter of the model is trained", "requires_grad"),
        ("loss of each", "the task's loss is not one number", "return the batch's mean loss"),
    ],
)
def test_what_a_task_must_return_is_said(fault: str, why: str, fix: str) -> None:
    desk = with_fault(fault)
    if fault == "loss of each":
        desk.train(1, 1)
    failed = next(event for event in desk.events if isinstance(event, Failed))
    assert why in failed.why
    assert fix in failed.fix


def test_a_mask_that_is_not_finite_is_named_before_a_run_is_founded_on_it(agreed: Path) -> None:
    desk = Desk(dataclasses.replace(CONFIG, task_args={"fault": "infinite mask"}))
    desk.tell(WriteInitial(path=agreed))
    failed = desk.last(Failed)
    assert failed.why == "mask of the model has values that are not finite"
    assert "persistent=False" in failed.fix
    assert not agreed.exists()


def test_an_evaluation_takes_no_square_root_of_less_than_nothing(agreed: Path) -> None:
    desk = Desk()
    desk.start(agreed)
    desk.loop._own.tensors["norm.running_var"][0] = -1.0
    desk.tell(Correct(before=agreed, after=agreed, round=Round(1), evaluate=True))
    assert math.isfinite(desk.last(Evaluated).loss)
    assert desk.model()["norm.running_var"][0] == pytest.approx(-1.0)  # still owed as it was


def test_after_one_bad_batch_the_model_is_finite_and_training_goes_on() -> None:
    desk = with_fault("batch 2")
    desk.train(1, 5)
    assert (desk.last(Trained).steps, desk.last(Trained).samples) == (5, 32)
    assert math.isfinite(desk.last(Trained).loss)
    assert all(tensor.isfinite().all() for tensor in desk.model().values())


@pytest.mark.parametrize("fault", ["cuda memory", "cpu memory"])
def test_out_of_memory_says_how_to_need_less(fault: str) -> None:
    desk = with_fault(fault)
    desk.train(1, 1)
    failed = desk.last(Failed)
    assert failed.why.startswith("the device is out of memory: ")
    assert "--accumulate 2" in failed.fix


def test_what_is_left_out_by_chance_differs_between_nodes() -> None:
    def drawn(node: str) -> float:
        Desk(node=node)
        return float(torch.rand(1))

    assert drawn("a") == drawn("a") != drawn("b")


def test_an_unknown_task_or_device_is_the_users_fault() -> None:
    desk = Desk(dataclasses.replace(CONFIG, task="lmm"))
    assert "did you mean 'lm'" in next(e for e in desk.events if isinstance(e, Failed)).why


def test_a_missing_state_is_this_machines_fault(tmp_path: Path) -> None:
    desk = Desk()
    desk.tell(TakeAgreed(agreed=tmp_path / "absent", round=Round(0)))
    assert "FileNotFoundError" in desk.last(Died).why


def test_a_users_own_task_in_twenty_lines_trains(agreed: Path) -> None:
    desk = Desk(RunConfig(task="tests.task.line:Line", batch_size=16, learning_rate=0.05))
    desk.start(agreed)
    desk.train(3, 150)
    assert desk.last(Trained).loss < 1.5
    state = agreed.with_name("agreed-1")
    advance(agreed, state, [], desk.spec)
    desk.tell(Correct(before=agreed, after=state, round=Round(1), evaluate=True))
    assert desk.last(Evaluated).loss < 0.5
    assert desk.last(Described).unit == "samples"


def test_a_model_that_is_given_up_takes_its_steps_with_it(agreed: Path) -> None:
    desk = Desk()
    desk.start(agreed)
    desk.tell(Train(round=Round(1), steps=9))
    desk.steps(4)
    desk.tell(TakeAgreed(agreed=agreed, round=Round(0)))
    assert not desk.loop.training
    desk.train(1, 2)
    assert desk.last(Trained).samples == desk.last(Trained).learnt == 2 * CONFIG.batch_size
