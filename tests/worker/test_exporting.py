"""Models leave a worker as files, and its training never knows of it."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest
import torch

from demoloco.codec import gift
from demoloco.codec.chunks import from_chunks
from demoloco.codec.dct import idct
from demoloco.types import Round
from demoloco.worker.exports import Export, Exported, NotExported, Share, Which
from demoloco.worker.port import Correct, SaveCheckpoint, Saved, TakeAgreed
from tests.worker.desk import CONFIG, Desk, advance, read_state
from tests.worker.tasks import Tiny

HEAD = bytes(range(32))
State = dict[str, torch.Tensor]


@pytest.fixture
def agreed(tmp_path: Path) -> Path:
    return tmp_path / "agreed"


@pytest.fixture
def desk(agreed: Path) -> Desk:
    """Has trained for a while."""
    made = Desk()
    made.start(agreed)
    made.train(1, 20)
    return made


def other(agreed: Path) -> Desk:
    """Another member, on the same agreed state."""
    made = Desk(node="b")
    made.tell(TakeAgreed(agreed=agreed, round=Round(0)))
    made.train(1, 15)
    return made


def owed_file(desk: Desk, agreed: Path, folder: Path) -> Path:
    """The beginning of its gift, as it is fetched."""
    desk.tell(SaveCheckpoint(directory=folder / "b", agreed=agreed, head=HEAD))
    whole = desk.last(Saved).gift
    assert whole is not None
    path = folder / "owed"
    path.write_bytes(whole.read_bytes()[: gift.owed_bytes(len(read_state(agreed)))])
    return path


def export(desk: Desk, which: Which, agreed: Path, *shares: Share, path: Path) -> State:
    """The file, as a user reads it."""
    order = Export(ticket=3, which=which, agreed=agreed, shares=shares, path=path, evaluate=True)
    desk.tell(order)
    said = desk.events[-1]
    assert isinstance(said, Exported), said
    assert (said.ticket, said.why, said.size) == (3, "", path.stat().st_size)
    assert said.loss is not None
    state: State = torch.load(path, weights_only=True)
    with torch.random.fork_rng():
        Tiny().model().load_state_dict(state, strict=True)
    return state


def values_of(state: State) -> torch.Tensor:
    """All that is averaged, in one row."""
    return torch.cat([one.flatten() for one in state.values() if one.is_floating_point()])


# -- the files -------------------------------------------------------------------------------------
def test_the_own_model_is_written_with_all_its_entries(
    desk: Desk, agreed: Path, tmp_path: Path
) -> None:
    found = export(desk, Which.OWN, agreed, path=tmp_path / "own.pt")
    mine = desk.model()
    assert found.keys() == mine.keys()
    assert all(torch.equal(found[name], mine[name]) for name in mine)
    assert int(found["norm.num_batches_tracked"]) == 20


def test_tied_entries_stay_tied_in_the_file(desk: Desk, agreed: Path, tmp_path: Path) -> None:
    found = export(desk, Which.OWN, agreed, path=tmp_path / "own.pt")
    assert found["first.weight"].data_ptr() == found["last.weight"].data_ptr()


def test_the_agreed_model_is_that_of_the_agreed_state(
    desk: Desk, agreed: Path, tmp_path: Path
) -> None:
    found = export(desk, Which.AGREED, agreed, path=tmp_path / "agreed.pt")
    stack = idct(torch.from_numpy(read_state(agreed)).view(-1, 64, 64))
    expected = from_chunks(stack, desk.loop._own.layout)
    for name, values in expected.items():
        torch.testing.assert_close(found[name], values)
    assert not torch.equal(found["first.weight"], desk.model()["first.weight"])
    assert int(found["norm.num_batches_tracked"]) == 20


@pytest.mark.parametrize("weight", [0.5, 0.2])
def test_a_merged_model_is_the_weighted_mean_of_its_members(
    desk: Desk, agreed: Path, tmp_path: Path, weight: float
) -> None:
    member = other(agreed)
    share = Share(owed_file(member, agreed, tmp_path), (), weight)
    found = export(desk, Which.MERGED, agreed, share, path=tmp_path / "merged.pt")
    mine, theirs = values_of(desk.model()), values_of(member.model())
    mean = (1 - weight) * mine + weight * theirs
    off = (values_of(found) - mean).norm()
    assert off < 0.02 * weight * (mine - theirs).norm()
    assert int(found["norm.num_batches_tracked"]) == 20


def test_a_mean_of_one_is_the_own_model(desk: Desk, agreed: Path, tmp_path: Path) -> None:
    found = export(desk, Which.MERGED, agreed, path=tmp_path / "merged.pt")
    torch.testing.assert_close(values_of(found), values_of(desk.model()), rtol=0, atol=1e-5)


def test_what_a_member_told_since_is_in_the_mean_once(
    desk: Desk, agreed: Path, tmp_path: Path
) -> None:
    """Its gift is of the round before; the agreed state has by now what it told."""
    member, after = other(agreed), tmp_path / "after"
    owed = owed_file(member, agreed, tmp_path)
    mine, theirs = desk.body(agreed, 512), member.body(agreed, 512)
    advance(agreed, after, [mine, theirs], desk.spec)
    for one, told in ((desk, mine), (member, theirs)):
        one.tell(Correct(before=agreed, after=after, round=Round(1), told=(told,)))
    path = tmp_path / "merged.pt"
    found = export(desk, Which.MERGED, after, Share(owed, (theirs,), 0.5), path=path)
    twice = export(desk, Which.MERGED, after, Share(owed, (), 0.5), path=path)
    mean = (values_of(desk.model()) + values_of(member.model())) / 2
    off = (values_of(found) - mean).norm()
    assert off < 0.5 * (values_of(twice) - mean).norm()


def test_a_running_variance_that_fell_below_zero_is_zero_in_the_file(
    desk: Desk, agreed: Path, tmp_path: Path
) -> None:
    variance = desk.loop._own.tensors["norm.running_var"]
    variance[0] = -0.25
    found = export(desk, Which.OWN, agreed, path=tmp_path / "own.pt")
    assert float(found["norm.running_var"][0]) == 0.0
    assert float(variance[0]) == -0.25


# -- nothing of it stays ---------------------------------------------------------------------------
class Restless(Tiny):
    """An evaluation that draws from every generator that a program has."""

    def evaluate(self, model: torch.nn.Module, device: torch.device) -> float:
        import random

        random.random(), np.random.random(), torch.rand(1)
        return super().evaluate(model, device)


def test_training_goes_on_as_if_nothing_had_been_exported(agreed: Path, tmp_path: Path) -> None:
    config = dataclasses.replace(CONFIG, task=f"{__name__}:Restless")
    with_exports, without = Desk(config), Desk(config)
    numbers = np.random.get_state()[1].copy()  # type: ignore[union-attr, call-overload]
    for desk in (without, with_exports):
        desk.start(agreed)
        torch.manual_seed(7)  # both draw from one process's generator
        desk.train(1, 5)
        random_numbers = torch.get_rng_state()
        if desk is with_exports:
            for which in Which:
                export(desk, which, agreed, path=tmp_path / f"{which}.pt")
        assert torch.equal(torch.get_rng_state(), random_numbers)
        desk.train(2, 5)
    for name, tensor in with_exports.model().items():
        assert torch.equal(tensor, without.model()[name]), name
    one, another = (
        desk.loop._training.optimizer.state_dict()["state"] for desk in (with_exports, without)
    )
    for index, entries in one.items():
        for key, value in entries.items():
            assert torch.equal(value, another[index][key]), (index, key)
    read = [desk.loop._training.samples_read for desk in (with_exports, without)]
    assert read[0] == read[1]
    assert with_exports.body(agreed) == without.body(agreed)
    assert (np.random.get_state()[1] == numbers).all()  # type: ignore[union-attr, call-overload]


def test_an_export_amid_inner_steps_changes_no_bit(agreed: Path, tmp_path: Path) -> None:
    desk = Desk()
    desk.start(agreed)
    desk.train(1, 3)
    before = desk.model()
    export(desk, Which.MERGED, agreed, path=tmp_path / "merged.pt")
    after = desk.model()
    assert all(torch.equal(before[name], after[name]) for name in before)


# -- what goes wrong -------------------------------------------------------------------------------
def assert_still_trains(desk: Desk, before: State) -> None:
    assert all(torch.equal(tensor, before[name]) for name, tensor in desk.model().items())
    done = desk.loop._inner_steps
    desk.train(2, 2)
    assert desk.loop._inner_steps == done + 2


def test_a_place_that_cannot_be_written_is_told_and_training_goes_on(
    desk: Desk, agreed: Path, tmp_path: Path
) -> None:
    before = desk.model()
    order = Export(ticket=4, which=Which.AGREED, agreed=agreed, path=tmp_path / "no" / "file")
    desk.tell(order)
    said = desk.last(NotExported)
    assert said.ticket == 4
    assert "No such file" in said.why
    assert_still_trains(desk, before)


def test_a_share_that_is_none_is_told_and_training_goes_on(
    desk: Desk, agreed: Path, tmp_path: Path
) -> None:
    before = desk.model()
    bad = tmp_path / "bad"
    bad.write_bytes(bytes(100))
    desk.tell(Export(ticket=4, which=Which.MERGED, agreed=agreed, shares=(Share(bad, (), 0.5),)))
    assert "a gift that begins with 100 bytes" in desk.last(NotExported).why
    assert_still_trains(desk, before)


class Keeper(torch.nn.Module):
    """Has an extra state that no file can hold."""

    def get_extra_state(self) -> object:
        return lambda: None


class Kept(Tiny):
    """Its model is whole but for that."""

    def model(self) -> torch.nn.Module:
        net = super().model()
        net.keeper = Keeper()
        return net


def test_an_extra_state_that_cannot_be_written_is_told_and_training_goes_on(
    agreed: Path, tmp_path: Path
) -> None:
    desk = Desk(dataclasses.replace(CONFIG, task=f"{__name__}:Kept"))
    desk.start(agreed)
    before = desk.model()
    desk.tell(Export(ticket=4, which=Which.AGREED, agreed=agreed, path=tmp_path / "file"))
    assert "pickle" in desk.last(NotExported).why
    assert_still_trains(desk, before)


class Mute(Tiny):
    """Evaluates nothing."""

    def evaluate(self, model: torch.nn.Module, device: torch.device) -> float:
        raise NotImplementedError("nothing held out")


def test_a_task_that_evaluates_nothing_gives_a_file_without_a_loss(
    agreed: Path, tmp_path: Path
) -> None:
    desk = Desk(dataclasses.replace(CONFIG, task=f"{__name__}:Mute"))
    desk.start(agreed)
    path = tmp_path / "own.pt"
    desk.tell(Export(ticket=1, which=Which.OWN, agreed=agreed, path=path, evaluate=True))
    said = desk.last(Exported)
    assert said.loss is None
    assert said.why == "the task's evaluate raised NotImplementedError: nothing held out"
    assert said.size == path.stat().st_size


def test_a_model_that_is_not_finite_is_not_exported(
    desk: Desk, agreed: Path, tmp_path: Path
) -> None:
    next(iter(desk.loop._own.tensors.values())).view(-1)[0] = float("nan")
    desk.tell(SaveCheckpoint(directory=tmp_path / "c", agreed=agreed, head=HEAD))
    desk.tell(Export(ticket=9, which=Which.OWN, agreed=agreed, path=tmp_path / "own.pt"))
    assert desk.last(NotExported) == NotExported(ticket=9, why="the model is not finite")
    assert not (tmp_path / "own.pt").exists()
