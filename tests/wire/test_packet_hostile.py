"""Any bytes in: a whole Sparse or a PacketError out, and never much memory."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from demoloco.codec import pack, quantise
from demoloco.codec.packet import PacketSpec, decode, encode, max_bytes
from demoloco.errors import PacketError
from tests.core import twins
from tests.fuzz.promises import accept_or_refuse, laid_open, tell_again

GROUPS = (5, 40, 3)
CHUNKS = sum(GROUPS)
K = 16
HEAD = 4


def spec_for(bits: int) -> PacketSpec:
    return PacketSpec(GROUPS, bits, (8, K))


def good_body(bits: int) -> bytes:
    return encode(twins.largest(twins.momenta(CHUNKS), K), spec_for(bits))[0]


BODIES = {bits: good_body(bits) for bits in quantise.BITS}


@st.composite
def mutations(draw: st.DrawFn) -> tuple[bytes, PacketSpec]:
    bits = draw(st.sampled_from(quantise.BITS))
    body = bytearray(BODIES[bits])
    for _ in range(draw(st.integers(1, 3))):
        at = draw(st.integers(0, len(body) - 1) | st.integers(0, 30))
        match draw(st.sampled_from(["flip", "set", "cut", "splice", "repeat", "drop"])):
            case "flip":
                body[at] ^= 1 << draw(st.integers(0, 7))
            case "set":
                body[at] = draw(st.integers(0, 255))
            case "cut":
                body = body[: at + 1]
            case "splice":
                body[at : at + 16] = draw(st.binary(min_size=0, max_size=20))
            case "repeat":
                body[at:at] = body[at : at + 16]
            case "drop":
                del body[at : at + draw(st.integers(1, 16))]
        if len(body) <= 31:
            break
    return bytes(body), spec_for(bits)


@pytest.mark.parametrize("bits", quantise.BITS)
def test_a_body_without_zstd_means_the_same(bits: int) -> None:
    """What the fuzzer starts from reaches the code behind the entropy stage."""
    whole, opened = (
        decode(body, spec_for(bits)) for body in (BODIES[bits], laid_open(BODIES[bits]))
    )
    assert whole.index.tobytes() == opened.index.tobytes()
    assert whole.value.tobytes() == opened.value.tobytes()
    tell_again(laid_open(BODIES[bits]), spec_for(bits))


@given(mutations())
def test_a_mutated_packet_is_refused_or_whole(case: tuple[bytes, PacketSpec]) -> None:
    accept_or_refuse(*case)


@given(st.binary(max_size=400), st.sampled_from(quantise.BITS))
def test_noise_behind_a_good_head_is_refused_or_whole(noise: bytes, bits: int) -> None:
    accept_or_refuse(BODIES[bits][:HEAD] + noise, spec_for(bits))


@pytest.mark.parametrize("bits", quantise.BITS)
def test_thousands_of_seeded_mutations_are_refused_or_whole_in_bounded_memory(bits: int) -> None:
    rng, spec, accepted = np.random.default_rng(bits), spec_for(bits), 0
    accept_or_refuse(BODIES[bits], spec)
    tracemalloc.start()
    try:
        for _ in range(1000):
            body = bytearray(BODIES[bits])
            for at in rng.integers(0, len(body), rng.integers(1, 4)):
                body[at] ^= 1 << int(rng.integers(8))
            accepted += accept_or_refuse(bytes(body), spec)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 64 * 8 * CHUNKS * K + (1 << 17)
    assert accepted < 900  # most flips in planes are other values: only the digest can tell


@pytest.mark.parametrize("bits", quantise.BITS)
def test_a_truncated_packet_is_refused(bits: int) -> None:
    body = BODIES[bits]
    for length in range(0, len(body), 7):
        with pytest.raises(PacketError):
            decode(body[:length], spec_for(bits))


def test_bytes_after_the_end_are_refused() -> None:
    with pytest.raises(PacketError, match="after the end"):
        decode(BODIES[2] + b"\0", spec_for(2))


def test_a_newer_version_is_refused_by_name() -> None:
    with pytest.raises(PacketError, match="version 2; this node reads version 1"):
        decode(b"\2" + BODIES[2][1:], spec_for(2))


def test_other_bits_and_a_k_outside_the_ladder_are_refused() -> None:
    with pytest.raises(PacketError, match="4 bits per value, the run has 2"):
        decode(BODIES[4], spec_for(2))
    with pytest.raises(PacketError, match="not in the run's ladder"):
        decode(BODIES[2], PacketSpec(GROUPS, 2, (8, 32)))


def test_a_packet_of_another_model_is_refused() -> None:
    with pytest.raises(PacketError):
        decode(BODIES[2], PacketSpec((CHUNKS + 1,), 2, (K,)))


# -- bodies made by hand, each wrong in one place -------------------------------------------------
def body_of(
    *,
    scales: bytes = b"",
    gaps: bytes | None = None,
    levels: bytes = b"",
    tables: bytes = bytes([128, 0]),
    order: int = 0,
) -> bytes:
    """A packet of two chunks with k = 128 and two bits: no low bits."""
    gaps = bytes(256) if gaps is None else gaps
    scales = scales or pack.write_escaped(pack.fold(np.array([512, 0]))).tobytes()
    lengths = b"".join(pack.write_varint(len(part) << 1) for part in (scales, gaps, levels))
    head = b"\1\2" + (128).to_bytes(2, "little")
    planes = bytes([order << 7]), tables, scales, gaps, bytes(32), levels
    return head + lengths + b"".join(planes)


BY_HAND = PacketSpec((2,), 2, (128,))
EVEN = bytes(128) + bytes([255] * 15 + [3968 - 15 * 255]) + bytes(127)


def test_a_body_made_by_hand_is_read() -> None:
    sparse = decode(body_of(gaps=EVEN), BY_HAND)
    assert sparse.index.tolist() == [list(range(128))] * 2
    assert (sparse.value == 1.0).all()
    by_position = decode(body_of(order=1), BY_HAND)
    assert by_position.index.tolist() == [list(range(128))] * 2


@pytest.mark.parametrize(
    ("body", "why"),
    [
        (body_of(), "does not have its 128 indices"),
        (body_of(gaps=bytes(255)), "255 gaps"),
        (body_of(gaps=bytes(257)), "257 gaps"),
        (body_of(gaps=bytes(255) + b"\xff"), "ends within a number"),
        (body_of(gaps=b"\xff" * 32 + bytes(256)), "beyond the last chunk"),
        (body_of(gaps=b"\xff" * 40 + bytes(256)), "at most 288 are possible"),
        (body_of(gaps=EVEN, scales=b"\xff\x00"), "not the scales"),
        (body_of(gaps=EVEN, scales=bytes(1)), "not the scales"),
        (body_of(gaps=EVEN, scales=b"\x01\x00"), "not the scales"),
        (body_of(gaps=EVEN, scales=b"\xff\xff\xff\xff\xff\xff\x07\x00"), "not the scales"),
        (body_of(gaps=EVEN, scales=bytes(15)), "at most 14 are possible"),
        (body_of(gaps=EVEN, levels=b"\xff\x01"), "a level lies beyond"),
        (body_of(gaps=EVEN, levels=bytes(258)), "at most 257 are possible"),
        (body_of(gaps=EVEN, tables=bytes([255, 255])), None),
    ],
)
def test_a_body_that_is_wrong_in_one_place_is_refused(body: bytes, why: str | None) -> None:
    if why is None:  # the largest levels that a table of two can name
        assert decode(body, BY_HAND).value.max() <= 2.0**12
        return
    with pytest.raises(PacketError, match=why):
        decode(body, BY_HAND)


def test_levels_beyond_the_grid_are_refused() -> None:
    body = bytearray(BODIES[8])
    reader = pack.Reader(bytes(body[HEAD:]))
    lengths = [reader.varint() for _ in range(3)]
    tables = HEAD + sum(len(pack.write_varint(length)) for length in lengths) + 1
    body[tables : tables + 2] = b"\xff\xff"
    with pytest.raises(PacketError, match="larger than any coefficient"):
        decode(bytes(body), spec_for(8))


# -- the entropy stage and the lengths ------------------------------------------------------------
def test_a_frame_that_would_grow_beyond_its_bound_is_refused_unread() -> None:
    bomb = zstandard.ZstdCompressor().compress(bytes(1 << 26))
    with pytest.raises(PacketError, match="at most 1000 are possible"):
        pack.expand(bomb, 1000)


def test_a_frame_that_hides_its_size_is_refused() -> None:
    secretive = zstandard.ZstdCompressor(write_content_size=False).compress(bytes(1 << 20))
    with pytest.raises(PacketError, match="possible"):
        pack.expand(secretive, 1 << 21)


def test_a_frame_that_lies_about_its_size_is_refused() -> None:
    honest = zstandard.ZstdCompressor().compress(bytes(range(200)) * 2)
    assert zstandard.get_frame_parameters(honest).content_size == 400
    at = honest.index((400 - 256).to_bytes(2, "little"))
    for claimed in (256, 300, 500):
        lying = honest[:at] + (claimed - 256).to_bytes(2, "little") + honest[at + 2 :]
        with pytest.raises(PacketError, match="zstd"):
            pack.expand(lying, 1000)


@pytest.mark.parametrize("junk", [b"", b"\x28\xb5\x2f\xfd", b"junk that is no frame"])
def test_bytes_that_are_no_frame_are_refused(junk: bytes) -> None:
    with pytest.raises(PacketError, match="zstd"):
        pack.expand(junk, 1000)


def test_two_frames_in_a_stream_are_refused() -> None:
    frame = zstandard.ZstdCompressor().compress(bytes(100))
    assert pack.expand(frame, 100) == bytes(100)
    with pytest.raises(PacketError, match="zstd"):
        pack.expand(frame + frame, 1000)


@given(st.integers(0, 2**35 - 1))
def test_lengths_come_back(value: int) -> None:
    reader = pack.Reader(pack.write_varint(value))
    assert reader.varint() == value
    reader.finish()


def test_an_endless_length_is_refused() -> None:
    with pytest.raises(PacketError, match="more than 5 bytes"):
        pack.Reader(b"\xff" * 9).varint()


def test_planes_of_another_length_are_refused() -> None:
    with pytest.raises(PacketError, match="bit planes"):
        pack.read_planes(bytes(3), 2, 8)


@given(st.lists(st.integers(0, 2000)), st.integers(0, 3))
def test_numbers_come_back_from_bytes_and_planes(values: list[int], width: int) -> None:
    numbers = np.array(values, np.int64)
    stream = pack.write_escaped(numbers).tobytes()
    assert pack.read_escaped(stream).tolist() == values
    planes = pack.write_planes(numbers, width)
    assert pack.read_planes(planes, width, len(values)).tolist() == [
        value & ((1 << width) - 1) for value in values
    ]
    signed = numbers - 1000
    assert pack.unfold(pack.fold(signed)).tolist() == signed.tolist()


def test_no_packet_of_a_spec_is_longer_than_its_bound() -> None:
    spec = PacketSpec((3,), 2, (1, 64, 4096))
    for k in spec.ladder:
        noise = np.random.default_rng(k).standard_cauchy((3, 4096)).astype(np.float32)
        assert len(encode(twins.largest(noise, k), spec)[0]) <= max_bytes(spec)
