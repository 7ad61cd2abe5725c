"""A packet's body: what is decoded is what the sender computed with, at the promised size."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from demoloco.codec import pack, quantise
from demoloco.codec.layout import layout_of
from demoloco.codec.packet import PacketSpec, Sparse, decode, encode, max_bytes, norm
from demoloco.errors import ConfigError
from demoloco.types import TensorShape
from tests.core import twins

SMALL_MODEL = (8, 4, 12, 4, 16, 16, 12, 4, 16, 16, 12, 4, 16, 16, 12, 4, 16, 16, 1)


def same(left: Sparse, right: Sparse) -> bool:
    """Equal to the bit, so 0.0 is not -0.0."""
    return left.index.tobytes() == right.index.tobytes() and (
        left.value.tobytes() == right.value.tobytes()
    )


def round_trip(sparse: Sparse, spec: PacketSpec) -> Sparse:
    body, told = encode(sparse, spec)
    read = decode(body, spec)
    assert same(read, told)
    assert np.array_equal(read.index, sparse.index)
    assert len(body) <= max_bytes(spec)
    assert read.index.dtype == np.int32
    assert read.value.dtype == np.float32
    return read


@pytest.mark.parametrize("bits", quantise.BITS)
@pytest.mark.parametrize("k", [1, 7, 64, 512, 4095, 4096])
def test_a_receiver_reads_exactly_what_the_sender_takes_out(bits: int, k: int) -> None:
    momenta = twins.momenta(40, seed=k)
    read = round_trip(twins.largest(momenta, k), twins.spec_of((5, 33, 2), bits, k))
    kept = np.take_along_axis(momenta, read.index, 1)
    assert ((read.value < 0) == (kept < 0)).all()


@st.composite
def sparses(draw: st.DrawFn) -> tuple[Sparse, PacketSpec]:
    """Any chunk counts, k, bits; values from tiny to huge, some chunks zero."""
    groups = tuple(draw(st.lists(st.integers(0, 40), min_size=1, max_size=4).filter(any)))
    k = draw(st.sampled_from([1, 2, 31, 64, 300]))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    chunks = sum(groups)
    index = np.sort(np.argsort(rng.random((chunks, 4096)), axis=1)[:, :k], axis=1)
    scale = 2.0 ** rng.integers(-90, 30, (chunks, 1)) * rng.integers(0, 2, (chunks, 1))
    value = (rng.standard_t(2, (chunks, k)).clip(-3, 3) * scale).astype(np.float32)
    spec = PacketSpec(groups, draw(st.sampled_from(quantise.BITS)), (k, 4096))
    return Sparse(index.astype(np.int32), value), spec


@settings(max_examples=40)
@given(sparses())
def test_any_coefficients_survive_the_way(case: tuple[Sparse, PacketSpec]) -> None:
    round_trip(*case)


@settings(max_examples=40)
@given(sparses())
def test_no_told_value_is_far_from_the_truth(case: tuple[Sparse, PacketSpec]) -> None:
    """Even one bit must not tell more than the error that it leaves owed."""
    sparse, spec = case
    _, told = encode(sparse, spec)
    left = np.linalg.norm(sparse.value.astype(np.float64) - told.value, axis=1)
    assert (left <= 1.001 * np.linalg.norm(sparse.value.astype(np.float64), axis=1)).all()


@pytest.mark.parametrize("bits", quantise.BITS)
def test_a_packet_of_zeros_tells_zeros(bits: int) -> None:
    index = np.tile(np.arange(64, dtype=np.int32), (50, 1))
    read = round_trip(Sparse(index, np.zeros((50, 64), np.float32)), twins.spec_of((50,), bits))
    assert not read.value.any()
    assert norm(read) == 0.0


def test_a_chunk_of_zeros_among_others_stays_zero() -> None:
    momenta = twins.momenta(40)
    momenta[[0, 17, 39]] = 0
    read = round_trip(twins.largest(momenta, 64), twins.spec_of((40,)))
    assert not read.value[[0, 17, 39]].any()
    assert read.value[1].all()


@pytest.mark.parametrize(("bits", "limit"), [(1, 0.12), (2, 0.045), (4, 0.006), (8, 0.0001)])
def test_more_bits_leave_less_error(bits: int, limit: float) -> None:
    sparse = twins.largest(twins.momenta(200), 64)
    read = round_trip(sparse, twins.spec_of((200,), bits))
    error = sparse.value - read.value
    assert (error**2).sum() / (sparse.value**2).sum() < limit


@pytest.mark.parametrize(("k", "limit"), [(64, 9.1), (32, 10.0)])
def test_a_packet_costs_little_more_than_its_information(k: int, limit: float) -> None:
    """Two-bit values, everything included, for a model of only 0.8 million parameters."""
    spec = twins.spec_of(SMALL_MODEL, 2, k)
    body, _ = encode(twins.largest(twins.momenta(spec.chunks), k), spec)
    assert 8 * len(body) / (spec.chunks * k) < limit


def test_indices_alone_stay_close_to_the_limit_where_nothing_is_predictable() -> None:
    noise = np.random.default_rng(0).normal(size=(1000, 4096)).astype(np.float32)
    spec = twins.spec_of((1000,), 1)
    body, _ = encode(twins.largest(noise, 64), spec)
    bits = 8 * len(body) / (1000 * 64) - 1  # without the sign
    assert bits < 1.03 * twins.entropy_of_choice(64)


def test_recurring_positions_cost_less_than_scattered_ones() -> None:
    positions = np.sort(np.random.default_rng(1).permutation(4096)[:64]).astype(np.int32)
    recurring = Sparse(np.tile(positions, (100, 1)), np.ones((100, 64), np.float32))
    scattered = twins.largest(twins.momenta(100), 64)
    spec = twins.spec_of((100,), 1)
    assert len(encode(recurring, spec)[0]) < 0.4 * len(encode(scattered, spec)[0])
    round_trip(recurring, spec)


def test_positions_recur_in_more_chunks_than_sixteen_bits_can_count() -> None:
    few = np.array([5, 6, 1000, 3000], np.int32)
    order = np.random.default_rng(2).random((70_000, 4)).argsort(axis=1)
    index = np.sort(few[order[:, :2]], axis=1)
    gaps, by_position = pack.write_gaps(index)
    assert by_position
    assert np.array_equal(pack.read_gaps(gaps, by_position, len(index)), index)


@pytest.mark.parametrize("bits", quantise.BITS)
@pytest.mark.parametrize("value", [0.5, 1.0, 1.04])  # of where scales are rounded up and down
def test_all_of_a_chunk_may_lie_in_one_coefficient(bits: int, value: float) -> None:
    whole = np.zeros((2, 4096), np.float32)
    whole[0, 0] = value
    read = round_trip(twins.largest(whole, 4096), twins.spec_of((2,), bits, 4096))
    if bits == 8:
        assert read.value[0, 0] == pytest.approx(value, rel=0.06)
        assert np.abs(read.value[0, 1:]).max() < value / 4096


@pytest.mark.parametrize("bits", quantise.BITS)
def test_the_same_coefficients_make_the_same_bytes(bits: int) -> None:
    sparse, spec = twins.largest(twins.momenta(60), 64), twins.spec_of((20, 40), bits)
    assert encode(sparse, spec)[0] == encode(sparse, spec)[0]


def test_the_norm_is_that_of_the_update() -> None:
    sparse = Sparse(np.array([[0, 5]], np.int32), np.array([[3.0, -4.0]], np.float32))
    assert norm(sparse) == 5.0


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), 1e12])
def test_a_diverged_model_is_not_told(bad: float) -> None:
    sparse = twins.largest(twins.momenta(4), 64)
    sparse.value[2, 5] = bad
    with pytest.raises(ValueError, match="diverged"):
        encode(sparse, twins.spec_of((4,)))


def test_coefficients_of_another_spec_are_not_encoded() -> None:
    sparse = twins.largest(twins.momenta(4), 32)
    for spec in (twins.spec_of((5,), k=32), twins.spec_of((4,), k=64)):
        with pytest.raises(ValueError, match="do not fit"):
            encode(sparse, spec)


def test_the_digest_of_a_spec_names_all_that_must_be_equal() -> None:
    spec = PacketSpec((3, 4), 2, (8, 64))
    others = [
        dataclasses.replace(spec, groups=(4, 3)),
        dataclasses.replace(spec, bits=4),
        dataclasses.replace(spec, ladder=(8,)),
    ]
    assert len(spec.digest) == 8
    assert len({spec.digest, *(other.digest for other in others)}) == 4
    assert dataclasses.replace(spec, ladder=(64, 8)).digest == spec.digest


def test_a_spec_is_made_from_a_layout() -> None:
    layout = layout_of([TensorShape(name="w", shape=(65, 64)), TensorShape(name="b", shape=(3,))])
    spec = PacketSpec.of(layout, bits=2, ladder=(8,))
    assert (spec.groups, spec.chunks) == ((2, 1), 3)


@pytest.mark.parametrize(
    ("groups", "bits", "ladder"),
    [((1,), 3, (8,)), ((1,), 2, ()), ((1,), 2, (0,)), ((1,), 2, (4097,)), ((), 2, (8,)),
     ((0,), 2, (8,)), ((2, -1), 2, (8,))],
)  # fmt: skip
def test_a_spec_that_cannot_be_is_refused(
    groups: tuple[int, ...], bits: int, ladder: tuple[int, ...]
) -> None:
    with pytest.raises(ConfigError):
        PacketSpec(groups, bits, ladder)


def test_sections_are_groups_or_enough_of_them() -> None:
    assert twins.spec_of((100, 40)).sections() == [slice(0, 100), slice(100, 140)]
    assert twins.spec_of((4, 4, 30, 40, 5)).sections() == [slice(0, 38), slice(38, 83)]
    assert twins.spec_of((4, 0, 5)).sections() == [slice(0, 9)]


def test_the_grid_of_values_is_the_same_on_every_machine() -> None:
    """A table entry near the middle of two floats could be rounded either way by two libraries."""
    exact = 2.0 ** (np.arange(quantise.LEVEL_STEPS) / quantise.LEVEL_STEPS)
    spacing = np.spacing(exact.astype(np.float32)).astype(np.float64)
    from_middle = np.abs(np.abs(exact - exact.astype(np.float32)) / spacing - 0.5)
    assert from_middle.min() > 1e-6
    codes = np.arange(1, quantise.MAX_SCALE_CODE + 1)
    scales = quantise.scales_of(codes)
    assert np.allclose(np.log2(scales.astype(np.float64)), codes / 8 - 64, atol=1e-6)
