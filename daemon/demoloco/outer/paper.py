"""The method of arXiv:2510.03371, as its authors published its code: a baseline that drifts. torch.

Notation as in `methods`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from demoloco.codec.layout import CHUNK
from demoloco.codec.packet import PacketSpec, Sparse, encode
from demoloco.outer import own as parts
from demoloco.outer.method import Contribution, nothing, put
from demoloco.outer.own import Agreed, Own


@dataclass(frozen=True, slots=True)
class Paper:
    """Each node adds what it learnt itself, and the rest of its momentum, to its own model alone:
    the models drift apart, and nothing pulls them together again.

    learn    Δ = θ − DCT(x)
    tell     δ ← β·δ + Δ, q = top-k(δ), θ ← θ − α·(Δ + β·δ), x ← IDCT(θ)
    correct  δ ← δ − q + U, θ and x move by α·β·(q − U)

    Source: arXiv:2510.03371 as its published code has it: there both lines are one step,
    δ ← β·δ + Δ − q + U, θ ← θ − α·(Δ + β·δ). The memory is δ, the momentum, and θ, where the last
    packet left the model: (2, chunks, 4096). A is what was told; it is nobody's model.

    The published code knows neither absence nor faults. Here who was left out, or was away, keeps
    its momentum and moves with A, and takes nothing of the mean into its momentum.
    """

    alpha: float
    beta: float
    lends: ClassVar[bool] = False

    @torch.no_grad()
    def contribute(
        self, own: Own, agreed: Agreed, memory: Tensor | None, spec: PacketSpec, k: int
    ) -> Contribution:
        shape = (2, len(own), CHUNK)
        made = torch.zeros(shape, device=own.device) if memory is None else memory.clone()
        largest = nothing(len(own), k)

        def tell(slab: slice) -> Tensor:
            if memory is None:  # it began on the agreed state
                made[1, slab] = parts.read(agreed, slab, own.device)
            learnt = parts.slab_momentum(made[1], own, slab)
            momentum = made[0, slab].mul_(self.beta).add_(learnt)
            put(largest, slab, momentum, k)
            anchor = made[1, slab].sub_(self.alpha * (learnt + self.beta * momentum))
            return parts.to_model(anchor.clone())

        model = parts.become(own, tell)
        return Contribution(encode(largest, spec)[0], model, made)

    @torch.no_grad()
    def correct(
        self,
        own: Own,
        before: Agreed,
        after: Agreed,
        told: Sequence[Sparse],
        untold: Sequence[Sparse],
        memory: Tensor | None,
    ) -> tuple[Own, Tensor | None]:
        if memory is None:
            return parts.moved(own, before, after), None
        ordinary = len(told) == 1 and not untold  # the step that is published
        follows = self.beta if ordinary else 1.0
        kept = memory.clone()

        def move(slab: slice) -> Tensor:
            change = parts.read(after, slab, own.device) - parts.read(before, slab, own.device)
            gone = torch.zeros_like(change)
            parts.add(gone, told, slab)
            parts.add(gone, untold, slab, sign=-1.0)
            kept[0, slab] -= gone
            if ordinary:
                kept[0, slab] -= change / self.alpha
            way = follows * change + self.alpha * self.beta * gone
            kept[1, slab] += way
            return parts.to_model(way)

        return parts.moved_by(own, move), kept

    @torch.no_grad()
    def restore(
        self,
        own: Own,
        agreed_then: Agreed,
        agreed_now: Agreed,
        told_since: Sequence[Sparse],
        memory: Tensor | None,
    ) -> tuple[Own, Tensor | None]:
        model, kept = self.correct(own, agreed_then, agreed_now, (), (), memory)
        if kept is None:
            return model, None

        def move(slab: slice) -> Tensor:
            held = kept[0, slab].clone()
            parts.forget(kept[0, slab], told_since, slab)
            way = self.alpha * self.beta * (held - kept[0, slab])
            kept[1, slab] += way
            return parts.to_model(way)

        return parts.moved_by(model, move), kept
