"""How told and untold parts combine: the methods of a run, the whole algorithm on two pages. torch.

Notation: A the agreed state, x the own model, m = A − DCT(x) what was learnt and not told, q a
packet as its receivers read it, U the weighted mean of a manifest's packets, b what is borrowed.
Every node advances A alike (`steps`), by −α·U where there is no velocity; a method says what
a node tells and what becomes of its own model.
One law holds: learnt = told + owed, where what is owed is m, for a borrower m − b, and for `synced`
m + e, of which β < 1 forgets a part each round. It does not hold for `paper`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from demoloco.codec.layout import CHUNK
from demoloco.codec.packet import PacketSpec, Sparse, encode
from demoloco.config import RunConfig
from demoloco.outer import own as parts
from demoloco.outer.method import Contribution, Method, nothing, put
from demoloco.outer.own import Agreed, Own
from demoloco.outer.paper import Paper


def method(config: RunConfig) -> Method:
    """The method of a run."""
    match config.method:
        case "synced":
            return Synced(config.beta)
        case "paper":
            return Paper(config.alpha, config.beta)
        case "diloco":
            return Diloco()
        case _:
            return Decoupled()


@dataclass(frozen=True, slots=True)
class Decoupled:
    """The told part is averaged, the untold part stays in the own model and goes on working.

    tell     q = top-k(m)
    correct  x ← x + IDCT(q − α·U); a packet that was left out stays in x and so in m

    The memory is b, (chunks, 4096): what a joiner started with of other nodes' owed parts. It is
    never told here, and goes by `outer.own.released`.
    """

    lends: ClassVar[bool] = True

    def contribute(
        self, own: Own, agreed: Agreed, memory: Tensor | None, spec: PacketSpec, k: int
    ) -> Contribution:
        largest = nothing(len(own), k)
        for slab in parts.slabs(own):
            put(largest, slab, parts.slab_momentum(agreed, own, slab, memory), k)
        return Contribution(encode(largest, spec)[0], own, memory)

    def correct(
        self,
        own: Own,
        before: Agreed,
        after: Agreed,
        told: Sequence[Sparse],
        untold: Sequence[Sparse],
        memory: Tensor | None,
    ) -> tuple[Own, Tensor | None]:
        return parts.moved(own, before, after, told, untold), memory

    def restore(
        self,
        own: Own,
        agreed_then: Agreed,
        agreed_now: Agreed,
        told_since: Sequence[Sparse],
        memory: Tensor | None,
    ) -> tuple[Own, Tensor | None]:
        return parts.restored(own, agreed_then, agreed_now, told_since, memory), memory


class Diloco(Decoupled):
    """Every coefficient is told; the agreed state advances with Nesterov momentum.

    tell     q = m to a few bits; what they cannot say stays in x and is owed
    correct  x ← x + IDCT(q + A' − A), which is IDCT(A') but for what was learnt meanwhile

    Source: DiLoCo, arXiv:2311.08105. The baseline, and for fast links.
    """


@dataclass(frozen=True, slots=True)
class Synced:
    """Error feedback with reset: what is owed waits outside the model, which starts from A.

    tell     e ← β·e + m, x ← IDCT(A), q = top-k(e)
    correct  e ← e − q, x ← x − IDCT(α·U); a packet that was left out stays in e
    Source: SparseLoCo, arXiv:2508.15706; here in the DCT domain. The memory is e, (chunks, 4096).
    """

    beta: float
    lends: ClassVar[bool] = False

    def contribute(
        self, own: Own, agreed: Agreed, memory: Tensor | None, spec: PacketSpec, k: int
    ) -> Contribution:
        owed = _zeros(own) if memory is None else memory * self.beta
        largest = nothing(len(own), k)
        for slab in parts.slabs(own):
            owed[slab] += parts.slab_momentum(agreed, own, slab)
            put(largest, slab, owed[slab], k)
        return Contribution(encode(largest, spec)[0], parts.model_of(agreed, own), owed)

    def correct(
        self,
        own: Own,
        before: Agreed,
        after: Agreed,
        told: Sequence[Sparse],
        untold: Sequence[Sparse],
        memory: Tensor | None,
    ) -> tuple[Own, Tensor | None]:
        owed = _zeros(own) if memory is None else memory.clone()
        for slab in parts.slabs(own):
            parts.add(owed[slab], told, slab, sign=-1.0)
            parts.add(owed[slab], untold, slab)
        return parts.moved(own, before, after), owed

    def restore(
        self,
        own: Own,
        agreed_then: Agreed,
        agreed_now: Agreed,
        told_since: Sequence[Sparse],
        memory: Tensor | None,
    ) -> tuple[Own, Tensor | None]:
        owed = None if memory is None else memory.clone()
        if owed is not None:
            for slab in parts.slabs(own):
                parts.forget(owed[slab], told_since, slab)
        return parts.restored(own, agreed_then, agreed_now, told_since), owed


def _zeros(own: Own) -> Tensor:
    return torch.zeros((len(own), CHUNK), device=own.device)
