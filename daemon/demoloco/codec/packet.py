"""A packet's body: the kept coefficients of every chunk as bytes. The trust boundary; numpy only.

Rule: chunk counts, bits and the possible k come from the reader's own PacketSpec, never from the
bytes, and what the bytes say must fit. `decode` gives a whole Sparse or raises PacketError.

The body, version 1, for n = chunks · k coefficients:

    version, bits   one byte each
    k               two bytes, little-endian
    stream lengths  three varints: length · 2, + 1 where zstd made it smaller: scales, gaps, levels
    order           a bit per section: gaps run chunk by chunk (0) or position by position (1)
    level tables    quantise.table_bytes(bits) per section
    scales          distance of each chunk's scale code to the one before, folded, escaped
    gaps            what `gap_shift(k)` leaves of each distance between indices, escaped
    low bits        `gap_shift(k)` planes
    signs           one plane; 1 is negative
    levels          bits 1: nothing; 2: runs of zeros before each one, escaped; 4 and 8: planes

A section is a group of the layout, or several that follow each other until they are worth a table.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

import numpy as np
from blake3 import blake3
from numpy.typing import NDArray

from demoloco.bounds import SPEC_BYTES
from demoloco.codec import pack, quantise
from demoloco.codec.layout import CHUNK, Layout
from demoloco.errors import ConfigError, PacketError

VERSION = 1
SECTION_CHUNKS = 32
_HEAD = struct.Struct("<BBH")
_MAX_FOLDED_SCALE = 2 * quantise.MAX_SCALE_CODE


@dataclass(frozen=True, slots=True, eq=False)
class Sparse:
    """The kept coefficients of every chunk.

    Shapes: index (chunks, k) int32, ascending within a chunk; value (chunks, k) float32.
    """

    index: NDArray[np.int32]
    value: NDArray[np.float32]

    @property
    def k(self) -> int:
        return int(self.index.shape[1])


@dataclass(frozen=True, slots=True)
class PacketSpec:
    """What all packets of a run have in common; from the agreed configuration."""

    groups: tuple[int, ...]  # chunks in each group of the layout
    bits: int
    ladder: tuple[int, ...]  # the values of k that a packet may have

    def __post_init__(self) -> None:
        if self.bits not in quantise.BITS:
            raise ConfigError(f"bits is {self.bits}; set it to one of {quantise.BITS}")
        if not self.ladder or not all(1 <= k <= CHUNK for k in self.ladder):
            raise ConfigError(f"ladder is {self.ladder}; give values of k from 1 to {CHUNK}")
        if min(self.groups, default=0) < 0 or self.chunks < 1:
            raise ConfigError(f"a model of {self.chunks} chunks has nothing to tell")

    @classmethod
    def of(cls, layout: Layout, *, bits: int, ladder: tuple[int, ...]) -> PacketSpec:
        """The spec of a run with this model and these settings."""
        return cls(tuple(group.chunks for group in layout.groups), bits, tuple(ladder))

    @property
    def chunks(self) -> int:
        return sum(self.groups)

    @property
    def digest(self) -> bytes:
        """Start of the digest of the spec and the format's version, as packet headers carry it."""
        words = (VERSION, self.bits, self.groups, tuple(sorted(set(self.ladder))))
        return blake3(repr(words).encode()).digest()[:SPEC_BYTES]

    def sections(self) -> list[slice]:
        """Chunks that share an order and a level table: SECTION_CHUNKS or more, if there are."""
        ends: list[int] = []
        end = start = 0
        for group in self.groups:
            end += group
            if end - start >= SECTION_CHUNKS:
                ends.append(end)
                start = end
        ends = [*ends[:-1], self.chunks]
        return [slice(a, b) for a, b in zip([0, *ends], ends, strict=False)]


def norm(sparse: Sparse) -> float:
    """L2 norm of the coefficients, which is that of the update that they are."""
    return float(np.sqrt(np.square(sparse.value, dtype=np.float64).sum()))


