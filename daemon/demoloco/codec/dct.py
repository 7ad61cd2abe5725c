"""The orthonormal DCT-II of 64×64 chunks, as two products. numpy on CPUs, else torch.

Rule: full float32 products, whatever precision the task has chosen for its own: the outer momentum
is a small difference of large coefficients. On a CPU a product per chunk, within the cache, is
half again as fast as torch's over many.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from demoloco.codec.layout import EDGE
from demoloco.codec.slabs import by_threads, slab_chunks, slabs_of

Floats = NDArray[np.float32]


def dct(chunks: Tensor) -> Tensor:
    """Coefficients of each chunk, (chunks, 64, 64) float32 -> the same shape.

    Source: DeMo, arXiv:2411.19870.
    """
    return _transform(chunks)


def idct(coefficients: Tensor) -> Tensor:
    """Inverse of `dct`."""
    return _transform(coefficients, inverse=True)


def minus_dct_(chunks: Tensor, base: Tensor) -> Tensor:
    """Become base − dct(chunks), in place. Both (chunks, 64, 64) float32 on one device."""
    return _transform(chunks, base=base, out=chunks)


def idct_(coefficients: Tensor) -> Tensor:
    """`idct` in place."""
    return _transform(coefficients, inverse=True, out=coefficients)


@torch.no_grad()
def _transform(
    chunks: Tensor,
    *,
    inverse: bool = False,
    base: Tensor | None = None,
    out: Tensor | None = None,
) -> Tensor:
    if out is None:
        out = torch.empty_like(chunks, memory_format=torch.contiguous_format, requires_grad=False)
    if chunks.device.type == "cpu":
        _on_cpu(chunks.detach(), inverse, base, out)
    else:
        _on_device(chunks, inverse, base, out)
    return out


def _on_cpu(chunks: Tensor, inverse: bool, base: Tensor | None, out: Tensor) -> None:
    left, right = _MATRICES[inverse]
    values, results = chunks.numpy(), out.numpy()
    bases = None if base is None else base.numpy()

    def transform(piece: slice) -> None:
        rows, result = np.matmul(values[piece], right), results[piece]
        np.matmul(left, rows, out=result)
        if bases is not None:
            np.subtract(bases[piece], result, out=result)

    by_threads(transform, len(values))


def _on_device(chunks: Tensor, inverse: bool, base: Tensor | None, out: Tensor) -> None:
    left, right = _on(chunks.device)[inverse]
    with _full_precision(chunks.device.type):
        for slab in slabs_of(len(chunks), slab_chunks(chunks.device)):
            rows = (chunks[slab].reshape(-1, EDGE) @ right).view(-1, EDGE, EDGE)
            torch.matmul(left, rows, out=out[slab])
            if base is not None:
                torch.sub(base[slab], out[slab], out=out[slab])


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


def _basis() -> Floats:
    """Row u is the cosine of frequency u."""
    frequency = np.arange(EDGE)[:, None]
    basis = np.cos(np.pi * (np.arange(EDGE) + 0.5) * frequency / EDGE) * np.sqrt(2 / EDGE)
    basis[0] /= np.sqrt(2)
    rounded: Floats = basis.astype(np.float32)
    return rounded


def _matrices() -> tuple[tuple[Floats, Floats], tuple[Floats, Floats]]:
    """What stands left and right of a chunk, of `dct` and of `idct`."""
    basis = _basis()
    turned = np.ascontiguousarray(basis.T)
    return (basis, turned), (turned, basis)


_MATRICES = _matrices()


@lru_cache(maxsize=8)
def _on(device: torch.device) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
    basis, turned = (torch.from_numpy(matrix).to(device) for matrix in _MATRICES[0])
    return (basis, turned), (turned, basis)
