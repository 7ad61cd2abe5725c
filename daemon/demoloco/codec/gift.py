"""What a member gives a joiner, as bytes: what it owes, and its inner optimizer's moments. A trust
boundary; numpy only.

Rule: how much of what there is comes from the reader's own GiftSpec, never from the bytes; length
and scales are checked on opening, and every byte of the rest means a finite value.

    version          one byte
    layout, head     32 bytes each: the model's layout, the manifest of the agreed state
    inner steps      eight bytes, little-endian: what the moments are the mean of
    owed             a block for each chunk, in the DCT domain
    first, second    blocks of the trained values' first and second moments, in the model's order

A block is a float32 scale, its largest magnitude, and 4096 codes; the last one is padded with
zeros. Signed codes mean squares and those of second moments powers, so that small values survive
beside large ones: a second moment that became zero would make its parameter leap.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import numpy as np
from blake3 import blake3
from numpy.typing import NDArray

from demoloco.codec.layout import CHUNK
from demoloco.errors import PacketError
from demoloco.types import BlobRef, Digest

VERSION = 1
MAX_SCALE = 2.0**64
MAX_STEPS = 1 << 40
PART_BYTES = 16 << 20
SLAB = 256  # blocks that are worked on at a time: 4 MiB of values

Floats = NDArray[np.float32]
Codes = NDArray[np.uint8]
_HEAD = struct.Struct("<B32s32sQ")
_BLOCK = np.dtype([("scale", "<f4"), ("codes", "u1", (CHUNK,))])

_SIGNED_STEPS = 127
_POSITIVE_STEPS = 255
_PER_OCTAVE = 8  # codes of a second moment; they reach 32 octaves down


def _signed_table() -> Floats:
    codes = np.arange(256, dtype=np.uint8).view(np.int8).astype(np.float64)
    shares = np.clip(codes / _SIGNED_STEPS, -1.0, 1.0)
    return (np.sign(shares) * shares**2).astype(np.float32)


def _positive_table() -> Floats:
    octaves = (np.arange(256) - _POSITIVE_STEPS) / _PER_OCTAVE
    return np.where(np.arange(256) > 0, np.exp2(octaves), 0.0).astype(np.float32)


_SIGNED, _POSITIVE = _signed_table(), _positive_table()


@dataclass(frozen=True, slots=True)
class GiftSpec:
    """What all gifts for one model have in common."""

    layout: Digest
    chunks: int
    values: int  # that are trained: each has two moments

    @property
    def moment_blocks(self) -> int:
        return -(-self.values // CHUNK)

    @property
    def size(self) -> int:
        """Bytes of every gift of this spec."""
        return _HEAD.size + (self.chunks + 2 * self.moment_blocks) * _BLOCK.itemsize


def max_bytes(chunks: int) -> int:
    """No gift for a model of so many chunks is longer: at most all of it is trained."""
    return _HEAD.size + 3 * (chunks + 1) * _BLOCK.itemsize


@dataclass(frozen=True, slots=True, eq=False)
class Blocks:
    """A row of values that is read in parts."""

    rows: NDArray[np.void]
    table: Floats

    def read(self, start: int, stop: int) -> Floats:
        """The values from `start` to before `stop`, (stop − start,) float32."""
        first = start // CHUNK
        rows = self.rows[first : -(-stop // CHUNK)]
        values = self.table[rows["codes"]] * rows["scale"][:, None]
        flat: Floats = values.ravel()[start - first * CHUNK : stop - first * CHUNK]
        return flat


@dataclass(frozen=True, slots=True, eq=False)
class GiftFile:
    """A gift that was checked; its values stay on the disk until they are read."""

    head: Digest
    steps: int
    owed: Blocks
    first: Blocks
    second: Blocks


# -- write -----------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class Content:
    """What goes into a gift: rows of values in pieces of any length, float32."""

    head: Digest
    steps: int
    owed: Iterable[Floats]
    first: Iterable[Floats]
    second: Iterable[Floats]


def write(path: Path, spec: GiftSpec, content: Content) -> None:
    """Write a gift; not durable.

    Raises: ValueError if a value is not finite or beyond MAX_SCALE, or there are more or fewer
    than the spec has; OSError.
    """
    with path.open("wb") as file:
        file.write(_HEAD.pack(VERSION, spec.layout, content.head, content.steps))
        _put(file, content.owed, _signed_codes)
        _put(file, content.first, _signed_codes)
        _put(file, content.second, _positive_codes)
        if file.tell() != spec.size:
            raise ValueError(f"a gift of {file.tell()} bytes, its spec has {spec.size}")


def _put(file: BinaryIO, pieces: Iterable[Floats], encode: Callable[[Floats], Codes]) -> None:
    for values in _whole_blocks(pieces):
        scales = np.abs(values).max(axis=1)
        if not (scales <= MAX_SCALE).all():  # also refuses nan
            raise ValueError("a value is not finite or too large: the model has diverged")
        rows = np.empty(len(values), _BLOCK)
        rows["scale"] = scales
        full = np.where(scales > 0, scales, 1).astype(np.float64)
        rows["codes"] = encode((values / full[:, None]).astype(np.float32))
        file.write(rows.tobytes())


def _whole_blocks(pieces: Iterable[Floats]) -> Iterator[Floats]:
    """The same values as (n, 4096), the last block padded with zeros."""
    rest = np.empty(0, np.float32)
    for piece in pieces:
        flat = piece.ravel()
        for start in range(0, len(flat), SLAB * CHUNK):
            rest = np.concatenate([rest, flat[start : start + SLAB * CHUNK]])
            whole = len(rest) // CHUNK * CHUNK
            if whole:
                yield rest[:whole].reshape(-1, CHUNK)
            rest = rest[whole:]
    if len(rest):
        yield np.pad(rest, (0, CHUNK - len(rest))).reshape(1, CHUNK)


def _signed_codes(shares: Floats) -> Codes:
    steps = np.rint(_SIGNED_STEPS * np.sqrt(np.abs(shares)))
    codes: Codes = (np.sign(shares) * steps).astype(np.int8).view(np.uint8)
    return codes


def _positive_codes(shares: Floats) -> Codes:
    octaves = np.log2(np.maximum(shares, np.finfo(np.float32).tiny))
    steps = np.clip(np.rint(_POSITIVE_STEPS + _PER_OCTAVE * octaves), 1, _POSITIVE_STEPS)
    return np.where(shares > 0, steps, 0).astype(np.uint8)


# -- read ------------------------------------------------------------------------------------------
def read(path: Path, spec: GiftSpec) -> GiftFile:
    """Open a gift that anyone may have made.

    Raises: PacketError for bytes that are not a gift of this spec; OSError.
    """
    size = path.stat().st_size
    if size != spec.size:
        raise PacketError(f"a gift of {size} bytes; this run's have {spec.size}")
    head, steps = _head_of(path, spec.layout)
    rows = _rows_of(path, spec.chunks + 2 * spec.moment_blocks)
    owed, first, second = np.split(rows, [spec.chunks, spec.chunks + spec.moment_blocks])
    return GiftFile(
        head,
        steps,
        Blocks(owed, _SIGNED),
        Blocks(first, _SIGNED),
        Blocks(second, _POSITIVE),
    )


def read_owed(path: Path, layout: Digest, chunks: int) -> tuple[Digest, Blocks]:
    """Its head and what is owed, of a file that has the rest of the gift or lacks it.

    Raises: PacketError for bytes that do not begin as a gift for this model; OSError.
    """
    size = path.stat().st_size
    if size < owed_bytes(chunks):
        raise PacketError(f"a gift that begins with {size} bytes, not {owed_bytes(chunks)}")
    head, _ = _head_of(path, layout)
    return head, Blocks(_rows_of(path, chunks), _SIGNED)


def owed_bytes(chunks: int) -> int:
    """Of a gift's first part, up to where the moments begin."""
    return _HEAD.size + chunks * _BLOCK.itemsize


