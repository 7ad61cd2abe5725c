"""Tasks for tests of the worker: one that does everything a model can, and some that misbehave."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator

import torch
from torch import Tensor, nn

from demoloco.task.port import Shard


class Net(nn.Module):
    """Small, with all that a state may carry: tied weights, statistics, a counter, dropout."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(64, 64)
        self.norm = nn.BatchNorm1d(64)
        self.drop = nn.Dropout(0.1)
        self.last = nn.Linear(64, 64)
        self.last.weight = self.first.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.drop(torch.relu(self.norm(self.first(x)))))  # type: ignore[no-any-return]


class Tiny:
    """Learn a fixed linear map of 64 numbers from noisy examples."""

    unit = "vectors"
    defaults = {"inner_steps": 4}  # noqa: RUF012

    def __init__(self, fault: str = "") -> None:
        self.fault = fault
        self.truth = torch.randn(64, 64, generator=torch.Generator().manual_seed(1)) / 8

    def model(self) -> nn.Module:
        if self.fault == "no model":
            return "net"  # type: ignore[return-value]
        net = Net().requires_grad_(self.fault != "frozen")
        if self.fault == "infinite mask":
            net.register_buffer("mask", torch.full((4, 4), -torch.inf).triu(1))
        return net

    def batches(self, shard: Shard, start: int) -> Iterator[Tensor]:
        number = start
        while self.fault != "no batches":
            stream = shard.generator(number)
            batch = torch.randn(shard.batch_size, 64, generator=stream).to(shard.device)
            yield batch * float("inf") if self.fault == f"batch {number}" else batch
            number += 1

    def loss(self, model: nn.Module, batch: Tensor) -> Tensor:
        if self.fault == "loss":
            raise ValueError("shapes do not fit")
        if self.fault == "cuda memory":
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 9 GiB")
        if self.fault == "cpu memory":
            torch.empty(1 << 60)
        loss = nn.functional.mse_loss(model(batch), batch @ self.truth.to(batch.device))
        if self.fault == "loss of each":
            return nn.functional.mse_loss(model(batch), batch, reduction="none")
        return loss * float("nan") if self.fault == "nan" else loss

    def evaluate(self, model: nn.Module, device: torch.device) -> float:
        examples = torch.randn(256, 64, generator=torch.Generator().manual_seed(2)).to(device)
        return float(self.loss(model, examples))


class Spy(Tiny):
    """Tells as its unit what the worker's process is like."""

    def __init__(self) -> None:
        super().__init__()
        foreign = [name for name in ("hivemind", "grpc", "uvloop") if name in sys.modules]
        self.unit = f"{foreign} {os.environ.get('OMP_WAIT_POLICY')} {torch.get_num_threads()}"


class Even(Tiny):
    """Every batch is the same vector over and over, and nothing depends on the batch's size."""

    def model(self) -> nn.Module:
        return nn.Linear(64, 64)

    def batches(self, shard: Shard, start: int) -> Iterator[Tensor]:
        while True:
            yield torch.ones(shard.batch_size, 64, device=shard.device)


class Forking(Tiny):
    """Has a helper process, as data loaders do; its pid is the unit."""

    def __init__(self) -> None:
        super().__init__()
        helper = os.fork()
        if helper == 0:
            time.sleep(600)
            os._exit(0)
        self.unit = str(helper)
