"""The k largest coefficients of each chunk, exactly, and the same ones on every device. torch.

Rule: by magnitude; ties go to the lower index; indices ascend.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from demoloco.codec.packet import Sparse
from demoloco.codec.slabs import by_threads, slab_chunks, slabs_of

MIN_GROUPS = 256  # into which a chunk is folded for the bound
GROUPS_PER_KEPT = 8

Floats = NDArray[np.float32]
Magnitudes = NDArray[np.int32]
"""Bits of float32 without the sign: in the order of the magnitudes, and cheaper to compare."""

_MAGNITUDE = np.int32(0x7FFFFFFF)
_INFINITE = 0x7F800000  # and above: not a number


def topk(coefficients: Tensor, k: int) -> Sparse:
    """Keep the k largest coefficients of each chunk; ties go to the lower index.

    Shapes: coefficients (chunks, size) float32 -> index and value (chunks, k), index ascending.
    Raises: ValueError if k is not in 1..size, or for a coefficient that is not finite.
    Source: DeMo, arXiv:2411.19870; the order of indices is ours.
    """
    chunks, size = coefficients.shape
    if not 1 <= k <= size:
        raise ValueError(f"k is {k}, not in 1..{size}")
    sparse = Sparse(np.empty((chunks, k), np.int32), np.empty((chunks, k), np.float32))
    rows = coefficients.detach()

    def select(slab: slice) -> None:
        chosen = _on_cpu if rows.device.type == "cpu" else _on_device
        sparse.index[slab], sparse.value[slab] = chosen(rows[slab], k)

    if rows.device.type == "cpu":
        by_threads(select, chunks)
    else:
        for slab in slabs_of(chunks, slab_chunks(rows.device)):
            select(slab)
    return sparse


def _on_device(part: Tensor, k: int) -> tuple[NDArray[np.int64], Floats]:
    magnitudes = part.abs()
    if not bool(magnitudes.isfinite().all()):
        raise ValueError("a coefficient is not finite: the model has diverged")
    threshold = magnitudes.topk(k, dim=1).values[:, -1:]
    larger, equal = magnitudes > threshold, magnitudes == threshold
    places = k - larger.sum(1, keepdim=True)
    kept = larger | (equal & (equal.cumsum(1) <= places))
    index = kept.nonzero()[:, 1].view(-1, k)
    return index.cpu().numpy(), part.gather(1, index).cpu().numpy()


def _on_cpu(part: Tensor, k: int) -> tuple[NDArray[np.int64], Floats]:
    values = np.ascontiguousarray(part.numpy())
    chunks, size = values.shape
    magnitudes = values.view(np.int32) & _MAGNITUDE
    if k == size:
        _check_finite(magnitudes)
        return np.broadcast_to(np.arange(size), values.shape), values
    mask = magnitudes >= _lower_bound(magnitudes, k)[:, None]
    flat = np.flatnonzero(mask)
    if len(flat) > chunks * k:
        counts = np.bincount(flat // size, minlength=chunks)
        flat = flat[_largest(magnitudes.ravel().take(flat), counts, k)]
    kept = flat.reshape(chunks, k)
    return kept - np.arange(0, chunks * size, size)[:, None], values.ravel().take(kept)


def _lower_bound(magnitudes: Magnitudes, k: int) -> Magnitudes:
    """For each chunk, a number that at least k of its magnitudes reach, and few more.

    The k-th largest of the maxima of groups is one, and much cheaper to find than the k-th largest.
    """
    chunks, size = magnitudes.shape
    groups = max(MIN_GROUPS, GROUPS_PER_KEPT << (k - 1).bit_length())
    if groups < size and size % groups == 0:
        magnitudes = magnitudes.reshape(chunks, -1, groups).max(axis=1)
    _check_finite(magnitudes)
    return _kth_largest(magnitudes, k)


def _check_finite(magnitudes: Magnitudes) -> None:
    if magnitudes.max() >= _INFINITE:
        raise ValueError("a coefficient is not finite: the model has diverged")


def _largest(candidates: Magnitudes, counts: NDArray[np.int64], k: int) -> NDArray[np.bool_]:
    """Which of the candidates, counts[i] of chunk i one after the other, are kept."""
    there = np.arange(counts.max()) < counts[:, None]
    table = np.full(there.shape, -1, np.int32)
    table[there] = candidates
    threshold = _kth_largest(table, k)[:, None]
    kept: NDArray[np.bool_] = table >= threshold
    if np.count_nonzero(kept) > len(counts) * k:
        larger, equal = table > threshold, table == threshold
        places = k - larger.sum(axis=1, keepdims=True)
        kept = larger | (equal & (equal.cumsum(axis=1) <= places))
    chosen: NDArray[np.bool_] = kept[there]
    return chosen


def _kth_largest(values: Magnitudes, k: int) -> Magnitudes:
    place = values.shape[1] - k
    return np.partition(values, place, axis=1)[:, place]
