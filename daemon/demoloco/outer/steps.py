"""What a round makes of the agreed state, whichever the method. numpy only.

    U    the packets' weighted mean, in the manifest's order
    v ← μ·v + U                   the velocity, only with a momentum μ
    A ← A − α·(U + μ·v)           Nesterov's step; without momentum A − α·U

Rule: as in `agreed`: float32, one element at a time, in the manifest's order. An agreed state has
one plane, A, or two, A and under it v: (planes · chunks, 4096). Both are agreed bit for bit, named
by one digest, and travel together wherever a state does.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from demoloco.codec.layout import CHUNK
from demoloco.codec.packet import Sparse
from demoloco.config import RunConfig
from demoloco.outer import agreed
from demoloco.outer.agreed import Coefficients


@dataclass(frozen=True, slots=True)
class OuterStep:
    """How a run's agreed state advances."""

    alpha: float
    momentum: float = 0.0
    mean_over: str = "all"

    @classmethod
    def of(cls, config: RunConfig) -> OuterStep:
        """The step that all nodes of a run make."""
        return cls(config.alpha, config.outer_momentum, config.mean_over)

    @property
    def planes(self) -> int:
        """How many arrays of the model's size an agreed state has: A alone, or A and v."""
        return 2 if self.momentum else 1

    def advance(
        self,
        before: Coefficients,
        packets: Sequence[Sparse],
        weights: Sequence[float],
        out: Coefficients,
    ) -> None:
        """out = the agreed state after a manifest with these packets.

        Shapes: before and out (planes · chunks, 4096) float32; they may be maps of files, and may
        be the same.
        Raises: ValueError if shapes or the numbers of packets and weights do not fit.
        """
        if self.planes == 1 and self.mean_over == "all":
            agreed.advance(before, packets, weights, self.alpha, out)
            return
        chunks = len(before) // self.planes
        agreed.check(before[:chunks], packets, weights, out[:chunks])
        if len(before) != self.planes * chunks or before.shape != out.shape:
            raise ValueError(f"agreed states of {len(before)} and {len(out)} rows")
        for start in range(0, chunks, agreed.SLAB):
            stop = min(start + agreed.SLAB, chunks)
            mean = self._mean(packets, weights, slice(start, stop))
            if self.momentum:
                under = slice(chunks + start, chunks + stop)
                mean = self._nesterov(mean, before[under], out[under])
            mean *= np.float32(self.alpha)
            np.subtract(before[start:stop], mean, out=out[start:stop])

    def _nesterov(
        self, mean: Coefficients, velocity: Coefficients, out: Coefficients
    ) -> Coefficients:
        """v' = μ·v + U to `out`; U + μ·v'."""
        factor = np.float32(self.momentum)
        np.multiply(velocity, factor, out=out)
        np.add(out, mean, out=out)
        step: Coefficients = out * factor
        step += mean
        return step

    def _mean(
        self, packets: Sequence[Sparse], weights: Sequence[float], slab: slice
    ) -> Coefficients:
        """Of all contributors, whose weights add up to 1, or of each coefficient's senders."""
        total = np.zeros((slab.stop - slab.start, CHUNK), np.float32)
        sent = np.zeros_like(total) if self.mean_over == "senders" else None
        rows = np.arange(len(total))[:, None]
        for packet, weight in zip(packets, weights, strict=True):
            share = np.float32(weight)
            if packet.k == CHUNK:  # every coefficient, in order
                total += share * packet.value[slab]
            else:
                total[rows, packet.index[slab]] += share * packet.value[slab]
            if sent is not None:
                sent[rows, packet.index[slab]] += share
        if sent is not None:
            np.divide(total, sent, out=total, where=sent > 0)
        return total