def _head_of(path: Path, wanted: Digest) -> tuple[Digest, int]:
    """The head and the inner steps. Raises: PacketError."""
    with path.open("rb") as file:
        version, layout, head, steps = _HEAD.unpack(file.read(_HEAD.size))
    if version != VERSION:
        raise PacketError(f"gift format version {version}; this node reads version {VERSION}")
    if layout != wanted:
        raise PacketError("a gift for another model")
    if not 1 <= steps <= MAX_STEPS:
        raise PacketError(f"a gift after {steps} inner steps, not 1..{MAX_STEPS}")
    return Digest(head), int(steps)


def _rows_of(path: Path, count: int) -> NDArray[np.void]:
    """So many blocks from the first on. Raises: PacketError."""
    rows = np.memmap(path, _BLOCK, "r", _HEAD.size, shape=(count,))
    scales = rows["scale"]
    if not ((scales >= 0) & (scales <= MAX_SCALE)).all():
        raise PacketError("a gift has a scale that is not finite, negative or too large")
    return rows


def parts_of(path: Path) -> tuple[BlobRef, ...]:
    """The file as blobs of at most 16 MiB, in order."""
    parts: list[BlobRef] = []
    with path.open("rb") as file:
        while part := file.read(PART_BYTES):
            parts.append(BlobRef(digest=Digest(blake3(part).digest()), size=len(part)))
    return tuple(parts)
