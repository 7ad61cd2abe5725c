"""The outer step on the agreed state, and the state's name. numpy only.

Rule: the same packets with the same weights in the same order give the same bits on every machine:
float32 multiplications, additions and subtractions, one element at a time, in the manifest's order.
No sum, product or fused operation whose order a library could choose. Stored and digested in
little-endian order.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import numpy as np
from blake3 import blake3
from numpy.typing import NDArray

from demoloco.codec.layout import CHUNK
from demoloco.codec.packet import Sparse
from demoloco.types import BlobRef, Digest

Coefficients = NDArray[np.float32]

SLAB = 128  # chunks that are worked on at a time: 2 MiB
BLOB_CHUNKS = 1024  # 16 MiB, the largest blob of a snapshot


def advance(
    before: Coefficients,
    packets: Sequence[Sparse],
    weights: Sequence[float],
    alpha: float,
    out: Coefficients,
) -> None:
    """out = before − α · Σ weight · packet, over all packets of a manifest in its order.

    Shapes: before and out (chunks, 4096) float32; they may be maps of files, and may be the same.
    Raises: ValueError if shapes or the numbers of packets and weights do not fit.
    """
    check(before, packets, weights, out)
    step = np.float32(alpha)
    scratch = np.empty((min(SLAB, len(before)), CHUNK), np.float32)
    firsts = np.arange(0, scratch.size, CHUNK)[:, None]
    for start in range(0, len(before), SLAB):
        slab = slice(start, start + SLAB)
        mean = scratch[: len(before[slab])]
        mean.fill(0)
        coefficients = mean.reshape(-1)
        for packet, weight in zip(packets, weights, strict=True):
            places = packet.index[slab] + firsts[: len(mean)]
            coefficients[places] += np.float32(weight) * packet.value[slab]
        mean *= step
        np.subtract(before[slab], mean, out=out[slab])


def cut(state: Coefficients) -> Iterator[memoryview]:
    """The agreed state as the blobs of its snapshot, of at most 16 MiB each, in order."""
    for start in range(0, len(state), BLOB_CHUNKS):
        part = np.ascontiguousarray(state[start : start + BLOB_CHUNKS], np.dtype("<f4"))
        yield part.data.cast("B")


def digest_parts(state: Coefficients) -> tuple[BlobRef, ...]:
    """The table of the snapshot's blobs."""
    return tuple(
        BlobRef(digest=Digest(blake3(blob).digest()), size=len(blob)) for blob in cut(state)
    )


def fingerprint(blobs: Iterable[Digest]) -> Digest:
    """The name of an agreed state: the digest of its blobs' digests, one after the other."""
    return Digest(blake3(b"".join(blobs)).digest())


def check(
    before: Coefficients, packets: Sequence[Sparse], weights: Sequence[float], out: Coefficients
) -> None:
    """Raises: ValueError if one plane of a state, the packets and the weights do not fit."""
    if before.shape != out.shape or before.shape[1:] != (CHUNK,):
        raise ValueError(f"agreed states of shapes {before.shape} and {out.shape}")
    if before.dtype != np.float32 or out.dtype != np.float32:
        raise ValueError(f"agreed states of {before.dtype} and {out.dtype}, not float32")
    if len(packets) != len(weights):
        raise ValueError(f"{len(packets)} packets and {len(weights)} weights")
    if any(len(packet.index) != len(before) for packet in packets):
        raise ValueError(f"a packet is not of {len(before)} chunks")
