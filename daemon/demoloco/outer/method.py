"""What a method is: what a node tells of what it learnt, and what becomes of its model. torch.

Rule: values in, values out; a method reads no clock, network or chance.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Protocol

import numpy as np
from torch import Tensor

from demoloco.codec.layout import CHUNK
from demoloco.codec.packet import PacketSpec, Sparse
from demoloco.codec.topk import topk
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


def nothing(chunks: int, k: int) -> Sparse:
    """Room for the coefficients of a packet, to be filled slab by slab."""
    return Sparse(np.empty((chunks, k), np.int32), np.empty((chunks, k), np.float32))


def put(whole: Sparse, slab: slice, coefficients: Tensor, k: int) -> None:
    """The k largest of each chunk of a slab; all of them, in order, need no choosing."""
    if k == CHUNK:
        whole.index[slab] = np.arange(CHUNK)
        whole.value[slab] = coefficients.cpu().numpy()
    else:
        part = topk(coefficients, k)
        whole.index[slab], whole.value[slab] = part.index, part.value
