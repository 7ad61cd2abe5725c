"""The inner loop: AdamW on one node's own batches. It knows of no round, packet or peer."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm as BatchNorm

from demoloco.config import RunConfig
from demoloco.errors import ConfigError
from demoloco.task.port import Shard, Task
from demoloco.worker.device import autocast
from demoloco.worker.faults import NotFinite, TaskFault, in_task

BETAS = (0.9, 0.95)
MAX_BAD_STEPS = 10  # in a row, before the model is to blame


@dataclass(frozen=True, slots=True)
class BadStep:
    """An inner step that was not taken: its loss or gradient was not finite."""

    batches: range  # those to blame, as `Task.batches` counts them
    loss: float
    in_a_row: int


def make_optimizer(model: nn.Module, config: RunConfig) -> torch.optim.Optimizer:
    """AdamW, fused where the device has it; vectors (gains, biases) do not decay."""
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    if not trained:
        raise ConfigError(
            "no parameter of the model is trained\nfix: leave requires_grad on for what is to learn"
        )
    groups = [
        {"params": [p for p in trained if p.ndim >= 2], "weight_decay": config.weight_decay},
        {"params": [p for p in trained if p.ndim < 2], "weight_decay": 0.0},
    ]
    fused = all(p.device.type in ("cpu", "cuda") and p.is_floating_point() for p in trained)
    return torch.optim.AdamW(
        [g for g in groups if g["params"]], lr=config.learning_rate, betas=BETAS, fused=fused
    )


@dataclass
class Trainer:
    """One model in training, and how far its data has been read."""

    task: Task
    model: nn.Module
    device: torch.device
    config: RunConfig
    accumulate: int
    node: str

    def __post_init__(self) -> None:
        if self.accumulate < 1 or self.config.batch_size % self.accumulate:
            fitting = [
                str(n)
                for n in range(1, self.config.batch_size + 1)
                if self.config.batch_size % n == 0
            ]
            raise ConfigError(
                f"a batch of {self.config.batch_size} does not divide into {self.accumulate} parts"
                f"\nfix: --accumulate {', '.join(fitting)}"
            )
        self.optimizer = make_optimizer(self.model, self.config)
        self.bad_steps = 0  # in a row
        self.seek(0)

    @property
    def trained(self) -> list[nn.Parameter]:
        """The parameters that are trained, in the optimizer's order."""
        return [one for group in self.optimizer.param_groups for one in group["params"]]

    @property
    def batches_read(self) -> int:
        """The number of the next micro-batch."""
        return self.samples_read // self.micro_batch

    @property
    def micro_batch(self) -> int:
        return self.config.batch_size // self.accumulate

    @property
    def shard(self) -> Shard:
        return Shard(self.config.seed, self.node, self.micro_batch, self.device)

    def forget_moments(self) -> None:
        """Start the inner optimizer afresh: its moments belong to another model."""
        self.optimizer = make_optimizer(self.model, self.config)
        self.bad_steps = 0

    def seek(self, samples: int) -> None:
        """Go on with the data after so many samples, even if micro-batches had another size."""
        first = math.ceil(samples / self.micro_batch)
        self.samples_read = first * self.micro_batch
        with in_task("batches"):
            self.batches: Iterator[Any] = iter(self.task.batches(self.shard, first))

    def step(self, learning_rate: float) -> float | BadStep:
        """One inner step; its loss, or why it was not taken.

        Raises: TaskFault in the task's own code, NotFinite if the model itself is not finite, or
        after MAX_BAD_STEPS bad steps in a row.
        """
        self.model.train()
        self.optimizer.zero_grad(set_to_none=True)
        statistics = _copies(b for b in self.model.buffers() if b.is_floating_point())
        losses: list[Tensor] = []
        for _ in range(self.accumulate):
            loss = self._loss(self._next_batch()) / self.accumulate
            loss.backward()  # type: ignore[no-untyped-call]
            losses.append(loss.detach())
        limit = self.config.clip_norm or math.inf
        norm = nn.utils.clip_grad_norm_(self.model.parameters(), limit)
        value = float(torch.stack(losses).sum())
        if not math.isfinite(value) or not bool(norm.isfinite()):
            _put_back(statistics)
            return self._skip(losses)
        for group in self.optimizer.param_groups:
            group["lr"] = learning_rate
        self.optimizer.step()
        self.bad_steps = 0
        return value

    def evaluate(self) -> float:
        """Loss on the held-out part, without touching the state of training."""
        self.model.eval()
        with torch.no_grad(), variances_not_negative(self.model), in_task("evaluate"):
            return float(self.task.evaluate(self.model, self.device))

    def _next_batch(self) -> Any:
        with in_task("batches"):
            batch = next(self.batches)
        self.samples_read += self.micro_batch
        return batch

    def _loss(self, batch: Any) -> Tensor:
        with in_task("loss"), autocast(self.device):
            loss = self.task.loss(self.model, batch)
        if not isinstance(loss, Tensor) or loss.numel() != 1 or not loss.requires_grad:
            raise TaskFault(
                "the task's loss is not one number with a gradient",
                "return the batch's mean loss as a tensor",
            )
        return loss.float().reshape(())

    def _skip(self, losses: list[Tensor]) -> BadStep:
        self.optimizer.zero_grad(set_to_none=True)
        self.bad_steps += 1
        first = self.batches_read - self.accumulate
        bad = [first + n for n, loss in enumerate(losses) if not bool(loss.isfinite())]
        to_blame = range(bad[0], bad[-1] + 1) if bad else range(first, self.batches_read)
        if not all(bool(parameter.isfinite().all()) for parameter in self.trained):
            raise NotFinite(f"the model is not finite, seen at batch {first}")
        if self.bad_steps >= MAX_BAD_STEPS:
            raise NotFinite(
                f"{self.bad_steps} inner steps in a row, up to batch {to_blame[-1]}, had no finite"
                " loss or gradient"
            )
        return BadStep(to_blame, float(torch.stack(losses).sum()), self.bad_steps)


@contextmanager
def variances_not_negative(model: nn.Module) -> Iterator[None]:
    """A packet's few coefficients may take a small running variance below zero.

    Nothing that is owed may be lost over it, so the model has its own values back afterwards.
    """
    kept = _copies(
        module.running_var
        for module in model.modules()
        if isinstance(module, BatchNorm) and module.running_var is not None
    )
    for variance, _ in kept:
        variance.clamp_(min=0)
    try:
        yield
    finally:
        _put_back(kept)


def _copies(tensors: Iterable[Tensor]) -> list[tuple[Tensor, Tensor]]:
    return [(tensor, tensor.clone()) for tensor in tensors]


def _put_back(copies: list[tuple[Tensor, Tensor]]) -> None:
    for tensor, copy in copies:
        tensor.copy_(copy)
