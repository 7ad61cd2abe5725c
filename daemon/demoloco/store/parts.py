"""An agreed state cut into blobs, as snapshots name it."""

from __future__ import annotations

import numpy as np
from blake3 import blake3
from numpy.typing import NDArray

from demoloco.types import BlobRef, Digest

MAX_PART_BYTES = 16 << 20


def digest_parts(array: NDArray[np.float32]) -> tuple[BlobRef, ...]:
    """Names and sizes of the blobs of an agreed state, in order."""
    content = np.ascontiguousarray(array, dtype="<f4").data.cast("B")
    pieces = (content[at : at + MAX_PART_BYTES] for at in range(0, len(content), MAX_PART_BYTES))
    return tuple(
        BlobRef(digest=Digest(blake3(piece).digest()), size=len(piece)) for piece in pieces
    )


def fingerprint(blobs: tuple[BlobRef, ...]) -> Digest:
    """One digest for the whole state: that of its blobs' digests."""
    return Digest(blake3(b"".join(blob.digest for blob in blobs)).digest())
