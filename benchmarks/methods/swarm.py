"""All nodes of a run in one process: inner steps by the product's trainer, then a round's end.

Rule: what a setting says is all that a curve follows from, on one kind of machine bit for bit.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from benchmarks.methods.exchange import (
    Coefficients,
    Exchange,
    coefficients,
    exchange_of,
    mean,
    run_config,
)
from benchmarks.methods.inner import optimizer_of
from benchmarks.methods.lowrank import LOW_RANK
from benchmarks.methods.settings import CODED, Setting
from benchmarks.methods.subjects import subject_of
from benchmarks.methods.variants import VARIANTS, Sensitivity
from demoloco.codec.chunks import to_chunks, write_chunks
from demoloco.codec.dct import idct
from demoloco.codec.layout import EDGE, Layout, layout_of
from demoloco.codec.packet import PacketSpec
from demoloco.config import RunConfig
from demoloco.task.port import Task
from demoloco.types import Round, TensorShape
from demoloco.worker.inner import Trainer
from demoloco.worker.saved import state_of
from demoloco.worker.schedule import learning_rate

POINTS = 10  # of a curve
CPU = torch.device("cpu")


@dataclass(frozen=True)
class Point:
    """Where a run is. Losses are of the held-out part; distances are relative to the mean model."""

    round: int
    samples: int
    told_bytes: float  # by one node, from the start
    own: float  # loss of a node's own model, the mean of the nodes that were asked
    merged: float  # of the mean of all models
    agreed: float  # of the agreed state
    apart: float  # root mean square distance of the models from their mean
    behind: float  # distance of the agreed state from it
    accuracy: float | None = None  # of the mean of all models, where the subject has one


@dataclass
class Course:
    """A finished run."""

    points: list[Point] = field(default_factory=list)
    parameters: int = 0
    cpu_seconds: float = 0.0

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def rate_at(config: RunConfig, step: int) -> float:
    """Of inner step 0, 1, …"""
    return learning_rate(config, Round(step + 1), 1.0)


class Node:
    """One node's model, data and inner optimizer."""

    def __init__(self, task: Task, setting: Setting, number: int) -> None:
        torch.manual_seed(setting.seed)  # the same first model everywhere
        self.model: nn.Module = task.model()
        self.config = run_config(setting)
        self.trainer = Trainer(task, self.model, CPU, self.config, 1, f"node-{number}")
        self.trainer.optimizer = optimizer_of(setting.inner, self.model, self.config)
        self.tensors = {
            name: one for name, one in state_of(self.model).items() if one.is_floating_point()
        }
        self.layout: Layout = layout_of(
            TensorShape(name=name, shape=tuple(one.shape)) for name, one in self.tensors.items()
        )

    def train(self, steps: range) -> None:
        for step in steps:
            self.trainer.step(rate_at(self.config, step))

    def read(self) -> Tensor:
        return to_chunks(self.tensors, self.layout)

    def write(self, chunks: Tensor) -> None:
        write_chunks(chunks, self.tensors, self.layout)

    def sensitivity(self) -> Tensor:
        """Of each chunk, (chunks, 1), relative to all: the fourth root of Adam's second moment,
        so the square root of what it takes for curvature."""
        moments = self.trainer.optimizer.state
        tensors = {
            name: moments[parameter]["exp_avg_sq"]
            for name, parameter in self.model.named_parameters()
            if parameter in moments
        }
        whole = {
            name: tensors.get(name, torch.zeros_like(one)) for name, one in self.tensors.items()
        }
        chunks = to_chunks(whole, self.layout).flatten(1).sqrt().mean(1, keepdim=True).sqrt()
        return chunks / chunks.mean()

    def loss(self, chunks: Tensor) -> float:
        """Held-out loss of a model; the node's own stays."""
        own = self.read()
        self.write(chunks)
        found = self.trainer.evaluate()
        self.write(own)
        return found


class Swarm:
    """The nodes, the agreed state, and what has been told."""

    def __init__(self, setting: Setting) -> None:
        self.setting = setting
        self.task = subject_of(setting.subject, setting.size)
        self.nodes = [Node(self.task, setting, number) for number in range(setting.nodes)]
        self.layout = self.nodes[0].layout
        self.agreed: Coefficients = coefficients(self.nodes[0].read()).numpy()
        if setting.method in CODED:  # a worker begins with the model that the state holds
            for node in self.nodes:
                node.write(idct(torch.from_numpy(self.agreed).view(-1, EDGE, EDGE)))
        self.exchange: Exchange = self._exchange()
        self.round = 0
        self.told_bytes = 0.0

    def _exchange(self) -> Exchange:
        setting = self.setting
        if not setting.variant:
            return exchange_of(setting, self.layout)
        spec = PacketSpec.of(self.layout, bits=setting.bits, ladder=(setting.k,))
        sensitivity: Sensitivity = lambda node: self.nodes[node].sensitivity()  # noqa: E731
        if setting.variant in LOW_RANK:
            return LOW_RANK[setting.variant](setting, spec, sensitivity, self.layout)
        return VARIANTS[setting.variant](setting, spec, sensitivity)

    def play_round(self) -> None:
        """H inner steps of every node, then the round's end."""
        first = self.round * self.setting.inner_steps
        for node in self.nodes:
            node.train(range(first, first + self.setting.inner_steps))
        outcome = self.exchange.close([node.read() for node in self.nodes], self.agreed)
        for node, own in zip(self.nodes, outcome.owns, strict=True):
            node.write(own)
        self.agreed = outcome.agreed
        self.told_bytes += outcome.told_bytes
        self.round += 1

    def look(self, asked: int = 1) -> Point:
        """Evaluate; `asked` nodes say their own loss."""
        owns = [node.read() for node in self.nodes]
        merged, agreed = mean(owns), idct(torch.from_numpy(self.agreed).view(-1, EDGE, EDGE))
        size = float(merged.norm())
        apart = float(np.sqrt(np.mean([float((own - merged).norm()) ** 2 for own in owns]))) / size
        behind = float((agreed - merged).norm()) / size
        node = self.nodes[0]
        merged_loss = node.loss(merged)
        accuracy = getattr(self.task, "accuracy", None)
        equal = apart < 1e-6
        return Point(
            round=self.round,
            samples=self.round
            * self.setting.inner_steps
            * self.setting.batch_size
            * len(self.nodes),
            told_bytes=self.told_bytes,
            own=merged_loss if equal else _mean([node.loss(own) for own in owns[:asked]]),
            merged=merged_loss,
            agreed=merged_loss if behind < 1e-6 else node.loss(agreed),
            apart=apart,
            behind=behind,
            accuracy=accuracy,
        )


def play(setting: Setting) -> Course:
    """Carry a run out."""
    began = time.process_time()
    swarm = Swarm(setting)
    course = Course(parameters=swarm.layout.parameters)
    for number in range(1, setting.rounds + 1):
        swarm.play_round()
        if number == setting.rounds:
            course.points.append(swarm.look(asked=setting.nodes))
        elif is_point(number, setting.rounds):
            course.points.append(swarm.look())
    course.cpu_seconds = time.process_time() - began
    return course


def is_point(number: int, rounds: int) -> bool:
    """Whether a curve has a point after this round."""
    return number % max(1, rounds // POINTS) == 0 or number == rounds


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)