# -- bounds ----------------------------------------------------------------------------------------
def _scale_limit(chunks: int) -> int:
    return chunks * (_MAX_FOLDED_SCALE // pack.ESCAPE + 1)


def _gap_limit(chunks: int, k: int) -> int:
    return chunks * k + chunks * CHUNK // pack.ESCAPE


def _level_limit(count: int, bits: int) -> int:
    return count + count // pack.ESCAPE if bits == 2 else (bits - 1) * pack.plane_bytes(count)


def max_bytes(spec: PacketSpec) -> int:
    """No body of this spec is longer."""
    return max(_max_bytes(spec, k) for k in spec.ladder)


def _max_bytes(spec: PacketSpec, k: int) -> int:
    count = spec.chunks * k
    sections = len(spec.sections())
    head = _HEAD.size + 3 * pack.MAX_VARINT_BYTES
    tables = pack.plane_bytes(sections) + sections * quantise.table_bytes(spec.bits)
    planes = (pack.gap_shift(k) + 1) * pack.plane_bytes(count)
    streams = (
        _scale_limit(spec.chunks) + _gap_limit(spec.chunks, k) + _level_limit(count, spec.bits)
    )
    return head + tables + planes + streams


# -- encode ----------------------------------------------------------------------------------------
def encode(sparse: Sparse, spec: PacketSpec) -> tuple[bytes, Sparse]:
    """The body, and the coefficients exactly as every receiver reads them.

    Raises: ValueError if the coefficients are not of this spec or those of a diverged model.
    """
    k = sparse.k
    if sparse.index.shape != (spec.chunks, k) or k not in spec.ladder:
        raise ValueError(f"coefficients {sparse.index.shape} do not fit {spec}")
    codes = quantise.scale_codes(sparse.value)
    scales = quantise.scales_of(codes)
    tables, levels = _fit(sparse.value, scales, spec)
    signs = (sparse.value < 0).astype(np.uint8)
    gaps = [pack.write_gaps(sparse.index[section]) for section in spec.sections()]
    distances = np.concatenate([distance for distance, _ in gaps])
    shift = pack.gap_shift(k)
    streams = [
        pack.squeeze(pack.write_escaped(pack.fold(np.diff(codes, prepend=0))).tobytes()),
        pack.squeeze(pack.write_escaped(distances >> shift).tobytes()),
        pack.squeeze(_write_levels(levels, spec.bits)),
    ]
    body = b"".join(
        [
            _HEAD.pack(VERSION, spec.bits, k),
            *(pack.write_varint(len(data) << 1 | squeezed) for data, squeezed in streams),
            pack.write_planes(np.array([by_position for _, by_position in gaps], np.uint8), 1),
            *tables,
            streams[0][0],
            streams[1][0],
            pack.write_planes(distances, shift),
            pack.write_planes(signs.ravel(), 1),
            streams[2][0],
        ]
    )
    signed = levels | signs << np.uint8(spec.bits - 1)
    return body, Sparse(sparse.index, _values(tables, signed, scales, spec))


def _fit(
    values: NDArray[np.float32], scales: NDArray[np.float32], spec: PacketSpec
) -> tuple[list[bytes], NDArray[np.uint8]]:
    tables = []
    levels = np.zeros(values.shape, np.uint8)
    for section in spec.sections():
        full = np.flatnonzero(scales[section])
        rows = slice(None) if len(full) == section.stop - section.start else full
        relative = np.abs(values[section][rows])
        relative /= scales[section][rows, None]
        table, chosen = quantise.fit(relative.ravel(), spec.bits)
        levels[section][rows] = chosen.reshape(relative.shape)
        tables.append(table)
    return tables, levels


def _write_levels(levels: NDArray[np.uint8], bits: int) -> bytes:
    if bits != 2:
        return pack.write_planes(levels.ravel(), bits - 1)
    return pack.write_escaped(np.diff(np.flatnonzero(levels), prepend=-1) - 1).tobytes()


# -- decode ----------------------------------------------------------------------------------------
def decode(body: bytes, spec: PacketSpec) -> Sparse:
    """Read a body that anyone may have made.

    Raises: PacketError for bytes that are not a body of this spec.
    """
    reader = pack.Reader(body)
    k = _read_head(reader, spec)
    chunks, count, shift = spec.chunks, spec.chunks * k, pack.gap_shift(k)
    lengths = [reader.varint() for _ in range(3)]
    sections = spec.sections()
    orders = pack.read_planes(reader.take(pack.plane_bytes(len(sections))), 1, len(sections))
    tables = [reader.take(quantise.table_bytes(spec.bits)) for _ in sections]
    scales = _read_scales(_read_stream(reader, lengths[0], _scale_limit(chunks)), chunks)
    high = pack.read_escaped(_read_stream(reader, lengths[1], _gap_limit(chunks, k)))
    if len(high) != count:
        raise PacketError(f"{len(high)} gaps, expected {count}")
    low = pack.read_planes(reader.take(shift * pack.plane_bytes(count)), shift, count)
    signs = pack.read_planes(reader.take(pack.plane_bytes(count)), 1, count)
    limit = _level_limit(count, spec.bits)
    levels = _read_levels(_read_stream(reader, lengths[2], limit), count, spec.bits)
    reader.finish()
    distances = (high << shift | low).reshape(chunks, k)
    index = np.empty((chunks, k), np.int32)
    for section, order in zip(sections, orders, strict=True):
        size = section.stop - section.start
        index[section] = pack.read_gaps(distances[section].ravel(), bool(order), size)
    codes = (levels | signs << np.uint8(spec.bits - 1)).reshape(chunks, k)
    return Sparse(index, _values(tables, codes, scales, spec))


def _read_head(reader: pack.Reader, spec: PacketSpec) -> int:
    version, bits, k = _HEAD.unpack(reader.take(_HEAD.size))
    if version != VERSION:
        raise PacketError(f"packet format version {version}; this node reads version {VERSION}")
    if bits != spec.bits:
        raise PacketError(f"{bits} bits per value, the run has {spec.bits}")
    if k not in spec.ladder:
        raise PacketError(f"k = {k} is not in the run's ladder {spec.ladder}")
    return int(k)


def _read_stream(reader: pack.Reader, length: int, limit: int) -> bytes:
    data = reader.take(length >> 1)
    if length & 1:
        return pack.expand(data, limit)
    if len(data) > limit:
        raise PacketError(f"a stream of {len(data)} bytes, at most {limit} are possible")
    return data


def _read_scales(stream: bytes, chunks: int) -> NDArray[np.float32]:
    codes = np.cumsum(pack.unfold(pack.read_escaped(stream)))
    if len(codes) != chunks or codes.min() < 0 or codes.max() > quantise.MAX_SCALE_CODE:
        raise PacketError(f"not the scales of {chunks} chunks")
    return quantise.scales_of(codes)


def _read_levels(stream: bytes, count: int, bits: int) -> NDArray[np.uint8]:
    if bits != 2:
        return pack.read_planes(stream, bits - 1, count)
    ones = np.cumsum(pack.read_escaped(stream) + 1) - 1
    if len(ones) > 0 and ones[-1] >= count:
        raise PacketError("a level lies beyond the last coefficient")
    levels = np.zeros(count, np.uint8)
    levels[ones] = 1
    return levels


# -- both ------------------------------------------------------------------------------------------
def _values(
    tables: list[bytes],
    codes: NDArray[np.uint8],
    scales: NDArray[np.float32],
    spec: PacketSpec,
) -> NDArray[np.float32]:
    """Sign · level · scale, one float32 multiplication; the codes' bounds make it finite.

    codes: the level, and above it the sign.
    """
    values = np.empty(codes.shape, np.float32)
    for section, table in zip(spec.sections(), tables, strict=True):
        grid = quantise.levels_of(table, spec.bits)
        if grid is None:
            raise PacketError("a level is larger than any coefficient can be")
        signed = np.concatenate([grid, -grid])
        np.multiply(signed.take(codes[section]), scales[section, None], out=values[section])
    return values
