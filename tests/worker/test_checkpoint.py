"""Checkpoints: whole or not there, and training goes on from them as if nothing had happened."""

from __future__ import annotations

import dataclasses
import errno
import json
import os
import resource
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from demoloco.codec.packet import decode
from demoloco.config import RunConfig
from demoloco.errors import StoreError
from demoloco.types import Round
from demoloco.worker import checkpoint
from demoloco.worker.checkpoint import Counters, newest_whole
from demoloco.worker.port import (
    Correct,
    Corrected,
    Failed,
    NotSaved,
    Restore,
    SaveCheckpoint,
    Saved,
    TakeAgreed,
    Trained,
    WriteInitial,
)
from tests.worker.desk import CONFIG, Desk, advance, read_state

HEAD = bytes(range(32))


@pytest.fixture
def agreed(tmp_path: Path) -> Path:
    return tmp_path / "agreed-0"


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return tmp_path / "checkpoint"


def saved_desk(agreed: Path, directory: Path, config: RunConfig = CONFIG) -> Desk:
    """Three steps of the first round, then a checkpoint."""
    desk = Desk(config)
    desk.start(agreed)
    desk.train(1, 3)
    desk.tell(SaveCheckpoint(directory=directory, agreed=agreed, head=HEAD))
    return desk


def restored_desk(
    directory: Path, agreed: Path, told: tuple[bytes, ...] = (), config: RunConfig = CONFIG
) -> Desk:
    desk = Desk(config)
    desk.tell(Restore(checkpoint=directory, agreed=agreed, round=Round(0), told_since=told))
    return desk


def assert_equal_models(one: Desk, other: Desk) -> None:
    for (name, ours), theirs in zip(one.model().items(), other.model().values(), strict=True):
        assert torch.equal(ours, theirs), name


# -- going on -------------------------------------------------------------------------------------
@pytest.mark.parametrize("method", ["decoupled", "synced"])
def test_training_goes_on_bit_for_bit(agreed: Path, directory: Path, method: str) -> None:
    config = dataclasses.replace(CONFIG, method=method)
    through = Desk(config)
    through.start(agreed)
    through.train(1, 3)
    through.body(agreed)  # with method synced this moves model and memory
    through.tell(SaveCheckpoint(directory=directory, agreed=agreed, head=HEAD))
    back = restored_desk(directory, agreed, config=config)
    assert back.last(Corrected).round == 0
    for desk in (through, back):
        torch.manual_seed(5)  # dropout; both desks share this process's generator
        desk.train(1, 3)
    assert through.last(Trained).loss == back.last(Trained).loss
    assert_equal_models(through, back)
    assert through.body(agreed) == back.body(agreed)


def test_dropout_goes_on_with_the_same_random_numbers(agreed: Path, directory: Path) -> None:
    through = saved_desk(agreed, directory)
    through.train(1, 3)
    torch.manual_seed(99)
    back = restored_desk(directory, agreed)
    back.train(1, 3)
    assert_equal_models(through, back)


def test_the_data_goes_on_where_it_stopped_with_other_micro_batches(
    agreed: Path, directory: Path
) -> None:
    saved_desk(agreed, directory)
    found = newest_whole(directory)
    assert found is not None
    assert found.counters.samples_read == 24
    back = Desk(accumulate=4)
    back.tell(Restore(checkpoint=directory, agreed=agreed, round=Round(0), told_since=()))
    back.train(1, 1)
    back.tell(SaveCheckpoint(directory=directory, agreed=agreed, head=HEAD))
    found = newest_whole(directory)
    assert found is not None
    assert (found.counters.samples_read, found.counters.inner_steps) == (32, 4)


def test_what_was_told_since_is_not_owed_again(
    agreed: Path, directory: Path, tmp_path: Path
) -> None:
    desk = saved_desk(agreed, directory)
    body, after = desk.body(agreed), tmp_path / "agreed-1"
    advance(agreed, after, [body], desk.spec)
    desk.tell(Correct(before=agreed, after=after, round=Round(1), told=(body,)))
    back = Desk()
    back.tell(Restore(checkpoint=directory, agreed=after, round=Round(1), told_since=(body,)))
    assert back.last(Corrected).round == 1
    # The first chunk is one whole tensor. Where it was told, nothing is owed; else what was owed.
    running, restored = (owed_coefficients(each, after)[0] for each in (desk, back))
    told = decode(body, desk.spec).index[0]
    assert np.abs(restored[told]).max() < 1e-5
    np.testing.assert_allclose(np.delete(restored, told), np.delete(running, told), atol=1e-5)


