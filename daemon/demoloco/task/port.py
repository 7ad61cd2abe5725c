"""What a user brings: a model, batches, a loss, an evaluation. Four methods make a task.

A task is a class; its keyword arguments are the run's `task_args`. Optional class attributes:
`defaults`, a dict of RunConfig fields that suit the task, and `unit`, the name of what a sample is.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from blake3 import blake3
from torch import Tensor, nn


@dataclass(frozen=True, slots=True)
class Shard:
    """What a node's data order follows from: equal on restart, different on every node."""

    seed: int  # the run's
    node: str  # the peer id
    batch_size: int
    device: torch.device

    def generator(self, batch: int) -> torch.Generator:
        """Random numbers (on the CPU) for the n-th batch: a function of (seed, node, n) alone."""
        key = blake3(f"{self.seed} {self.node} {batch}".encode()).digest(length=8)
        return torch.Generator().manual_seed(int.from_bytes(key, "little") >> 1)


class Task(Protocol):
    """See the module's text; the README shows a whole one, `lm.py` is another."""

    def model(self) -> nn.Module:
        """A freshly initialised model; torch's seed is set before the call, so all nodes could
        build the same."""
        ...

    def batches(self, shard: Shard, start: int) -> Iterator[Any]:
        """Endless training batches of `shard.batch_size` samples from the `start`-th on, on
        `shard.device`.

        Batch n must be the same after a restart: derive it from (seed, node, n).
        """
        ...

    def loss(self, model: nn.Module, batch: Any) -> Tensor:
        """Mean loss of a batch: scalar, with gradient."""
        ...

    def evaluate(self, model: nn.Module, device: torch.device) -> float:
        """Loss on the held-out part, the same part on every node; called without gradient and in
        eval mode."""
        ...
