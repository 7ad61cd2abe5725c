"""The orthonormal DCT-II of 64×64 chunks, as two matrix products over the whole stack. torch.

Rule: full float32 products, whatever precision the task has chosen for its own: the outer momentum
is a small difference of large coefficients.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

from demoloco.codec.layout import EDGE

CPU_SLAB = 128  # chunks: 2 MiB, so that a slab stays in the cache; twice as fast as all at once
DEVICE_SLAB = 4096  # chunks: 64 MiB, so that few kernels are started


def slab_chunks(device: torch.device) -> int:
    """How many chunks are best worked on at a time."""
    return CPU_SLAB if device.type == "cpu" else DEVICE_SLAB


def dct(chunks: Tensor) -> Tensor:
    """Coefficients of each chunk, (chunks, 64, 64) float32 -> the same shape.

    Source: DeMo, arXiv:2411.19870.
    """
    basis = _basis(chunks.device)
    return _sandwich(basis, chunks, basis.T)


def idct(coefficients: Tensor) -> Tensor:
    """Inverse of `dct`."""
    basis = _basis(coefficients.device)
    return _sandwich(basis.T, coefficients, basis)


@torch.no_grad()
def _sandwich(left: Tensor, chunks: Tensor, right: Tensor) -> Tensor:
    out = torch.empty_like(chunks, memory_format=torch.contiguous_format)
    size = slab_chunks(chunks.device)
    with _full_precision(chunks.device.type):
        for start in range(0, len(chunks), size):
            slab = slice(start, start + size)
            rows = (chunks[slab].reshape(-1, EDGE) @ right).view(-1, EDGE, EDGE)
            torch.matmul(left, rows, out=out[slab])
    return out


@contextmanager
def _full_precision(device_type: str) -> Iterator[None]:
    """The task may have chosen TF32 or bfloat16 products, or autocast; afterwards it has again."""
    with torch.autocast(device_type, enabled=False), ExitStack() as afterwards:
        if hasattr(torch.backends.cuda.matmul, "fp32_precision"):  # PyTorch 2.9 and later
            backends: Any = torch.backends
            for matmul in (backends.cuda.matmul, backends.mkldnn.matmul):
                chosen = matmul.fp32_precision
                if chosen not in ("none", "ieee"):
                    matmul.fp32_precision = "ieee"
                    afterwards.callback(setattr, matmul, "fp32_precision", chosen)
        else:
            afterwards.callback(
                torch.set_float32_matmul_precision, torch.get_float32_matmul_precision()
            )
            torch.set_float32_matmul_precision("highest")
        yield


@lru_cache(maxsize=8)
def _basis(device: torch.device) -> Tensor:
    """Row u is the cosine of frequency u."""
    frequency = np.arange(EDGE)[:, None]
    basis = np.cos(np.pi * (np.arange(EDGE) + 0.5) * frequency / EDGE) * np.sqrt(2 / EDGE)
    basis[0] /= np.sqrt(2)
    return torch.from_numpy(basis.astype(np.float32)).to(device)
