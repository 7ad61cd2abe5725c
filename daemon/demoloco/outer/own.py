"""What a node does with its own model: the arithmetic that all methods share. torch.

Rules: values in, values out, nothing that was passed in is written to but a Stack, which is the
model itself and moves in place; a slab of chunks at a time, so that beside model and agreed state
little memory is needed. Agreed states are in the DCT domain (chunks, 4096), own models in the
spatial one (chunks, 64, 64).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from demoloco.codec.chunks import Stack
from demoloco.codec.dct import idct_, minus_dct_
from demoloco.codec.layout import CHUNK, EDGE
from demoloco.codec.packet import Sparse
from demoloco.codec.slabs import slab_chunks, slabs_of

Agreed = Tensor | NDArray[np.float32]
"""An agreed state as a tensor, or as an array that may be a read-only map of a file."""

Own = Tensor | Stack
"""An own model: chunks, of which moving makes new ones, or a model's tensors, moved in place."""


def momentum(agreed: Agreed, own: Own) -> Tensor:
    """What I learnt and have not told: A − DCT(x), (chunks, 4096) on the model's device."""
    out = torch.empty((len(own), CHUNK), device=own.device)
    for slab in slabs(own):
        out[slab] = slab_momentum(agreed, own, slab)
    return out


def model_of(agreed: Agreed, like: Own, borrowed: Tensor | None = None) -> Own:
    """IDCT(A − b), in place of `like` or on its device: the model of a node that owes nothing."""

    def build(slab: slice) -> Tensor:
        coefficients = read(agreed, slab, like.device)
        return to_model(coefficients.clone() if borrowed is None else coefficients - borrowed[slab])

    return become(like, build)


def moved(
    own: Own,
    before: Agreed,
    after: Agreed,
    told: Sequence[Sparse] = (),
    untold: Sequence[Sparse] = (),
) -> Own:
    """x + IDCT(told − untold + after − before): the model moves with A, what was told leaves."""

    def move(slab: slice) -> Tensor:
        change = read(after, slab, own.device) - read(before, slab, own.device)
        add(change, told, slab)
        add(change, untold, slab, sign=-1.0)
        return to_model(change)

    return moved_by(own, move)


def restored(
    own: Own,
    then: Agreed,
    now: Agreed,
    told_since: Sequence[Sparse],
    borrowed: Tensor | None = None,
) -> Own:
    """IDCT(A_now − b − d), d = A_then − b − DCT(x) without the coefficients told since."""

    def restore(slab: slice) -> Tensor:
        owed = slab_momentum(then, own, slab, borrowed)
        forget(owed, told_since, slab)
        if borrowed is not None:
            owed += borrowed[slab]
        return to_model(read(now, slab, own.device) - owed)

    return become(own, restore)


def released(
    own: Own, borrowed: Tensor, lent: Sequence[Sparse], keep: float
) -> tuple[Own, Tensor | None]:
    """x + IDCT(b − b') and b', what `still_borrowed` leaves of b. What I owe, A − DCT(x) − b, is
    the same after as before."""
    left = still_borrowed(borrowed, lent, keep)

    def release(slab: slice) -> Tensor:
        gone = borrowed[slab].clone() if left is None else borrowed[slab] - left[slab]
        return to_model(gone)

    return moved_by(own, release), left


def still_borrowed(borrowed: Tensor, lent: Sequence[Sparse], keep: float) -> Tensor | None:
    """b without what its lenders told of it, times `keep`; None where nothing is left."""
    left = borrowed.clone()
    for slab in slabs(left):
        forget(left[slab], lent, slab)
        left[slab] *= keep
    return left if bool(left.any()) else None


# -- one slab ------------------------------------------------------------------------------------
def slabs(own: Own) -> Iterator[slice]:
    """The model's chunks in parts that are best worked on at a time."""
    return slabs_of(len(own), slab_chunks(own.device))


def slab_momentum(agreed: Agreed, own: Own, slab: slice, borrowed: Tensor | None = None) -> Tensor:
    """`momentum` of these chunks, without what is borrowed of it; a new tensor."""
    chunks = own[slab] if isinstance(own, Stack) else own[slab].detach().clone()
    owed = minus_dct_(chunks, read(agreed, slab, own.device).view(-1, EDGE, EDGE)).view(-1, CHUNK)
    return owed if borrowed is None else owed.sub_(borrowed[slab])


def read(agreed: Agreed, slab: slice, device: torch.device) -> Tensor:
    """These chunks of an agreed state on a device; not to be written to."""
    if isinstance(agreed, Tensor):
        return agreed[slab].to(device)
    part = agreed[slab]
    if not part.flags.writeable:  # torch wants no such memory, although nothing is written here
        part = part.copy()
    return torch.from_numpy(part).to(device)


def to_model(coefficients: Tensor) -> Tensor:
    """IDCT of (chunks, 4096), as chunks of the model, in place of the coefficients."""
    return idct_(coefficients.view(-1, EDGE, EDGE))


def add(coefficients: Tensor, packets: Sequence[Sparse], slab: slice, sign: float = 1.0) -> None:
    """Add the packets' coefficients, in place."""
    for packet in packets:
        index, value = _on(packet, slab, coefficients.device)
        coefficients.scatter_add_(1, index, value * sign)


def forget(coefficients: Tensor, packets: Sequence[Sparse], slab: slice) -> None:
    """Zero the coefficients that the packets hold, in place."""
    for packet in packets:
        coefficients.scatter_(1, _on(packet, slab, coefficients.device)[0], 0.0)


def _on(packet: Sparse, slab: slice, device: torch.device) -> tuple[Tensor, Tensor]:
    index = torch.from_numpy(packet.index[slab].astype(np.int64))
    value = torch.from_numpy(np.array(packet.value[slab]))
    return index.to(device), value.to(device)


# -- the whole model -----------------------------------------------------------------------------
@torch.no_grad()
def become(own: Own, compute: Callable[[slice], Tensor]) -> Own:
    """The model whose chunks are computed slab by slab: a new one, or the Stack itself."""
    out = own if isinstance(own, Stack) else _new(own)
    for slab in slabs(own):
        chunks = compute(slab).view(-1, EDGE, EDGE)
        if isinstance(out, Stack):
            out.write(slab, chunks)
        else:
            out[slab] = chunks
    return out


@torch.no_grad()
def moved_by(own: Own, change: Callable[[slice], Tensor]) -> Own:
    """The model with these changes to its chunks, slab by slab; a Stack in place."""
    if not isinstance(own, Stack):
        return become(own, lambda slab: own[slab] + change(slab))
    for slab in slabs(own):
        own.add(slab, change(slab).view(-1, EDGE, EDGE))
    return own


def _new(own: Tensor) -> Tensor:
    return torch.empty_like(own, memory_format=torch.contiguous_format, requires_grad=False)
