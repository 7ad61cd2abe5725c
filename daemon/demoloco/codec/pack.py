"""Integers to few bytes and back: bit planes, escaped bytes, gaps between indices, zstd.

What reads (`read_…`, `expand`) is given by its caller how much there can be, from the caller's own
knowledge, and raises PacketError for everything else; nothing is allocated by a number that stands
in the bytes.
"""

from __future__ import annotations

import numpy as np
import zstandard
from numpy.typing import NDArray

from demoloco.codec.layout import CHUNK
from demoloco.errors import PacketError

CHUNK_BITS = CHUNK.bit_length() - 1
ESCAPE = 255
MAX_VARINT_BYTES = 5
FEW_BYTES = 8192

Integers = NDArray[np.int64]
Bytes = NDArray[np.uint8]


# -- bit planes ------------------------------------------------------------------------------------
def plane_bytes(count: int) -> int:
    """Bytes of one plane of `count` bits."""
    return (count + 7) // 8


def write_planes(values: Integers | Bytes, width: int) -> bytes:
    """The lowest `width` bits of each value, at most 8, as one plane per bit, lowest first."""
    low = values.astype(np.uint8)
    planes = (np.packbits(low & np.uint8(1 << bit)) for bit in range(width))
    return b"".join(plane.tobytes() for plane in planes)


def read_planes(data: bytes | memoryview, width: int, count: int) -> Bytes:
    """Inverse of `write_planes`; `data` must have the length that `width` and `count` give."""
    length = plane_bytes(count)
    if len(data) != width * length:
        raise PacketError(f"{len(data)} bytes of bit planes, expected {width * length}")
    values = np.zeros(count, np.uint8)
    for bit in range(width):
        plane = np.unpackbits(np.frombuffer(data, np.uint8, length, bit * length), count=count)
        values |= plane << np.uint8(bit)
    return values


# -- bytes with escapes ----------------------------------------------------------------------------
def write_escaped(values: Integers) -> Bytes:
    """One byte per value below 255; 255 stands for "255 more, read on"."""
    large = np.flatnonzero(values >= ESCAPE)
    rests = values.astype(np.uint8)
    if not len(large):
        return rests
    escapes, rests[large] = np.divmod(values[large], ESCAPE)
    return np.insert(rests, np.repeat(large, escapes), ESCAPE)


def read_escaped(stream: bytes) -> Integers:
    """Inverse of `write_escaped`; not more values than bytes."""
    data = np.frombuffer(stream, np.uint8)
    escapes = np.flatnonzero(data == ESCAPE)
    if not len(escapes):
        return data.astype(np.int64)
    if data[-1] == ESCAPE:
        raise PacketError("a stream ends within a number")
    values: Integers = data[data != ESCAPE].astype(np.int64)
    np.add.at(values, escapes - np.arange(len(escapes)), ESCAPE)
    return values


def fold(values: Integers) -> Integers:
    """Signed to unsigned, small to small: 0, -1, 1, -2 … become 0, 1, 2, 3 …"""
    return (values << 1) ^ (values >> 63)


def unfold(values: Integers) -> Integers:
    """Inverse of `fold`."""
    return (values >> 1) ^ -(values & 1)


# -- indices as gaps -------------------------------------------------------------------------------
def gap_shift(k: int) -> int:
    """Low bits of a gap that stay outside zstd: the rest is then 32 to 64 on average."""
    return max(0, CHUNK_BITS - 5 - (k.bit_length() - 1))


def write_gaps(index: NDArray[np.int32]) -> tuple[Integers, bool]:
    """Distances between the ascending indices (chunks, k) of a section, less one.

    Chunk after chunk, or position after position over all chunks (True), whichever packs smaller:
    where the DCT gathers the energy, the same positions recur from chunk to chunk.
    """
    chunks, k = index.shape
    if k == CHUNK:  # all of them
        return np.zeros(chunks * k, np.int64), False
    flat = index.ravel()
    rows = np.repeat(np.arange(chunks), k)
    by_chunk = _distances((rows << CHUNK_BITS) + flat)
    order = np.argsort(flat.astype(np.uint16), kind="stable")  # 16 bits: a radix sort
    by_position = _distances(flat.take(order).astype(np.int64) * chunks + rows.take(order))
    shift = gap_shift(k)
    if _packed_bits(by_position >> shift) < _packed_bits(by_chunk >> shift):
        return by_position, True
    return by_chunk, False


