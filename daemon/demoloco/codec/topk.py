"""The k largest coefficients of each chunk, exactly, and the same ones on every device. torch.

Rule: by magnitude; ties go to the lower index; indices ascend.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from demoloco.codec.dct import slab_chunks
from demoloco.codec.packet import Sparse

FOLD = 512  # groups into which a chunk is folded for the bound

Floats = NDArray[np.float32]


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
    step = slab_chunks(coefficients.device)
    for start in range(0, chunks, step):
        slab = slice(start, start + step)
        part = coefficients[slab].detach()
        index, value = _on_cpu(part, k) if part.device.type == "cpu" else _on_device(part, k)
        sparse.index[slab], sparse.value[slab] = index, value
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
    values = part.contiguous().numpy()
    magnitudes = np.abs(values)
    mask = magnitudes >= _lower_bound(magnitudes, k)[:, None]
    rows, columns = np.divmod(np.flatnonzero(mask), values.shape[1])
    counts = np.bincount(rows, minlength=len(values))
    if (counts > k).any():
        slots = np.arange(len(rows)) - (np.cumsum(counts) - counts)[rows]
        candidates = np.full((len(values), counts.max()), -1, np.float32)
        candidates[rows, slots] = magnitudes[rows, columns]
        columns = columns[_largest(candidates, k)[rows, slots]]
    index = columns.reshape(-1, k)
    return index, np.take_along_axis(values, index, 1)


def _lower_bound(magnitudes: Floats, k: int) -> Floats:
    """For each chunk, a number that at least k of its magnitudes reach, and few more.

    The k-th largest of the maxima of groups is one, and much cheaper to find than the k-th largest.
    """
    chunks, size = magnitudes.shape
    if k <= FOLD // 4 and size % FOLD == 0:
        magnitudes = magnitudes.reshape(chunks, -1, FOLD).max(axis=1)
    if not np.isfinite(magnitudes.max()):
        raise ValueError("a coefficient is not finite: the model has diverged")
    return _kth_largest(magnitudes, k)


def _largest(candidates: Floats, k: int) -> NDArray[np.bool_]:
    threshold = _kth_largest(candidates, k)[:, None]
    larger, equal = candidates > threshold, candidates == threshold
    places = k - larger.sum(axis=1, keepdims=True)
    kept: NDArray[np.bool_] = larger | (equal & (equal.cumsum(axis=1) <= places))
    return kept


def _kth_largest(values: Floats, k: int) -> Floats:
    place = values.shape[1] - k
    return np.partition(values, place, axis=1)[:, place]
