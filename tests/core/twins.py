"""Slow, obvious twins of the codec and the outer step, and the inputs that the tests share."""

from __future__ import annotations

import math

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.fft import dctn

from demoloco.codec.layout import CHUNK, EDGE, Layout, layout_of
from demoloco.codec.packet import PacketSpec, Sparse
from demoloco.types import TensorShape

ODD_SHAPES: dict[str, tuple[int, ...]] = {
    "embedding": (50257, 3),
    "matrix": (128, 192),
    "prime": (101, 211),
    "convolution": (64, 3, 7, 7),
    "depthwise": (512, 1, 3, 3),
    "bias": (7,),
    "long": (5000,),
    "scale": (),
    "empty": (0, 5),
}


def layout_for(shapes: dict[str, tuple[int, ...]]) -> Layout:
    return layout_of(TensorShape(name=name, shape=shape) for name, shape in shapes.items())


def tensors_for(shapes: dict[str, tuple[int, ...]], seed: int = 0) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return {name: torch.randn(shape, generator=generator) for name, shape in shapes.items()}


def chunk_of(tensors: dict[str, torch.Tensor], layout: Layout) -> NDArray[np.float32]:
    """The stack, built one tile after the other."""
    stack = np.zeros((layout.chunks, EDGE, EDGE), np.float32)
    for group in layout.groups:
        arrays = [tensors[tensor.name].numpy() for tensor in group.tensors]
        if group.shared:
            line = np.concatenate([array.ravel() for array in arrays])
            stack[group.first : group.first + group.chunks].reshape(-1)[: line.size] = line
            continue
        matrix = arrays[0].reshape(arrays[0].shape[0], -1)
        for row in range(group.rows):
            for column in range(group.columns):
                tile = matrix[row * EDGE : (row + 1) * EDGE, column * EDGE : (column + 1) * EDGE]
                place = stack[group.first + row * group.columns + column]
                place[: tile.shape[0], : tile.shape[1]] = tile
    return stack


def transform(chunks: NDArray[np.float32]) -> NDArray[np.float64]:
    return np.asarray(dctn(chunks.astype(np.float64), axes=(1, 2), norm="ortho"))


def largest(coefficients: NDArray[np.float32], k: int) -> Sparse:
    """By a full stable sort of every chunk."""
    order = np.argsort(-np.abs(coefficients), axis=1, kind="stable")[:, :k]
    index = np.sort(order, axis=1)
    return Sparse(index.astype(np.int32), np.take_along_axis(coefficients, index, 1))


def advanced(
    before: NDArray[np.float32], packets: list[Sparse], weights: list[float], alpha: float
) -> NDArray[np.float32]:
    """One coefficient after the other, in float32 scalars."""
    sums: dict[tuple[int, int], np.float32] = {}
    for packet, weight in zip(packets, weights, strict=True):
        for chunk in range(len(packet.index)):
            for position, value in zip(packet.index[chunk], packet.value[chunk], strict=True):
                key = (chunk, int(position))
                sums[key] = np.float32(sums.get(key, np.float32(0)) + np.float32(weight) * value)
    after = before.copy()
    for key, value in sums.items():
        after[key] = before[key] - np.float32(alpha) * value
    return after


def spec_of(groups: tuple[int, ...], bits: int = 2, k: int = 64) -> PacketSpec:
    return PacketSpec(groups, bits, (k,))


def momenta(chunks: int, seed: int = 0) -> NDArray[np.float32]:
    """Coefficients like those of a trained model: energy at low frequencies, unequal chunks."""
    rng = np.random.default_rng(seed)
    frequency = np.hypot(*np.meshgrid(np.arange(EDGE), np.arange(EDGE)))
    decay = np.exp(-frequency / 20) + 0.1
    scale = 10 ** rng.uniform(-5, -2, (chunks, 1, 1))
    return (
        (rng.laplace(size=(chunks, EDGE, EDGE)) * decay * scale)
        .astype(np.float32)
        .reshape(chunks, CHUNK)
    )


def entropy_of_choice(k: int) -> float:
    """Bits per coefficient that k of 4096 equally likely positions need."""
    ways = math.lgamma(CHUNK + 1) - math.lgamma(k + 1) - math.lgamma(CHUNK - k + 1)
    return ways / math.log(2) / k