def read_gaps(distances: Integers, by_position: bool, chunks: int) -> NDArray[np.int32]:
    """Inverse of `write_gaps`: indices (chunks, k), each in range and, as they ascend, once."""
    ascending = np.cumsum(distances + 1) - 1
    if ascending[-1] >= chunks * CHUNK:
        raise PacketError("an index lies beyond the last chunk")
    if by_position:
        position = ascending // chunks
        row = ascending - position * chunks
        order = np.argsort(row.astype(np.min_scalar_type(chunks - 1)), kind="stable")
        ascending = (row.take(order) << CHUNK_BITS) + position.take(order)
    index = ascending.reshape(chunks, -1)
    if (index >> CHUNK_BITS != np.arange(chunks)[:, None]).any():
        raise PacketError(f"a chunk does not have its {index.shape[1]} indices")
    return (index & (CHUNK - 1)).astype(np.int32)


def _distances(ascending: Integers) -> Integers:
    return np.diff(ascending, prepend=-1) - 1


def _packed_bits(values: Integers) -> float:
    counts = np.bincount(write_escaped(values))
    counts = counts[counts > 0]
    return float(-(counts * np.log2(counts / counts.sum())).sum())


# -- the entropy stage -----------------------------------------------------------------------------
def squeeze(data: bytes) -> tuple[bytes, bool]:
    """The bytes through zstd where that makes them smaller, and whether it did.

    Level 1 is Huffman coding and little else, which is what such bytes need; where there are few,
    other levels cost nothing, and one of them may spend less on its tables.
    """
    levels = (1, 9, 19) if len(data) <= FEW_BYTES else (1,)
    squeezed = min((_compressed(data, level) for level in levels), key=len)
    return (squeezed, True) if len(squeezed) < len(data) else (data, False)


def _compressed(data: bytes, level: int) -> bytes:
    return zstandard.ZstdCompressor(level=level, write_checksum=False).compress(data)


def expand(data: bytes, limit: int) -> bytes:
    """Inverse of a squeeze that made smaller; never makes more than `limit` bytes."""
    try:
        size = zstandard.get_frame_parameters(data).content_size
        if size > limit:  # an unknown size reads as a very large one
            raise PacketError(f"a stream of {size} bytes, at most {limit} are possible")
        return zstandard.ZstdDecompressor().decompress(
            data, max_output_size=limit, allow_extra_data=False
        )
    except zstandard.ZstdError as error:
        raise PacketError(f"not a zstd frame: {error}") from error


# -- lengths ---------------------------------------------------------------------------------------
def write_varint(value: int) -> bytes:
    """Seven bits a byte, lowest first; the high bit says that more follow."""
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    out.append(value)
    return bytes(out)


class Reader:
    """Takes exact pieces off the front of bytes; notices too few, and some left over."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def take(self, length: int) -> bytes:
        """The next `length` bytes."""
        piece = self._data[self._at : self._at + length]
        if len(piece) != length:
            raise PacketError(f"{length} bytes wanted, {len(piece)} left")
        self._at += length
        return piece

    def varint(self) -> int:
        """The next varint, of at most MAX_VARINT_BYTES."""
        value = 0
        for place in range(MAX_VARINT_BYTES):
            byte = self.take(1)[0]
            value |= (byte & 127) << (7 * place)
            if byte < 128:
                return value
        raise PacketError(f"a length of more than {MAX_VARINT_BYTES} bytes")

    def finish(self) -> None:
        """Nothing may be left."""
        if self._at != len(self._data):
            raise PacketError(f"{len(self._data) - self._at} bytes after the end")
