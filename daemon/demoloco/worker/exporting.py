"""What an export takes of a worker: a model in the place of its own for a moment.

Rule: afterwards everything is as it was, bit for bit: the model's tensors, random numbers, data
position, inner optimizer. What fails here fails alone; training goes on.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch

from demoloco.errors import ConfigError, PacketError, StoreError
from demoloco.worker import formats
from demoloco.worker.exports import Export, Exported, NotExported, Which
from demoloco.worker.faults import TaskFault
from demoloco.worker.inner import Trainer, variances_not_negative
from demoloco.worker.own import OwnModel
from demoloco.worker.saved import load_random_state, random_state, state_of


def export(order: Export, own: OwnModel, trainer: Trainer) -> Exported | NotExported:
    """Carry the order out, between two inner steps."""
    try:
        with torch.no_grad(), _as_it_was(order.which, trainer):
            if order.which == Which.AGREED:
                own.become(order.agreed)
            elif order.which == Which.MERGED:
                own.merge(order.agreed, order.shares)
            loss, why = _loss(trainer) if order.evaluate else (None, "")
            size = 0
            if order.path is not None:
                with variances_not_negative(trainer.model):
                    size = formats.write(order.format, trainer.model, order.path)
    except (OSError, PacketError, StoreError, RuntimeError, MemoryError) as error:
        return NotExported(ticket=order.ticket, why=_in_words(error))
    return Exported(ticket=order.ticket, loss=loss, why=why, size=size)


def _loss(trainer: Trainer) -> tuple[float | None, str]:
    """On the held-out part, or why there is none."""
    try:
        loss = trainer.evaluate()
    except (TaskFault, ConfigError) as error:
        return None, str(error)
    return (loss, "") if math.isfinite(loss) else (None, f"the loss is {loss}")


@contextmanager
def _as_it_was(which: Which, trainer: Trainer) -> Iterator[None]:
    """Whatever another model's values and its evaluation do, nothing of it stays. The copies lie on
    the CPU: an accelerator may have no room for a second model."""
    tensors = state_of(trainer.model).values() if which != Which.OWN else ()
    kept = [(tensor, tensor.detach().to("cpu", copy=True)) for tensor in tensors]
    numbers = random_state(trainer.device), random.getstate(), np.random.get_state()
    try:
        yield
    finally:
        for tensor, copy in kept:
            tensor.copy_(copy)
        load_random_state(trainer.device, numbers[0])
        random.setstate(numbers[1])
        np.random.set_state(numbers[2])


def _in_words(error: BaseException) -> str:
    first = (str(error).strip().splitlines() or [type(error).__name__])[0]
    return f"the model could not be written or evaluated: {first}"
