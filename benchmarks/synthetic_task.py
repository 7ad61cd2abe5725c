"""A task of any size whose inner step takes a set time and hardly any CPU, for measuring what is
around training: a few large matrices, pulled to zero.

Rule: every element has a gradient of its own at every step, so each chunk has a momentum worth
telling; a step that the machine makes late is not made up for.
"""

from __future__ import annotations

import time
from collections.abc import Iterator

import torch
from torch import Tensor, nn

from demoloco.task.port import Shard

WIDTH = 2048
SCALE = 0.02


class Synthetic:
    """About `millions` million parameters; an inner step takes `pace_ms`."""

    unit = "samples"

    def __init__(self, millions: float = 1.0, pace_ms: float = 100.0) -> None:
        self._rows = max(2, round(float(millions) * 1e6 / WIDTH))
        self._pace = float(pace_ms) / 1000.0
        self._due = time.monotonic()

    def model(self) -> nn.Module:
        parts = min(4, self._rows // 2)
        rows = [self._rows // parts + (part < self._rows % parts) for part in range(parts)]
        return nn.ParameterList([SCALE * torch.randn(one, WIDTH) for one in rows])

    def batches(self, shard: Shard, start: int) -> Iterator[Tensor]:
        """How hard it is pulled: one number a sample."""
        while True:
            late = time.monotonic() - self._due
            if late < 0:
                time.sleep(-late)
            self._due += self._pace if late < self._pace else late + self._pace
            yield 1 + torch.rand(shard.batch_size, generator=shard.generator(start))
            start += 1

    def loss(self, model: nn.Module, batch: Tensor) -> Tensor:
        return batch.mean() * sum(0.5 * part.square().sum() for part in model.parameters())

    def evaluate(self, model: nn.Module, device: torch.device) -> float:
        return float(next(iter(model.parameters())).square().mean())