@pytest.mark.parametrize("method", ["decoupled", "synced"])
def test_a_packet_that_was_made_before_the_checkpoint_leaves_the_model_to_the_bit(
    agreed: Path, directory: Path, tmp_path: Path, method: str
) -> None:
    """In the midst of a round: the model holds the packet, and what it learnt since."""
    config = dataclasses.replace(CONFIG, method=method)
    desk = Desk(config)
    desk.start(agreed)
    desk.train(1, 3)
    body, after = desk.body(agreed), tmp_path / "agreed-1"
    desk.train(2, 2)
    desk.tell(SaveCheckpoint(directory=directory, agreed=agreed, head=HEAD))
    advance(agreed, after, [body], desk.spec)
    desk.tell(Correct(before=agreed, after=after, round=Round(1), told=(body,)))
    back = Desk(config)
    back.tell(Restore(checkpoint=directory, agreed=after, round=Round(1), told_since=(body,)))
    running, restored = (owed_coefficients(each, after) for each in (desk, back))
    np.testing.assert_allclose(restored, running, atol=1e-5)
    memories = [desk.loop._own.memory, back.loop._own.memory]
    if method == "synced":
        np.testing.assert_allclose(memories[1], memories[0], atol=1e-5)
    back.tell(SaveCheckpoint(directory=directory, agreed=after, head=HEAD))
    found = newest_whole(directory)
    assert found is not None
    assert found.counters.made == ()  # it has left the model


def owed_coefficients(desk: Desk, agreed: Path) -> NDArray[np.float32]:
    own = agreed.with_name("own")
    desk.tell(WriteInitial(path=own))
    return read_state(agreed) - read_state(own)


# -- files ----------------------------------------------------------------------------------------
def test_a_checkpoint_says_where_it_stands(agreed: Path, directory: Path) -> None:
    desk = saved_desk(agreed, directory)
    found = newest_whole(directory)
    assert found is not None
    assert (found.round, found.head, found.counters.inner_steps) == (0, HEAD, 3)
    saved = desk.last(Saved)
    assert (saved.head, saved.size) == (HEAD, found.size)
    assert found.size == sum(
        file.stat().st_size for file in found.path.iterdir() if file.name != "manifest.json"
    )


def test_the_agreed_state_is_linked_not_copied(agreed: Path, directory: Path) -> None:
    saved_desk(agreed, directory)
    found = newest_whole(directory)
    assert found is not None
    assert os.path.samefile(found.path / checkpoint.AGREED, agreed)


