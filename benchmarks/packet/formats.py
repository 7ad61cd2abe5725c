"""Other formats of such packets, straightforwardly, from their descriptions. Only what counts here:
the bytes, the error of the values, and the arithmetic of an outer step as DeMo makes it.

Rule: each tensor by itself, cut into blocks whose edges are the largest divisors of its dimensions
up to 64, at most k coefficients of each kept, int64 indices from `torch.topk`. That is the common
front end of all three; they differ in how the kept ones are written down.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import torch
from scipy.fft import dct as scipy_dct
from torch import Tensor

EDGE = 64
Blocks = tuple[int, int, int, int]


@dataclass(frozen=True, slots=True)
class Kept:
    """The kept coefficients of one tensor: index and value (blocks, k), out of `size` a block."""

    index: Tensor
    value: Tensor
    size: int


@dataclass(frozen=True, slots=True)
class Size:
    """A packet's bytes, its coefficients, and squared error of the values / their energy."""

    bytes: int
    kept: int
    error: float


# -- the front end ---------------------------------------------------------------------------------
def blocks_of(shape: torch.Size) -> Blocks:
    """Rows of blocks, a block's height, columns of blocks, a block's width."""
    rows, columns = (1, math.prod(shape)) if len(shape) < 2 else (shape[0], math.prod(shape[1:]))
    height, width = _divisor(rows), _divisor(columns)
    return rows // height, height, columns // width, width


def _divisor(length: int) -> int:
    return max(edge for edge in range(1, EDGE + 1) if length % edge == 0)


class FrontEnd:
    """Transform, selection and their inverses; bases are made once."""

    def __init__(self) -> None:
        self._bases: dict[int, Tensor] = {}

    def encode(self, tensor: Tensor, k: int) -> Kept:
        rows, height, columns, width = blocks_of(tensor.shape)
        grid = tensor.reshape(rows, height, columns, width)
        left, right = self._basis(height), self._basis(width)
        coefficients = torch.einsum("yhxw,hi,wj->yxij", grid, left, right)
        flat = coefficients.reshape(rows * columns, height * width)
        index = flat.abs().topk(min(k, flat.shape[1]), dim=1, sorted=False).indices
        return Kept(index, flat.gather(1, index), flat.shape[1])

    def decode(self, shape: torch.Size, index: Tensor, value: Tensor) -> Tensor:
        """Each coefficient is the mean over those who sent it."""
        rows, height, columns, width = blocks_of(shape)
        flat = torch.zeros((rows * columns, height * width))
        flat.scatter_reduce_(1, index, value, reduce="mean", include_self=False)
        grid = flat.view(rows, columns, height, width)
        left, right = self._basis(height), self._basis(width)
        return torch.einsum("yxij,hi,wj->yhxw", grid, left, right).reshape(shape)

    def _basis(self, edge: int) -> Tensor:
        if edge not in self._bases:
            basis = scipy_dct(np.eye(edge), axis=1, norm="ortho").astype(np.float32)
            self._bases[edge] = torch.from_numpy(basis)
        return self._bases[edge]


# -- what goes over the wire -----------------------------------------------------------------------
def demo(kept: Kept) -> tuple[int, float]:
    """DeMo, and the reference of arXiv:2510.03371: 64-bit indices, 32-bit values."""
    index, value = to_wire(kept)
    return len(index) + len(value), 0.0


def psyche(kept: Kept) -> tuple[int, float]:
    """Psyche: indices in the fewest whole bytes, one sign bit, shape and block size. As the value
    counts here the tensor's mean magnitude, which is more than it sends."""
    narrow = np.min_scalar_type(kept.size - 1).itemsize
    planes = np.packbits(kept.value.numpy().ravel() < 0)
    told = kept.value.sign() * kept.value.abs().mean()
    return kept.index.numel() * narrow + len(planes) + 2 * kept.index.dim() + 4, _loss(kept, told)


def twelve_and_two(kept: Kept) -> tuple[int, float]:
    """SparseLoCo as described: two indices in three bytes, 2-bit values in four bins over six
    standard deviations, each told as its mean; three words and four means a tensor."""
    value = kept.value
    deviation = float(value.std()) if value.numel() > 1 else 0.0
    step = max(6 * deviation / 4, 1e-12)
    bins = ((value - value.mean()) / step + 2).floor().clamp(0, 3).long()
    told = torch.zeros_like(value)
    for place in range(4):
        inside = bins == place
        if bool(inside.any()):
            told[inside] = value[inside].mean()
    count = value.numel()
    return -(-count * 12 // 8) + -(-count * 2 // 8) + 7 * 4, _loss(kept, told)


FORMATS: Mapping[str, Callable[[Kept], tuple[int, float]]] = {
    "DeMo, 64 + 32 bit": demo,
    "Psyche, 16 + 1 bit": psyche,
    "12 + 2 bit": twelve_and_two,
}


def size_of(
    tensors: Mapping[str, Tensor], k: int, written: Callable[[Kept], tuple[int, float]]
) -> Size:
    """A whole packet of these tensors."""
    front, total, count, error, energy = FrontEnd(), 0, 0, 0.0, 0.0
    for tensor in tensors.values():
        kept = front.encode(tensor, k)
        length, lost = written(kept)
        total, count, error = total + length, count + kept.index.numel(), error + lost
        energy += float(kept.value.double().square().sum())
    return Size(total, count, error / max(energy, 1e-300))


def to_wire(kept: Kept) -> tuple[bytes, bytes]:
    """Indices and values as DeMo's collectives carry them."""
    return kept.index.numpy().tobytes(), kept.value.numpy().tobytes()


def limit(k: int, value_bits: int, size: int = EDGE * EDGE) -> float:
    """Bits per coefficient of k equally likely ones out of `size`, and of values as they are."""
    ways = math.lgamma(size + 1) - math.lgamma(k + 1) - math.lgamma(size - k + 1)
    return ways / math.log(2) / k + value_bits


def _loss(kept: Kept, told: Tensor) -> float:
    return float((kept.value - told).double().square().sum())
