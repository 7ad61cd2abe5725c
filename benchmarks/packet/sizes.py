"""How large the packets of real momenta are, in our format and in others."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch

from benchmarks.packet.formats import FORMATS, limit, size_of
from benchmarks.packet.momenta import Momenta
from demoloco.codec.chunks import Stack, from_chunks
from demoloco.codec.dct import idct
from demoloco.codec.packet import PacketSpec, encode
from demoloco.codec.topk import topk
from demoloco.outer.own import momentum

OUR_BITS = (1, 2, 4)
OURS = "ours, {} bit"
LIMIT = "limit, {} bit"
Row = dict[str, Any]


def measure(name: str, found: Momenta, ks: Sequence[int]) -> list[Row]:
    """Rows of all formats for the first node's momentum."""
    owed = momentum(found.agreed, Stack(found.own[0], found.layout))
    rows = []
    for k in ks:
        for how, length, count, error in _ours(found, owed, k):
            rows.append(_row(name, found, k, how, length, count, error))
    tensors = from_chunks(idct(owed.view(-1, 64, 64)), found.layout)
    for k in ks:
        for how, written in FORMATS.items():
            size = size_of(tensors, k, written)
            rows.append(_row(name, found, k, how, size.bytes, size.kept, size.error))
    return rows


def _ours(found: Momenta, owed: torch.Tensor, k: int) -> Iterator[tuple[str, float, int, float]]:
    largest = topk(owed, k)
    energy = np.square(largest.value, dtype=np.float64).sum()
    count = largest.value.size
    for bits in OUR_BITS:
        spec = PacketSpec.of(found.layout, bits=bits, ladder=(k,))
        body, told = encode(largest, spec)
        error = np.square(largest.value - told.value, dtype=np.float64).sum() / energy
        yield OURS.format(bits), len(body), count, float(error)
        yield LIMIT.format(bits), limit(k, bits) * count / 8, count, float("nan")


def _row(name: str, found: Momenta, k: int, how: str, size: float, count: int, error: float) -> Row:
    parameters = found.layout.parameters
    return {
        "model": name,
        "millions": parameters / 1e6,
        "k": k,
        "format": how,
        "bytes": size,
        "bits_per_coefficient": 8 * size / count,
        "bits_per_parameter": 8 * size / parameters,
        "compression": 4 * parameters / size,
        "error": error,
    }
