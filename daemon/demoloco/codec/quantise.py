"""Values to few bits: a sign, a level, and a scale per chunk. numpy only.

The value of a coefficient is sign · level · scale. Scales and levels lie on grids of powers of two
that are given by small integer codes, and one float32 multiplication makes a value, so that the
same codes are the same bits on every machine. Levels are fitted by Lloyd's algorithm with a price
per bit, as zstd makes rare levels cost more: against nearest levels that saves about 0.3 bits per
value at two bits, for a tenth more error.
"""

from __future__ import annotations

import math
from itertools import accumulate, pairwise

import numpy as np
from numpy.typing import NDArray

Codes = NDArray[np.int64]
Floats = NDArray[np.float32]

BITS = (1, 2, 4, 8)
"""Bits per value, sign included, before the entropy stage."""

SCALE_STEPS = 8  # per octave
SCALE_FLOOR = -64  # octaves: smaller chunks are zero
SCALE_CEILING = 32  # octaves: larger ones are a model that has diverged
MAX_SCALE_CODE = (SCALE_CEILING - SCALE_FLOOR) * SCALE_STEPS

LEVEL_STEPS = 32  # per octave
LEVEL_FLOOR = -4  # octaves, relative to the chunk's mean magnitude
LEVEL_CEILING = 12  # 4096 times the mean is the most that one of 4096 can have
MAX_LEVEL_CODE = (LEVEL_CEILING - LEVEL_FLOOR) * LEVEL_STEPS
MAX_STEP = 255  # between two neighbouring levels

PRICES = {2: 0.004, 4: 0.0005}
"""Squared error, in units of the chunk's squared mean magnitude, that one bit less is worth."""
MAX_SAMPLE = 16_384
ROUNDS = 16

_OCTAVE = np.exp2(np.arange(LEVEL_STEPS) / LEVEL_STEPS).astype(np.float32)
"""Rounding to float32 hides what libraries differ in: no entry is near the middle of two floats."""