def test_without_links_the_agreed_state_is_copied(
    agreed: Path, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(source: Path, target: Path) -> None:
        raise OSError(errno.EXDEV, "cross-device link")

    monkeypatch.setattr(os, "link", refuse)
    saved_desk(agreed, directory)
    found = newest_whole(directory)
    assert found is not None
    assert (found.path / checkpoint.AGREED).read_bytes() == agreed.read_bytes()


def test_the_last_two_are_kept(agreed: Path, directory: Path) -> None:
    desk = saved_desk(agreed, directory)
    for _ in range(3):
        desk.tell(SaveCheckpoint(directory=directory, agreed=agreed, head=HEAD))
    assert sorted(path.name for path in directory.iterdir()) == ["00000003", "00000004"]


def damage(file: Path) -> None:
    """Another bit in a new file: the agreed state's is shared."""
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.unlink()
    file.write_bytes(content)


NAMES = ["agreed.f32", "manifest.json", "model.safetensors", "optimizer.safetensors"]


@pytest.mark.parametrize("name", NAMES)
def test_one_flipped_bit_is_found_and_the_one_before_is_used(
    agreed: Path, directory: Path, name: str
) -> None:
    desk = saved_desk(agreed, directory)
    before = desk.model()
    desk.train(1, 3)
    desk.tell(SaveCheckpoint(directory=directory, agreed=agreed, head=HEAD))
    damage(directory / "00000002" / name)
    found = newest_whole(directory)
    assert found is not None
    assert found.path.name == "00000001"
    for name, tensor in restored_desk(directory, agreed).model().items():
        assert torch.equal(tensor, before[name])


@pytest.mark.parametrize("name", NAMES)
def test_a_missing_file_is_found(agreed: Path, directory: Path, name: str) -> None:
    saved_desk(agreed, directory)
    (directory / "00000001" / name).unlink()
    assert newest_whole(directory) is None


def test_a_damaged_checkpoint_without_another_says_what_to_do(
    agreed: Path, directory: Path
) -> None:
    saved_desk(agreed, directory)
    path = directory / "00000001"
    damage(path / "model.safetensors")
    failed = restored_desk(path, agreed).last(Failed)
    assert failed.why == f"the checkpoint {path} is damaged: model.safetensors"
    assert failed.fix.startswith(f"rm -r {path}; ")
    assert "no whole checkpoint" in restored_desk(directory, agreed).last(Failed).why


def test_a_checkpoint_of_another_model_is_refused(agreed: Path, directory: Path) -> None:
    saved_desk(agreed, directory)
    other = dataclasses.replace(CONFIG, task="tests.worker.tasks:Even")
    failed = restored_desk(directory, agreed, config=other).last(Failed)
    assert "is of another model" in failed.why


def test_a_manifest_of_a_later_format_is_not_guessed_at(agreed: Path, directory: Path) -> None:
    saved_desk(agreed, directory)
    file = directory / "00000001" / "manifest.json"
    manifest = json.loads(file.read_text())["manifest"]
    manifest["format"] = 2
    file.write_text(json.dumps({"manifest": manifest, "seal": checkpoint._seal(manifest)}))
    with pytest.raises(StoreError, match="damaged"):
        checkpoint.read(file.parent)


def test_an_empty_or_absent_directory_has_no_checkpoint(directory: Path) -> None:
    assert newest_whole(directory) is None
    directory.mkdir()
    assert newest_whole(directory) is None


# -- a disk that fails ----------------------------------------------------------------------------
def test_a_full_disk_is_told_and_training_goes_on(
    agreed: Path, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    desk = saved_desk(agreed, directory)

    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as broken:
        broken.setattr(os, "fsync", full)
        desk.tell(SaveCheckpoint(directory=directory, agreed=agreed, head=HEAD))
    why = desk.last(NotSaved).why
    assert "checkpoint of round 0 not written: No space left on device" in why
    assert "GB free" in why
    assert [path.name for path in directory.iterdir()] == ["00000001"]
    desk.train(1, 1)
    assert desk.last(Trained).steps == 1


def test_a_disk_that_takes_no_tensors_is_told_and_training_goes_on(
    agreed: Path, directory: Path
) -> None:
    """The first write of a checkpoint is safetensors', whose error is no OSError."""
    desk = saved_desk(agreed, directory)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (256, limits[1]))
    try:
        desk.tell(SaveCheckpoint(directory=directory, agreed=agreed, head=HEAD))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert "checkpoint of round 0 not written" in desk.last(NotSaved).why
    assert [path.name for path in directory.iterdir()] == ["00000001"]
    desk.train(1, 1)
    assert desk.last(Trained).steps == 1


@pytest.mark.parametrize("step", ["fill", "link", "manifest", "rename"])
def test_a_crash_while_writing_leaves_the_one_before(
    agreed: Path, directory: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    """The process is gone at a step; what a fresh one finds is the checkpoint before."""
    saved_desk(agreed, directory)
    counters = Counters(round=1, head=HEAD.hex(), layout="", samples_read=0, inner_steps=0)

    class PowerCut(BaseException):
        pass

    def cut(*_: object) -> None:
        raise PowerCut

    places = {"link": (os, "link"), "manifest": (checkpoint, "_seal"), "rename": (Path, "rename")}
    if step != "fill":
        monkeypatch.setattr(*places[step], cut)
    fill = cut if step == "fill" else (lambda path: None)
    with pytest.raises(PowerCut):
        checkpoint.write(directory, counters, fill, agreed)
    monkeypatch.undo()
    found = newest_whole(directory)
    assert found is not None
    assert found.counters.round == 0
    again = checkpoint.write(directory, counters, lambda path: None, agreed)
    assert again.path.name == "00000002"
    assert newest_whole(directory) == again


def test_the_old_agreed_state_may_be_gone(agreed: Path, directory: Path, tmp_path: Path) -> None:
    """The store prunes it; the checkpoint's link keeps it."""
    desk = saved_desk(agreed, directory)
    now = tmp_path / "agreed-7"
    shutil.copyfile(agreed, now)
    agreed.unlink()
    assert_equal_models(restored_desk(directory, now), desk)


def test_taking_an_agreed_state_forgets_the_moments(agreed: Path, directory: Path) -> None:
    once, twice = Desk(), Desk()
    for desk in (once, twice):
        desk.start(agreed)
    twice.train(1, 3)
    twice.tell(TakeAgreed(agreed=agreed, round=Round(0)))
    assert np.isfinite(twice.last(Trained).loss)
    assert twice.loop._training.optimizer.state_dict()["state"] == {}
