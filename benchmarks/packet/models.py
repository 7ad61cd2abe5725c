"""The models whose momenta are measured: the built-in task's GPT in several sizes, and an odd one.

All learn the next byte of Python source, from a few bytes before it.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from demoloco.task.lm import BYTES, GPT

ROWS = 50257
TRIPLE = 257


@dataclass(frozen=True, slots=True)
class Size:
    """A model, and how long it is trained: batches of `batch` windows of 129 bytes."""

    name: str
    depth: int
    width: int
    batch: int
    inner_steps: int
    rounds: int

    def build(self) -> nn.Module:
        """The same model each time."""
        torch.manual_seed(0)
        if self.name == "odd":
            return Odd(self.width)
        return GPT(self.depth, self.width, self.width // 32)


SIZES = {
    size.name: size
    for size in (
        Size("1M", 4, 128, 4, 10, 4),
        Size("4M", 5, 256, 4, 8, 3),
        Size("26M", 8, 512, 2, 5, 2),
        Size("100M", 14, 768, 1, 4, 2),
        Size("odd", 0, 40, 2, 8, 3),
    )
}


class Odd(nn.Module):
    """Shapes that fit no chunk: 50257 rows of 40, 7×7 convolutions, vectors, a scalar, buffers."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(ROWS, width)
        self.first = nn.Conv2d(1, 50, 7)
        self.second = nn.Conv2d(50, 70, 7)
        self.norm = nn.BatchNorm2d(70)
        self.head = nn.Linear(70, BYTES)
        self.sharpness = nn.Parameter(torch.tensor(1.0))

    def forward(self, tokens: Tensor) -> Tensor:
        """Shapes: tokens (batch, time) int64 -> logits (batch, time, 256)."""
        older, old = F.pad(tokens, (2, -2)), F.pad(tokens, (1, -1))
        x = self.embed((tokens + TRIPLE * (old + TRIPLE * older)) % ROWS).unsqueeze(1)
        x = F.relu(self.first(F.pad(x, (0, 0, 6, 0))))
        x = F.relu(self.norm(self.second(F.pad(x, (0, 0, 6, 0)))))
        return self.head(x.mean(3).transpose(1, 2)) * self.sharpness  # type: ignore[no-any-return]
