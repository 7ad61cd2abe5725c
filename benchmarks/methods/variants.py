"""Changes to `decoupled` that were tried: what is told of what is owed, and what becomes of it.

Rule: as in `decoupled`, A moves by the mean of what all told, and what is not told stays owed. What
no packet of the product can carry yet is told as levels of two bits, and counted at what the limit
of its index and its levels cost.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from benchmarks.methods.exchange import Coefficients, Outcome, coefficients
from benchmarks.methods.settings import Setting
from demoloco.codec.dct import idct
from demoloco.codec.layout import CHUNK, EDGE
from demoloco.codec.packet import PacketSpec, decode, encode
from demoloco.codec.topk import topk

INDEX_MARGIN = 1.03  # what the packet's index costs above its limit
CHUNK_SIDE_BITS = 12  # scale and levels
VALUE_BITS = 2

Sensitivity = Callable[[int], Tensor]
"""Of a node's chunks, (chunks, 1): how much a loss minds a change there."""


class Variant:
    """`decoupled` as coefficients; a change overrides `tell` or `settle`."""

    def __init__(self, setting: Setting, spec: PacketSpec, sensitivity: Sensitivity) -> None:
        self.k, self.spec, self.strength = setting.k, spec, setting.strength
        self.seed, self.sensitivity = setting.seed, sensitivity
        self.alpha, self.momentum, self.round = setting.alpha, setting.outer_momentum, 0
        self.velocity = torch.zeros((spec.chunks, CHUNK))

    def close(self, owns: Sequence[Tensor], agreed: Coefficients) -> Outcome:
        before = torch.from_numpy(agreed)
        owed = [before - coefficients(own) for own in owns]
        told = [self.tell(one, node) for node, one in enumerate(owed)]
        mean = torch.stack([values for values, _ in told]).mean(0)
        self.velocity = self.momentum * self.velocity + mean
        after = before - self.alpha * (mean + self.momentum * self.velocity)
        left = [one - values for one, (values, _) in zip(owed, told, strict=True)]
        models = [idct((after - self.settle(one)).view(-1, EDGE, EDGE)) for one in left]
        self.round += 1
        return Outcome(models, after.numpy(), sum(size for _, size in told) / len(told))

    def tell(self, owed: Tensor, node: int) -> tuple[Tensor, float]:
        """What a node tells, as all coefficients, and in how many bytes."""
        body, _ = encode(topk(owed, self.k), self.spec)
        read = decode(body, self.spec)
        index = torch.from_numpy(read.index.astype("int64"))
        values = torch.from_numpy(read.value.copy())
        return torch.zeros_like(owed).scatter_(1, index, values), len(body)

    def settle(self, left: Tensor) -> Tensor:
        """What a node still owes after the round."""
        return left


class Pull(Variant):
    """Own models are drawn to the agreed state: a share of what was not told is forgotten."""

    def settle(self, left: Tensor) -> Tensor:
        return left * (1 - self.strength)


class ByEnergy(Variant):
    """The largest of the whole model instead of k of each chunk, weighed by sensitivity^strength;
    at least one of each chunk."""

    def tell(self, owed: Tensor, node: int) -> tuple[Tensor, float]:
        size = owed.abs() * self.sensitivity(node) ** self.strength
        least = torch.kthvalue(size.flatten(), owed.numel() - self.k * len(owed)).values
        return two_levels(owed, size > least)


class Echo(Variant):
    """The largest, and a value at each coefficient that anyone told last round: its index is
    known."""

    def __init__(self, setting: Setting, spec: PacketSpec, sensitivity: Sensitivity) -> None:
        super().__init__(setting, spec, sensitivity)
        self.known: Tensor | None = None

    def close(self, owns: Sequence[Tensor], agreed: Coefficients) -> Outcome:
        self.fresh = torch.zeros(agreed.shape, dtype=torch.bool)
        outcome = super().close(owns, agreed)
        self.known = self.fresh
        return outcome

    def tell(self, owed: Tensor, node: int) -> tuple[Tensor, float]:
        known = torch.zeros_like(owed, dtype=torch.bool) if self.known is None else self.known
        values, size = super().tell(owed.masked_fill(known, 0.0), node)
        self.fresh |= values != 0
        echo, _ = two_levels(owed, known)
        bits = VALUE_BITS * int(known.sum()) + CHUNK_SIDE_BITS * len(owed)
        return values + echo, size + bits / 8


class Rota(Variant):
    """Beside the largest, values of a block of coefficients that the round names, the same for
    all: `strength` of a chunk. Each is told once in 1 / strength rounds."""

    def tell(self, owed: Tensor, node: int) -> tuple[Tensor, float]:
        turn = self._turn(owed)
        values, size = super().tell(owed.masked_fill(turn, 0.0), node)
        block, _ = two_levels(owed, turn)
        bits = VALUE_BITS * int(turn.sum()) + CHUNK_SIDE_BITS * len(owed)
        return values + block, size + bits / 8

    def _turn(self, like: Tensor) -> Tensor:
        length = max(1, round(self.strength * CHUNK))
        order = torch.randperm(CHUNK, generator=torch.Generator().manual_seed(self.seed))
        first = self.round * length
        picked = order[torch.arange(first, first + length) % CHUNK]
        mask = torch.zeros(like.shape, dtype=torch.bool)
        mask[:, picked] = True
        return mask


def two_levels(values: Tensor, mask: Tensor) -> tuple[Tensor, float]:
    """Sign and one of two levels of each chunk where the mask is, and the bytes that this costs."""
    size = (values.abs() * mask).double()
    count = mask.sum(1, keepdim=True).clamp(min=1)
    high = mask & (size > size.sum(1, keepdim=True) / count)
    low = mask & ~high
    levels = torch.zeros_like(size)
    for part in (low, high):
        mean = (size * part).sum(1, keepdim=True) / part.sum(1, keepdim=True).clamp(min=1)
        levels += mean * part
    bits = sum(index_bits(int(n)) for n in mask.sum(1)) + VALUE_BITS * int(mask.sum())
    return (levels * values.sign()).float(), (bits + CHUNK_SIDE_BITS * len(values)) / 8


def index_bits(count: int) -> float:
    """Of so many places in a chunk."""
    log = math.lgamma(CHUNK + 1) - math.lgamma(count + 1) - math.lgamma(CHUNK - count + 1)
    return INDEX_MARGIN * log / math.log(2)


VARIANTS = {
    "plain": Variant,
    "pull": Pull,
    "energy": ByEnergy,
    "echo": Echo,
    "rota": Rota,
}
