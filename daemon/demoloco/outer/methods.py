"""How told and untold parts combine: the methods of a run, the whole algorithm on two pages. torch.

Notation: A the agreed state, x the own model, m = A − DCT(x) what was learnt and not told, q a
packet as its receivers read it, U the weighted mean of a manifest's packets, b what is borrowed.
Every node advances A ← A − α·U; a method says what a node tells and what becomes of its own model.
One law holds: learnt = told + owed, where what is owed is m, for a borrower m − b, and for `synced`
m + e, of which β < 1 forgets a part each round.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Protocol

import numpy as np
import torch
from torch import Tensor

from demoloco.codec.layout import CHUNK
from demoloco.codec.packet import PacketSpec, Sparse, encode
from demoloco.codec.topk import topk
from demoloco.errors import ConfigError
from demoloco.outer import own as parts
from demoloco.outer.own import Agreed, Own


@dataclass(frozen=True, slots=True, eq=False)
class Contribution:
    """A packet's body, and the own model and the method's memory after it was made."""

    body: bytes
    own: Own
    memory: Tensor | None


class Method(Protocol):
    """A strategy. `memory` is the method's own state, None at the start; it belongs in checkpoints.

    Nothing that is passed in is written to but an own model that is a Stack, which moves in place;
    results may be the very objects that came in.
    """

    lends: ClassVar[bool]
    """Whether what a node owes stays in its model, so that a joiner may start with it."""

    def contribute(
        self, own: Own, agreed: Agreed, memory: Tensor | None, spec: PacketSpec, k: int
    ) -> Contribution:
        """Make the packet of what is owed, its largest coefficients first.

        Raises: ValueError if the model is not finite.
        """
        ...

    def correct(
        self,
        own: Own,
        before: Agreed,
        after: Agreed,
        told: Sequence[Sparse],
        untold: Sequence[Sparse],
        memory: Tensor | None,
    ) -> tuple[Own, Tensor | None]:
        """The agreed state moved; the own packets in `told` entered its chain, `untold` left it.

        Serves every case: taken into a manifest or left out, rounds missed, a fork abandoned.
        """
        ...

    def restore(
        self,
        own: Own,
        agreed_then: Agreed,
        agreed_now: Agreed,
        told_since: Sequence[Sparse],
        memory: Tensor | None,
    ) -> tuple[Own, Tensor | None]:
        """Bring a checkpoint's model to the present; the packets told since are no longer owed."""
        ...


def method(name: str, *, beta: float) -> Method:
    """The method of a run by its name; `beta` is synced's. The run's alpha is in its agreed states.

    Raises: ConfigError for a name that is none.
    """
    if name == "decoupled":
        return Decoupled()
    if name == "synced":
        return Synced(beta)
    raise ConfigError(f"method is {name!r}; set it to decoupled or synced")


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
        largest = _nothing(len(own), k)
        for slab in parts.slabs(own):
            _put(largest, slab, topk(parts.slab_momentum(agreed, own, slab, memory), k))
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
        largest = _nothing(len(own), k)
        for slab in parts.slabs(own):
            owed[slab] += parts.slab_momentum(agreed, own, slab)
            _put(largest, slab, topk(owed[slab], k))
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


def _nothing(chunks: int, k: int) -> Sparse:
    return Sparse(np.empty((chunks, k), np.int32), np.empty((chunks, k), np.float32))


def _put(whole: Sparse, slab: slice, part: Sparse) -> None:
    whole.index[slab], whole.value[slab] = part.index, part.value