def _grid(codes: Codes, steps: int, floor: int) -> Floats:
    fractions = _OCTAVE[codes % steps * (LEVEL_STEPS // steps)]
    return np.ldexp(fractions, (codes // steps + floor).astype(np.int32))


# -- scales ----------------------------------------------------------------------------------------
def scale_codes(values: Floats) -> Codes:
    """Code of each chunk's mean magnitude, 0 for a chunk that is zero: (chunks, k) -> (chunks,).

    Raises: ValueError for a magnitude beyond 2^SCALE_CEILING: the training has diverged.
    """
    means = np.abs(values).mean(axis=1, dtype=np.float64)
    if not np.isfinite(means).all():
        raise ValueError("a coefficient is not finite: the model has diverged")
    octaves = np.log2(np.maximum(means, np.finfo(np.float64).tiny))
    codes = np.rint((octaves - SCALE_FLOOR) * SCALE_STEPS).astype(np.int64)
    if codes.max() > MAX_SCALE_CODE:
        raise ValueError(f"coefficients of magnitude {means.max():.3g}: the model has diverged")
    clipped: Codes = np.maximum(codes, 0)
    return clipped


def scales_of(codes: Codes) -> Floats:
    """The scales that the codes 0..MAX_SCALE_CODE mean."""
    return np.where(codes > 0, _grid(codes, SCALE_STEPS, SCALE_FLOOR), np.float32(0))


# -- levels ----------------------------------------------------------------------------------------
def table_bytes(bits: int) -> int:
    """Bytes of the table that gives a section's levels."""
    return {1: 0, 2: 2, 4: 8, 8: 2}[bits]


def levels_of(table: bytes, bits: int) -> Floats | None:
    """The ascending levels that a table means, or None if they go beyond the grid.

    One bit: the scale itself. Two and four bits: the first code, then the distances. Eight: the
    first code and the one distance between all neighbours.
    """
    if bits == 1:
        return np.ones(1, np.float32)
    steps = np.frombuffer(table, np.uint8).astype(np.int64)
    codes = np.cumsum(steps) if bits < 8 else steps[0] + steps[1] * np.arange(128)
    return None if codes[-1] > MAX_LEVEL_CODE else _grid(codes, LEVEL_STEPS, LEVEL_FLOOR)


def fit(magnitudes: Floats, bits: int) -> tuple[bytes, NDArray[np.uint8]]:
    """Choose a section's levels and each magnitude's level.

    Shapes: magnitudes (n,), relative to their chunks' scales, zero chunks left out -> level (n,).
    """
    if bits == 1:
        return b"", np.zeros(len(magnitudes), np.uint8)
    if bits == 8:
        table = _even_table(magnitudes)
        levels = levels_of(table, bits)
        assert levels is not None
        edges = (levels[1:] + levels[:-1]) / 2
        return table, np.searchsorted(edges, magnitudes).astype(np.uint8)
    stride = len(magnitudes) // MAX_SAMPLE | 1  # odd: not the same place of every chunk
    centres, cuts = _priced_lloyd(np.sort(magnitudes[::stride]), 1 << (bits - 1), PRICES[bits])
    chosen = np.zeros(len(magnitudes), np.uint8)
    for cut in cuts:
        chosen += magnitudes > np.float32(cut)
    return _table(np.array(centres)), chosen


def _priced_lloyd(sample: Floats, count: int, price: float) -> tuple[list[float], list[float]]:
    """Centres, and the edges between them, that keep squared error plus `price` · bits small."""
    total = len(sample)
    if not total:
        return [1.0] * count, [math.inf] * (count - 1)
    sums = np.concatenate([[0.0], np.cumsum(sample, dtype=np.float64)])
    low, high = float(sample[total // 4]), float(sample[-1 - total // 1000])
    step = (max(high, low * 1.01) - low) / (count - 1)
    centres = [low + step * place for place in range(count)]
    shares, edges = [1.0 / count] * count, [0.0] * (count - 1)
    for _ in range(ROUNDS):
        lengths = [-math.log2(max(share, 0.5 / total)) for share in shares]
        for place in range(count - 1):
            left, right = centres[place], centres[place + 1]
            longer = lengths[place + 1] - lengths[place]
            edges[place] = (left + right) / 2 + price * longer / (2 * max(right - left, 1e-6))
        edges = list(accumulate(edges, max))
        cuts = [0, *np.searchsorted(sample, np.array(edges, np.float32)).tolist(), total]
        for place, (start, stop) in enumerate(pairwise(cuts)):
            shares[place] = (stop - start) / total
            if stop > start:
                centres[place] = float(sums[stop] - sums[start]) / (stop - start)
    return centres, edges


def _table(centres: NDArray[np.float64]) -> bytes:
    octaves = np.log2(np.maximum(centres, 2.0**LEVEL_FLOOR))
    codes = np.rint((octaves - LEVEL_FLOOR) * LEVEL_STEPS).astype(np.int64)
    codes = np.minimum(np.maximum.accumulate(codes), MAX_LEVEL_CODE)
    steps = np.minimum(np.diff(codes, prepend=0), MAX_STEP)
    return steps.astype(np.uint8).tobytes()


def _even_table(magnitudes: Floats) -> bytes:
    """128 levels, evenly apart in octaves, from the largest magnitude down to the smallest: where
    every coefficient is told, the small ones may not all become one level far above them."""
    if not len(magnitudes):
        return bytes(2)
    ends = np.maximum([magnitudes.min(), magnitudes.max()], 2.0**LEVEL_FLOOR)
    first, last = np.floor((np.log2(ends) - LEVEL_FLOOR) * LEVEL_STEPS).astype(np.int64)
    step = min(-(-max(last - first, 1) // 127), MAX_LEVEL_CODE // 127)  # the grid has no more
    first = min(max(first, last - 127 * step), MAX_STEP, MAX_LEVEL_CODE - 127 * step)
    return bytes([int(first), int(step)])
