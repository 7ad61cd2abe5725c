"""What a checkpoint takes of a worker, and how one is brought back to the present."""

from __future__ import annotations

from pathlib import Path

from demoloco.codec.gift import parts_of
from demoloco.errors import ConfigError, StoreError
from demoloco.worker import checkpoint, giving, saved
from demoloco.worker.checkpoint import Checkpoint, Counters
from demoloco.worker.inner import Trainer
from demoloco.worker.own import OwnModel
from demoloco.worker.port import Restore, SaveCheckpoint, Saved


def save(order: SaveCheckpoint, counters: Counters, own: OwnModel, trainer: Trainer) -> Saved:
    """Write a checkpoint, and in it what a joiner may start with; its `seconds` are the caller's.

    Raises: StoreError that says what is needed."""

    def fill(directory: Path) -> None:
        saved.save(directory, saved.MODEL, saved.state_of(trainer.model))
        saved.save(directory, saved.OPTIMIZER, saved.moments_of(trainer.optimizer))
        if own.memory is not None:
            saved.save(directory, saved.MEMORY, {saved.MEMORY: own.memory})
        saved.save(directory, saved.RANDOM, saved.random_state(trainer.device))
        path = directory / checkpoint.GIFT
        try:
            giving.write(path, order.head, order.agreed, own, trainer)
        except ValueError:  # a moment is too large; the checkpoint is good without a gift
            path.unlink(missing_ok=True)

    written = checkpoint.write(order.directory, counters, fill, order.agreed)
    gift = written.path / checkpoint.GIFT
    given = gift.exists()
    return Saved(
        head=order.head,
        seconds=0.0,
        size=written.size,
        learnt=counters.samples_learnt,
        gift=gift if given else None,
        blobs=parts_of(gift) if given else (),
        loan=order.loan,
    )


def restore(order: Restore, own: OwnModel, trainer: Trainer) -> Counters:
    """Load a checkpoint and follow the agreed state from there.

    Raises: StoreError, ConfigError."""
    found = _checked(order.checkpoint)
    if found.counters.layout != own.layout.digest.hex():
        raise StoreError(
            f"the checkpoint {found.path} is of another model\nfix: rm -r {found.path}"
        )
    saved.copy_into(saved.state_of(trainer.model), saved.load(found.path, saved.MODEL))
    trainer.forget_moments()
    saved.load_moments(trainer.optimizer, saved.load(found.path, saved.OPTIMIZER))
    memory = saved.load(found.path, saved.MEMORY).get(saved.MEMORY)
    own.memory = None if memory is None else memory.to(trainer.device)
    # After a lapse not back to the batch that led there: it would lead there again.
    trainer.seek(max(found.counters.samples_read, trainer.samples_read))
    own.follow(found.path / checkpoint.AGREED, order.agreed, order.told_since, found.counters.made)
    own.give_back(order.returned)
    saved.load_random_state(trainer.device, saved.load(found.path, saved.RANDOM))
    return found.counters


def _checked(path: Path) -> Checkpoint:
    """The checkpoint itself, or the newest whole one of a directory of them."""
    if path.name.isdecimal():
        return checkpoint.read(path)
    found = checkpoint.newest_whole(path)
    if found is None:
        raise ConfigError(
            f"there is no whole checkpoint in {path}\nfix: start without it (rm -r {path})"
        )
    return found
