"""How a round's end changes models and agreed state: the product's coded methods, dense references.

Rule: what the product has is the product's own code; models are stacks of chunks, as in `outer`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from benchmarks.methods.settings import CODED, Setting
from demoloco.codec.dct import dct, idct
from demoloco.codec.layout import CHUNK, EDGE, Layout
from demoloco.codec.packet import PacketSpec, Sparse, decode
from demoloco.config import RunConfig
from demoloco.outer.method import Method
from demoloco.outer.methods import method
from demoloco.outer.steps import OuterStep

Coefficients = NDArray[np.float32]
FLOAT_BYTES = 4


@dataclass(frozen=True)
class Outcome:
    """After a round: every node's model, the agreed state, and the bytes that one node told."""

    owns: list[Tensor]
    agreed: Coefficients
    told_bytes: float


class Exchange(Protocol):
    """The end of a round; what it remembers is its own."""

    def close(self, owns: Sequence[Tensor], agreed: Coefficients) -> Outcome:
        """All nodes tell and correct; nothing that is passed in is written to."""
        ...


class Coded:
    """Packets of few coefficients: `method` as nodes use it, all nodes in every manifest."""

    def __init__(self, method: Method, spec: PacketSpec, k: int, step: OuterStep) -> None:
        self.method, self.spec, self.k, self.step = method, spec, k, step
        self.memories: list[Tensor | None] = []
        self.velocity = np.zeros(((step.planes - 1) * spec.chunks, CHUNK), np.float32)

    def close(self, owns: Sequence[Tensor], agreed: Coefficients) -> Outcome:
        memories = self.memories or [None] * len(owns)
        made = [
            self.method.contribute(own, agreed, memory, self.spec, self.k)
            for own, memory in zip(owns, memories, strict=True)
        ]
        packets = [decode(one.body, self.spec) for one in made]
        after = self._advance(agreed, packets)
        corrected = [
            self.method.correct(one.own, agreed, after, [packet], [], one.memory)
            for one, packet in zip(made, packets, strict=True)
        ]
        self.memories = [memory for _, memory in corrected]
        told = sum(len(one.body) for one in made) / len(made)
        return Outcome([own[:] for own, _ in corrected], after, told)

    def _advance(self, agreed: Coefficients, packets: Sequence[Sparse]) -> Coefficients:
        whole = np.concatenate([agreed, self.velocity])
        self.step.advance(whole, packets, [1 / len(packets)] * len(packets), whole)
        self.velocity = whole[len(agreed) :]
        return whole[: len(agreed)]


class Dense:
    """Every parameter as float32: the mean of all models is a step of Nesterov's SGD from the last.

    Rate 1 and momentum 0 are local averaging; others are DiLoCo, arXiv:2311.08105.
    """

    def __init__(self, layout: Layout, rate: float = 1.0, momentum: float = 0.0) -> None:
        self.rate, self.momentum = rate, momentum
        self.told_bytes = layout.parameters * FLOAT_BYTES
        self.velocity: Tensor | None = None

    def close(self, owns: Sequence[Tensor], agreed: Coefficients) -> Outcome:
        before = torch.from_numpy(agreed)
        change = before - coefficients(mean(owns))
        self.velocity = change if self.velocity is None else self.momentum * self.velocity + change
        after = before - self.rate * (change + self.momentum * self.velocity)
        model = idct(after.view(-1, EDGE, EDGE))
        return Outcome([model.clone() for _ in owns], after.numpy(), self.told_bytes)


class Nothing:
    """A node alone: its model is what would be agreed."""

    def close(self, owns: Sequence[Tensor], agreed: Coefficients) -> Outcome:
        return Outcome(list(owns), coefficients(mean(owns)).numpy(), 0)


def exchange_of(setting: Setting, layout: Layout) -> Exchange:
    """The end of a round in this setting; variants are those of `variants.py`."""
    match setting.method:
        case "alone":
            return Nothing()
        case "local":
            return Dense(layout)
        case "diloco":
            return Dense(layout, setting.outer_rate, setting.outer_momentum)
    config = run_config(setting)
    spec = PacketSpec.of(layout, bits=config.bits, ladder=config.ladder)
    return Coded(method(config), spec, config.k, OuterStep.of(config))


def run_config(setting: Setting) -> RunConfig:
    """A node's settings; an inner step is what the schedule counts, whatever H is."""
    coded = setting.method in CODED
    return RunConfig(
        method=setting.method if coded else "decoupled",
        k=setting.k,
        ladder=(setting.k,),
        bits=setting.bits,
        alpha=setting.alpha,
        beta=setting.beta,
        outer_momentum=setting.outer_momentum if coded else 0.0,
        mean_over=setting.mean_over,
        batch_size=setting.batch_size,
        learning_rate=setting.learning_rate,
        warmup_rounds=setting.warmup,
        decay_rounds=setting.steps,
        seed=setting.seed,
    )


def mean(owns: Sequence[Tensor]) -> Tensor:
    """Of all models, densely."""
    return torch.stack(list(owns)).mean(0)


def coefficients(own: Tensor) -> Tensor:
    """DCT(x), (chunks, 4096)."""
    return dct(own).reshape(-1, CHUNK)
