"""Gifts between models: what a joiner starts with of a member's own model and inner optimizer.

Rule: a gift is a peer's bytes. It is taken only if the model is no worse with it, and its moments
only as far as gradients could have made them.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from demoloco.codec import gift
from demoloco.errors import PacketError
from demoloco.types import Digest
from demoloco.worker.inner import BETAS, Trainer
from demoloco.worker.own import OwnModel
from demoloco.worker.port import GiftTried, Start
from demoloco.worker.saved import load_moments

FIRST, SECOND, STEPS = "exp_avg", "exp_avg_sq", "step"

# By the inequality of Cauchy and Schwarz, of all gradients that there can be.
MAX_RATIO = (1 - BETAS[0]) / math.sqrt((1 - BETAS[1]) * (1 - BETAS[0] ** 2 / BETAS[1]))
"""No first moment is more than so many roots of its second moment."""


def write(path: Path, head: bytes, agreed: Path, own: OwnModel, trainer: Trainer) -> bool:
    """Write what this node can give; False if it has nothing to give yet.

    Raises: ValueError if a value is not finite; OSError."""
    states = trainer.optimizer.state
    steps = [float(state[STEPS]) for state in states.values() if STEPS in state]
    if not own.lends or not steps:
        return False

    def moments(kind: str) -> Iterator[NDArray[np.float32]]:
        for parameter in trainer.trained:  # one that no loss has reached yet has none
            moment = states.get(parameter, {}).get(kind)
            yield _flat(torch.zeros_like(parameter) if moment is None else moment)

    content = gift.Content(
        head=Digest(head),
        steps=int(max(steps)),
        owed=own.owed(agreed),
        first=moments(FIRST),
        second=moments(SECOND),
    )
    gift.write(path, _spec(own, trainer), content)
    return True


def take(start: Start, agreed: Path, own: OwnModel, trainer: Trainer) -> GiftTried:
    """Start with a gift on top of the agreed state, where the model stands now; or stay there."""
    agreed_loss, gift_loss = _loss(trainer), math.nan
    try:
        found = gift.read(start.gift, _spec(own, trainer))
        own.borrow(agreed, found.owed, start.returned)
        gift_loss = _loss(trainer)
    except (PacketError, OSError) as error:
        why = str(error)
    else:
        unknown = not trainer.config.evaluate_every and own.is_finite()
        if unknown or gift_loss <= agreed_loss:
            load_moments(trainer.optimizer, dict(_moments(found, trainer)))
            return GiftTried(taken=True, why="", agreed_loss=agreed_loss, gift_loss=gift_loss)
        why = "the model is worse with it"
    own.take(agreed)
    return GiftTried(taken=False, why=why, agreed_loss=agreed_loss, gift_loss=gift_loss)


def _loss(trainer: Trainer) -> float:
    """nan in a run that never evaluates: then there is nothing to compare by."""
    return trainer.evaluate() if trainer.config.evaluate_every else math.nan


def _spec(own: OwnModel, trainer: Trainer) -> gift.GiftSpec:
    values = sum(parameter.numel() for parameter in trainer.trained)
    return gift.GiftSpec(own.layout.digest, own.layout.chunks, values)


def _moments(found: gift.GiftFile, trainer: Trainer) -> Iterator[tuple[str, Tensor]]:
    """Names and tensors as `saved.load_moments` wants them."""
    end = 0
    for number, parameter in enumerate(trainer.trained):
        start, end = end, end + parameter.numel()
        second = found.second.read(start, end)
        limit = np.sqrt(second) * np.float32(MAX_RATIO)
        first = np.clip(found.first.read(start, end), -limit, limit)
        yield f"{number}.{STEPS}", torch.tensor(float(found.steps))
        yield f"{number}.{FIRST}", torch.from_numpy(first).view(parameter.shape)
        yield f"{number}.{SECOND}", torch.from_numpy(second).view(parameter.shape)


def _flat(tensor: Tensor) -> NDArray[np.float32]:
    flat: NDArray[np.float32] = tensor.detach().float().cpu().reshape(-1).numpy()
    return flat
