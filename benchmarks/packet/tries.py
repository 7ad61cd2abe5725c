"""What else could be taken out of a packet: entropies of real momenta written in other ways.

Each figure is bits per coefficient at two bits per value that would be saved, and, unless its text
says otherwise, in the ideal: no tables, no headers, no rounding to whole bits. A real coder keeps a
part of it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.packet.momenta import Momenta
from demoloco.codec import pack, quantise
from demoloco.codec.chunks import Stack
from demoloco.codec.packet import PacketSpec, Sparse, encode
from demoloco.codec.topk import topk
from demoloco.outer.own import momentum

BLOCK = 64
BITS = 2
Integers = NDArray[Any]


def measure(name: str, found: Momenta, k: int) -> dict[str, Any]:
    """All tries on the first node's momentum, and what the whole packet costs."""
    spec = PacketSpec.of(found.layout, bits=BITS, ladder=(k,))
    sparse = topk(momentum(found.agreed, Stack(found.own[0], found.layout)), k)
    count = sparse.index.size
    body, told = encode(sparse, spec)
    saved = {title: bits(sparse, told, spec) / count for title, bits in TRIES.items()}
    return {"model": name, "k": k, "bits": 8 * len(body) / count, "saved": saved}


def _distances(sparse: Sparse, spec: PacketSpec) -> Integers:
    return np.concatenate([gaps for gaps, _ in _gaps(sparse, spec)])


def _gap_bits(sparse: Sparse, spec: PacketSpec) -> float:
    """What the gaps cost as they are."""
    shift = pack.gap_shift(sparse.k)
    high = pack.write_escaped(_distances(sparse, spec) >> shift)
    return _squeezed(high) + shift * sparse.index.size


def _squeezed(stream: Integers) -> float:
    return 8 * len(pack.squeeze(stream.tobytes())[0])


def _gaps(sparse: Sparse, spec: PacketSpec) -> list[tuple[Integers, bool]]:
    return [pack.write_gaps(sparse.index[section]) for section in spec.sections()]


def entropy_stage(sparse: Sparse, told: Sparse, spec: PacketSpec) -> float:
    """The gap stream at its order-0 entropy, not through zstd: what arithmetic coding gives."""
    shift = pack.gap_shift(sparse.k)
    stream = pack.write_escaped(_distances(sparse, spec) >> shift)
    return _squeezed(stream) - _entropy(stream)


def rice_by_blocks(sparse: Sparse, told: Sparse, spec: PacketSpec) -> float:
    """Rice codes instead of zstd, each block of 64 gaps with its own width: this one is whole."""
    rice = sum(min(map(_rice, both)) for both in _both_orders(sparse, spec))
    return _gap_bits(sparse, spec) - rice


def shift_by_section(sparse: Sparse, told: Sparse, spec: PacketSpec) -> float:
    """As many raw low bits as suit each section, instead of each k."""
    shift, saved = pack.gap_shift(sparse.k), 0.0
    for gaps, _ in _gaps(sparse, spec):
        costs = [_shifted(gaps, low) for low in range(8)]
        saved += costs[shift] - min(costs)
    return saved


def classes_of_blocks(sparse: Sparse, told: Sparse, spec: PacketSpec) -> float:
    """Gaps by position in blocks of 64, each of one of five classes by its mean, and a zstd frame
    for each class: this one is whole."""
    blocks = np.concatenate([_blocks(gaps) for _, gaps in _both_orders(sparse, spec)])
    kinds = np.rint(np.log2(blocks.mean(axis=1) + 0.5)).clip(4, 8).astype(np.int64)
    cost = _squeezed(pack.write_escaped(pack.fold(np.diff(kinds, prepend=0))))
    for kind in np.unique(kinds):
        gaps, low = blocks[kinds == kind].ravel(), max(0, int(kind) - 5)
        cost += _squeezed(pack.write_escaped(gaps >> low)) + low * len(gaps)
    return _gap_bits(sparse, spec) - cost


def levels_by_position(sparse: Sparse, told: Sparse, spec: PacketSpec) -> float:
    """The larger level's places as runs over positions, instead of over chunks."""
    saved = 0.0
    for section in spec.sections():
        magnitude = np.abs(told.value[section])
        large = (magnitude > magnitude.min(axis=1, keepdims=True)).ravel()
        order = np.argsort(sparse.index[section].ravel(), kind="stable")
        saved += _runs(large) - _runs(large[order])
    return saved


def signs_by_position(sparse: Sparse, told: Sparse, spec: PacketSpec) -> float:
    """A sign given the one before it at the same position."""
    saved = 0.0
    for section in spec.sections():
        negative = (sparse.value[section] < 0).ravel()
        order = np.argsort(sparse.index[section].ravel(), kind="stable")
        signs = negative[order]
        pairs = np.bincount(signs[:-1] * 2 + signs[1:], minlength=4).reshape(2, 2)
        saved += len(signs) - sum(_entropy_of(row) for row in pairs)
    return saved


def coarser_scales(sparse: Sparse, told: Sparse, spec: PacketSpec) -> float:
    """Scales in quarters of an octave instead of eighths."""
    codes = quantise.scale_codes(sparse.value)
    fine, coarse = (pack.fold(np.diff(one, prepend=0)) for one in (codes, codes // 2))
    return _entropy(fine) - _entropy(coarse)


TRIES: Mapping[str, Callable[[Sparse, Sparse, PacketSpec], float]] = {
    "gaps at their entropy": entropy_stage,
    "Rice by blocks": rice_by_blocks,
    "low bits by section": shift_by_section,
    "classes of blocks": classes_of_blocks,
    "levels by position": levels_by_position,
    "signs by position": signs_by_position,
    "coarser scales": coarser_scales,
}


def _both_orders(sparse: Sparse, spec: PacketSpec) -> Iterator[tuple[Integers, Integers]]:
    """Each section's gaps by chunk and by position."""
    for section in spec.sections():
        index = sparse.index[section].astype(np.int64)
        rows = np.arange(len(index))[:, None]
        by_chunk = ((rows << pack.CHUNK_BITS) + index).ravel()
        by_position = np.sort((index * len(index) + rows).ravel())
        yield np.diff(by_chunk, prepend=-1) - 1, np.diff(by_position, prepend=-1) - 1


def _rice(gaps: Integers) -> float:
    blocks = _blocks(gaps)
    widths = range(pack.CHUNK_BITS)
    costs = np.stack([(blocks >> low).sum(axis=1) + (low + 1) * BLOCK for low in widths])
    changes = np.diff(costs.argmin(axis=0), prepend=0)
    return float(costs.min(axis=0).sum()) + _entropy(pack.fold(changes))


def _blocks(gaps: Integers) -> Integers:
    return np.append(gaps, np.repeat(gaps[-1], -len(gaps) % BLOCK)).reshape(-1, BLOCK)


def _shifted(gaps: Integers, low: int) -> float:
    return _entropy(pack.write_escaped(gaps >> low)) + low * len(gaps)


def _runs(ones: NDArray[np.bool_]) -> float:
    return _entropy(pack.write_escaped(np.diff(np.flatnonzero(ones), prepend=-1) - 1))


def _entropy(values: Integers) -> float:
    return _entropy_of(np.bincount(values)) if len(values) else 0.0


def _entropy_of(counts: Integers) -> float:
    some = counts[counts > 0]
    return float((some * (math.log2(some.sum()) - np.log2(some))).sum())
