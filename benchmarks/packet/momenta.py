"""Real momenta: what nodes that train, tell and follow the agreed state owe after some rounds."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from benchmarks.packet.models import Size
from demoloco.codec.chunks import Stack
from demoloco.codec.dct import dct
from demoloco.codec.layout import CHUNK, Layout, layout_of
from demoloco.codec.packet import PacketSpec, decode
from demoloco.outer.agreed import advance
from demoloco.outer.methods import Decoupled
from demoloco.task.lm import LanguageModel
from demoloco.task.port import Shard
from demoloco.types import TensorShape
from demoloco.worker.saved import state_of

LADDER = (8, 16, 32, 64, 128, 256, 512)
TRAINED_K = 64
RATE = 2e-3


@dataclass(frozen=True, slots=True)
class Momenta:
    """A swarm at the end of a round's training: the agreed state, and every node's own tensors."""

    layout: Layout
    agreed: NDArray[np.float32]
    own: Sequence[Mapping[str, Tensor]]

    def spec(self, bits: int) -> PacketSpec:
        """What packets of this model have in common."""
        return PacketSpec.of(self.layout, bits=bits, ladder=LADDER)


class _Node:
    def __init__(self, size: Size, number: int) -> None:
        self.model = size.build()
        self.tensors = {
            name: tensor
            for name, tensor in state_of(self.model).items()
            if tensor.is_floating_point()
        }
        self._optimizer = torch.optim.AdamW(self.model.parameters(), lr=RATE)
        self._task = LanguageModel()
        shard = Shard(0, str(number), size.batch, torch.device("cpu"))
        self._batches: Iterator[Tensor] = self._task.batches(shard, 0)

    def train(self, steps: int) -> None:
        for _ in range(steps):
            loss = self._task.loss(self.model, next(self._batches))
            loss.backward()  # type: ignore[no-untyped-call]
            nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
            self._optimizer.step()
            self._optimizer.zero_grad(set_to_none=True)


def grow(size: Size, nodes: int, say: Callable[[str], None]) -> Momenta:
    """Train `nodes` nodes with different data for the size's rounds, by method `decoupled`."""
    swarm = [_Node(size, number) for number in range(nodes)]
    shapes = swarm[0].tensors.items()
    layout = layout_of(TensorShape(name=name, shape=tuple(one.shape)) for name, one in shapes)
    spec, method = PacketSpec.of(layout, bits=2, ladder=LADDER), Decoupled()
    stacks = [Stack(node.tensors, layout) for node in swarm]
    agreed = dct(stacks[0][:]).view(-1, CHUNK).numpy()
    for number in range(size.rounds):
        say(f"{size.name}: round {number + 1} of {size.rounds}")
        for node in swarm:
            node.train(size.inner_steps)
        if number + 1 == size.rounds:
            break
        bodies = [method.contribute(one, agreed, None, spec, TRAINED_K).body for one in stacks]
        packets, after = [decode(body, spec) for body in bodies], np.empty_like(agreed)
        advance(agreed, packets, [1 / nodes] * nodes, 1.0, after)
        for stack, packet in zip(stacks, packets, strict=True):
            method.correct(stack, agreed, after, [packet], [], None)
        agreed = after
    return Momenta(layout, agreed, [node.tensors for node in swarm])
