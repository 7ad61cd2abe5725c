"""Packets of few directions instead of few coefficients: low-rank parts of what is owed.

Tried beside `decoupled`: as there, A moves by the mean of what all told, and what is not told stays
owed. A matrix's part is told as two factors, each value in `strength` bits and a float16 scale for
each column; all matrices together get the bytes that a packet of k coefficients a chunk has.
Vectors are told as `decoupled` tells them.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from benchmarks.methods.settings import Setting
from benchmarks.methods.variants import Sensitivity, Variant
from demoloco.codec.chunks import from_chunks, to_chunks
from demoloco.codec.dct import dct, idct
from demoloco.codec.layout import CHUNK, EDGE, Layout, flat_shape
from demoloco.codec.packet import PacketSpec

PACKET_BITS = 9.1  # of a coefficient in a packet
SCALE_BITS = 16
POWER_STEPS = 2
SPARE = 2  # so many times the even share of directions are looked for
CLIP = {1: 0.8, 2: 1.5, 3: 2.2, 4: 2.8, 8: 5.0}
"""Where a grid of so many bits ends, in standard deviations: about best for normal values."""


@dataclass(frozen=True)
class Direction:
    """One of a matrix's: its share of the squared norm for each bit that it costs."""

    worth: float
    bits: float
    matrix: str
    number: int


class LowRank(Variant):
    """Each node tells both factors of its own largest directions, as many of each matrix as it has
    chunks for."""

    by_worth = False

    def __init__(
        self, setting: Setting, spec: PacketSpec, sensitivity: Sensitivity, layout: Layout
    ) -> None:
        super().__init__(setting, spec, sensitivity)
        self.layout, self.bits = layout, int(setting.strength)
        self.shapes = {
            group.tensors[0].name: flat_shape(group.tensors[0].shape)
            for group in layout.groups
            if not group.shared
        }
        self.starts: dict[tuple[int, str], Tensor] = {}

    def tell(self, owed: Tensor, node: int) -> tuple[Tensor, float]:
        tensors = from_chunks(idct(owed.view(-1, EDGE, EDGE)), self.layout)
        factors = {
            name: self.factors(tensors[name].reshape(shape), name, node)
            for name, shape in self.shapes.items()
        }
        bits = 0.0
        for name, count in self.counts(factors).items():
            left, right = (factor[:, :count] for factor in factors[name])
            part = coarse(left, self.bits) @ coarse(right, self.bits).T
            tensors[name].copy_(part.view(tensors[name].shape))
            bits += count * self.cost(name)
        told = dct(to_chunks(tensors, self.layout)).reshape(-1, CHUNK)
        shared = [group for group in self.layout.groups if group.shared]
        for where in (slice(one.first, one.first + one.chunks) for one in shared):
            vectors = torch.zeros_like(owed)
            vectors[where] = owed[where]
            told[where] = super().tell(vectors, node)[0][where]
            bits += (where.stop - where.start) * self.k * PACKET_BITS
        return told, bits / 8

    def factors(self, matrix: Tensor, name: str, node: int) -> tuple[Tensor, Tensor]:
        """The matrix's largest directions, those first: left · rightᵀ, equally large."""
        wanted = min(SPARE * self.share(name) if self.by_worth else self.share(name), *matrix.shape)
        right = self.starts.get((node, name))
        if right is None:
            chance = torch.Generator().manual_seed(self.seed)
            right = torch.randn(matrix.shape[1], wanted, generator=chance)
        for _ in range(POWER_STEPS):
            right = orthonormal(matrix.T @ orthonormal(matrix @ right))
        left, sizes, turn = torch.linalg.svd(matrix @ right, full_matrices=False)
        right = right @ turn.T
        self.starts[node, name] = right
        return left * sizes.sqrt(), right * sizes.sqrt()

    def counts(self, factors: dict[str, tuple[Tensor, Tensor]]) -> dict[str, int]:
        """How many directions of each matrix are told."""
        if not self.by_worth:
            return {name: self.share(name) for name in factors}
        found = [
            Direction(float(left[:, n].norm()) ** 4 / self.cost(name), self.cost(name), name, n)
            for name, (left, _) in factors.items()
            for n in range(left.shape[1])
        ]
        left_bits = sum(self.budget(name) for name in factors)
        counts = dict.fromkeys(factors, 0)
        for one in sorted(found, key=lambda one: -one.worth):
            if one.bits <= left_bits:
                left_bits -= one.bits
                counts[one.matrix] += 1
        return counts

    def share(self, name: str) -> int:
        """So many directions cost what the matrix's chunks would."""
        return max(1, int(self.budget(name) / self.cost(name)))

    def budget(self, name: str) -> float:
        rows, columns = self.shapes[name]
        return rows * columns / CHUNK * self.k * PACKET_BITS

    def cost(self, name: str) -> float:
        """Bits of one direction."""
        return sum(self.shapes[name]) * self.bits + 2 * SCALE_BITS


class LowRankByWorth(LowRank):
    """The largest directions of the whole model."""

    by_worth = True


def orthonormal(matrix: Tensor) -> Tensor:
    """An orthonormal basis of the columns."""
    basis: Tensor = torch.linalg.qr(matrix)[0]
    return basis


def coarse(values: Tensor, bits: int) -> Tensor:
    """Each column on an even grid of 2^bits levels around zero."""
    limit = values.square().mean(0, keepdim=True).sqrt().clamp(min=1e-12) * CLIP[bits]
    step = 2 * limit / 2**bits
    index = ((values + limit) / step).floor().clamp(0, 2**bits - 1)
    near: Tensor = (index + 0.5) * step - limit
    return near


LOW_RANK = {"lowrank": LowRank, "lowrank-worth": LowRankByWorth}
