"""The built-in task `lm`: a small GPT that learns Python source, byte by byte.

Needs no download and no tokenizer. At its default size it learns visibly within a minute on one CPU
core.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F

from demoloco.config import Scalar
from demoloco.errors import ConfigError
from demoloco.task.corpus import Text, load
from demoloco.task.port import Shard

BYTES = 256
HELD_OUT_BYTES = 8_192  # evaluated: enough to compare rounds, little enough for one CPU core


class LanguageModel:
    """Next-byte prediction on the standard library of CPython; the loss is in nats per byte."""

    defaults: ClassVar[dict[str, Scalar]] = {
        "inner_steps": 50,
        "batch_size": 8,
        "learning_rate": 3e-3,
        "warmup_rounds": 2,
        "decay_rounds": 200,
        "evaluate_every": 2,
    }

    def __init__(
        self, depth: int = 4, width: int = 128, heads: int = 4, context: int = 128
    ) -> None:
        _check(depth, width, heads, context)
        self.depth, self.width, self.heads, self.context = depth, width, heads, context
        self.unit = f"sequences of {context} bytes"

    def model(self) -> nn.Module:
        return GPT(self.depth, self.width, self.heads)

    def batches(self, shard: Shard, start: int) -> Iterator[Tensor]:
        """Windows of context + 1 bytes at random places, int64 (batch, context + 1)."""
        train, _ = load()
        end, batch = len(train) - self.context, start
        while True:
            stream = shard.generator(batch)
            places = torch.randint(end, (shard.batch_size,), generator=stream)
            yield self._windows(train, places.numpy()).to(shard.device, non_blocking=True)
            batch += 1

    def loss(self, model: nn.Module, batch: Tensor) -> Tensor:
        logits = model(batch[:, :-1])
        return F.cross_entropy(logits.flatten(0, 1).float(), batch[:, 1:].flatten())

    def evaluate(self, model: nn.Module, device: torch.device) -> float:
        """Mean loss over windows spread evenly over the held-out files."""
        _, held_out = load()
        count = max(1, HELD_OUT_BYTES // self.context)
        offsets = np.linspace(0, len(held_out) - self.context - 1, count).astype(np.int64)
        batches = torch.split(self._windows(held_out, offsets), 32)
        losses = [float(self.loss(model, batch.to(device))) * len(batch) for batch in batches]
        return sum(losses) / count

    def _windows(self, text: Text, offsets: NDArray[np.int64]) -> Tensor:
        picked = text[offsets[:, None] + np.arange(self.context + 1)]
        return torch.from_numpy(picked.astype(np.int64))


class GPT(nn.Module):
    """A decoder-only transformer: rotary positions, RMSNorm, squared ReLU, no biases."""

    def __init__(self, depth: int, width: int, heads: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(BYTES, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(depth))
        self.head = nn.Linear(width, BYTES, bias=False)
        for name, weight in self.named_parameters():
            # What a block adds starts small, so that depth does not change the scale of the sum.
            shrink = math.sqrt(2 * depth) if name.endswith("out.weight") else 1.0
            nn.init.normal_(weight, std=0.02 if name == "head.weight" else width**-0.5 / shrink)

    def forward(self, tokens: Tensor) -> Tensor:
        """Shapes: tokens (batch, time) int64 -> logits (batch, time, 256)."""
        x = norm(self.embed(tokens))
        turn = rotation(tokens.shape[1], self.blocks[0].head_width, x.device)  # type: ignore[arg-type]
        for block in self.blocks:
            x = block(x, turn)
        return self.head(norm(x))  # type: ignore[no-any-return]


class Block(nn.Module):
    """Attention, then a feed-forward net, each on the normed sum of all before it."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads, self.head_width = heads, width // heads
        self.attention_in = nn.Linear(width, 3 * width, bias=False)
        self.attention_out = nn.Linear(width, width, bias=False)
        self.feed_in = nn.Linear(width, 4 * width, bias=False)
        self.feed_out = nn.Linear(4 * width, width, bias=False)

    def forward(self, x: Tensor, turn: tuple[Tensor, Tensor]) -> Tensor:
        x = x + self.attention_out(self._attend(norm(x), turn))
        return x + self.feed_out(F.relu(self.feed_in(norm(x))).square())  # type: ignore[no-any-return]

    def _attend(self, x: Tensor, turn: tuple[Tensor, Tensor]) -> Tensor:
        batch, time, width = x.shape
        split = self.attention_in(x).view(batch, time, 3, self.heads, self.head_width)
        query, key, value = split.permute(2, 0, 3, 1, 4)  # each (batch, heads, time, head width)
        query, key = rotate(norm(query), turn), rotate(norm(key), turn)
        seen = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        return seen.transpose(1, 2).reshape(batch, time, width)


def norm(x: Tensor) -> Tensor:
    """RMSNorm over the last dimension."""
    return F.rms_norm(x, (x.shape[-1],))


def rotation(time: int, width: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Cosine and sine of every position's angles: two of (time, width / 2)."""
    speeds = 10_000.0 ** (-torch.arange(0, width, 2, device=device) / width)
    angles = torch.outer(torch.arange(time, device=device), speeds)
    return angles.cos(), angles.sin()


def rotate(x: Tensor, turn: tuple[Tensor, Tensor]) -> Tensor:
    """Turn the pairs (x[i], x[i + width / 2]) by their position's angle."""
    cos, sin = (part.to(x.dtype) for part in turn)
    left, right = x.chunk(2, dim=-1)
    return torch.cat((left * cos - right * sin, right * cos + left * sin), dim=-1)


def _check(depth: int, width: int, heads: int, context: int) -> None:
    limits = {
        "depth": (depth, 1, 64),
        "width": (width, 64, 8192),
        "heads": (heads, 1, 128),
        "context": (context, 8, 8192),
    }
    for name, (value, low, high) in limits.items():
        if type(value) is not int or not low <= value <= high:
            raise ConfigError(
                f"task.{name} is {value!r}\nfix: give a whole number from {low} to {high}"
            )
    if width % 64:
        near = max(64, round(width / 64) * 64)
        raise ConfigError(
            f"task.width is {width}, not a multiple of 64\nfix: --set task.width={near}"
        )
    if width % (2 * heads):
        near = max(h for h in range(1, heads + 1) if width % (2 * h) == 0)
        raise ConfigError(
            f"task.heads is {heads}: {width} does not divide\nfix: --set task.heads={near}"
        )
