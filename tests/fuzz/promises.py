"""What decoding promises for any bytes: a PacketError, or coefficients that are whole."""

from __future__ import annotations

import numpy as np

from demoloco.codec import pack
from demoloco.codec.packet import PacketSpec, decode, encode
from demoloco.errors import PacketError

HEAD = 4


def accept_or_refuse(body: bytes, spec: PacketSpec) -> bool:
    """Whether the body was accepted; then it must be all that a Sparse promises."""
    try:
        sparse = decode(body, spec)
    except PacketError:
        return False
    assert sparse.index.shape == sparse.value.shape == (spec.chunks, sparse.k)
    assert sparse.k in spec.ladder
    assert sparse.index.min() >= 0
    assert sparse.index.max() < 4096
    assert (np.diff(sparse.index, axis=1) > 0).all()
    assert np.isfinite(sparse.value).all()
    assert np.abs(sparse.value).max() <= 2.0**44
    return True


def tell_again(body: bytes, spec: PacketSpec) -> None:
    """What was read from an accepted body can be told in a new one, at the same places."""
    sparse = decode(body, spec)
    if np.abs(sparse.value).mean(axis=1).max() <= 2.0**31:  # else it is a diverged model's
        again, told = encode(sparse, spec)
        read = decode(again, spec)
        assert np.array_equal(read.index, sparse.index)
        assert read.value.tobytes() == told.value.tobytes()


def laid_open(body: bytes) -> bytes:
    """The same body with its streams as they are before zstd, where mutations reach them."""
    reader = pack.Reader(body)
    head = reader.take(HEAD)
    lengths = [reader.varint() for _ in range(3)]
    rest = reader.take(len(body) - HEAD - sum(len(pack.write_varint(one)) for one in lengths))
    return head + _opened(rest, lengths)


def _opened(rest: bytes, lengths: list[int]) -> bytes:
    """Streams lie in their order; each frame is found by the bytes it begins with."""
    magic, at, parts, opened = b"\x28\xb5\x2f\xfd", 0, [], []
    for length in lengths:
        size = length >> 1
        if not length & 1:
            opened.append(size)
            continue
        start = rest.index(magic, at)
        stream = pack.expand(rest[start : start + size], 1 << 24)
        parts += [rest[at:start], stream]
        opened.append(len(stream))
        at = start + size
    return b"".join([*(pack.write_varint(size << 1) for size in opened), *parts, rest[at:]])
