"""Several nodes in one process: real packets, real agreed states, models that drift at will."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from demoloco.codec.dct import dct, idct
from demoloco.codec.packet import PacketSpec, Sparse, decode
from demoloco.outer.method import Method
from demoloco.outer.methods import Diloco
from demoloco.outer.steps import OuterStep

CHUNKS = 4


def coefficients(own: Tensor) -> NDArray[np.float32]:
    return dct(own).view(-1, 4096).numpy()


def dense(packets: list[Sparse]) -> NDArray[np.float64]:
    """The sum of packets, as full coefficients."""
    total = np.zeros((CHUNKS, 4096))
    for packet in packets:
        np.add.at(total, (np.arange(CHUNKS)[:, None], packet.index), packet.value)
    return total


@dataclass
class Node:
    """One node's own model, and a record of all that it learnt and told."""

    own: Tensor
    memory: Tensor | None = None
    packet: Sparse | None = None
    learnt: NDArray[np.float64] = field(default_factory=lambda: np.zeros((CHUNKS, 4096)))
    told: list[Sparse] = field(default_factory=list)

    def train(self, step: Tensor) -> None:
        """Move the model by `step`; its negative is this round's pseudo-gradient."""
        self.own = self.own + step
        self.learnt -= coefficients(step)


@dataclass
class Swarm:
    """Nodes on one chain; `states` holds the agreed state of each round, `whole` all its planes."""

    method: Method
    nodes: list[Node]
    states: list[NDArray[np.float32]]
    spec: PacketSpec
    step: OuterStep
    whole: list[NDArray[np.float32]]
    k: int = 64

    @classmethod
    def start(
        cls, method: Method, count: int, *, k: int = 64, bits: int = 2, **step: float | str
    ) -> Swarm:
        if isinstance(method, Diloco):
            k, bits = 4096, 8
        generator = torch.Generator().manual_seed(0)
        agreed = torch.randn((CHUNKS, 4096), generator=generator).numpy()
        model = idct(torch.from_numpy(agreed).view(-1, 64, 64))
        spec = PacketSpec((CHUNKS,), bits, (k,))
        outer = OuterStep(**{"alpha": 1.0, **step})
        whole = np.concatenate([agreed, *[np.zeros_like(agreed)] * (outer.planes - 1)])
        nodes = [Node(model.clone()) for _ in range(count)]
        return cls(method, nodes, [agreed], spec, outer, [whole], k)

    def contribute(self) -> None:
        """Every node makes the packet of the open round."""
        for node in self.nodes:
            made = self.method.contribute(node.own, self.states[-1], node.memory, self.spec, self.k)
            node.own, node.memory = made.own, made.memory
            node.packet = decode(made.body, self.spec)

    def commit(self, weights: dict[int, float]) -> None:
        """Close the round with these nodes' packets; the others are left out."""
        packets = [self.nodes[number].packet for number in weights]
        whole = np.empty_like(self.whole[-1])
        self.step.advance(self.whole[-1], packets, list(weights.values()), whole)
        self.whole.append(whole)
        self.states.append(whole[:CHUNKS])
        for number, node in enumerate(self.nodes):
            told = [node.packet] if number in weights else []
            self.move(node, self.states[-2], self.states[-1], told, [])

    def move(
        self,
        node: Node,
        before: NDArray[np.float32],
        after: NDArray[np.float32],
        told: list[Sparse],
        untold: list[Sparse],
    ) -> None:
        """Bring one node from one agreed state to another."""
        node.own, node.memory = self.method.correct(
            node.own, before, after, told, untold, node.memory
        )
        node.told = [packet for packet in [*node.told, *told] if packet not in untold]

    def owed(self, node: Node) -> NDArray[np.float64]:
        """What the node has learnt and not told, wherever its method keeps it."""
        owed = self.states[-1].astype(np.float64) - coefficients(node.own)
        return owed if node.memory is None else owed + node.memory.numpy()


def drift(node: int, number: int, size: float = 0.01) -> Tensor:
    """A seeded step of training, different for every node and round."""
    generator = torch.Generator().manual_seed(1000 * node + number)
    return torch.randn((CHUNKS, 64, 64), generator=generator) * size
