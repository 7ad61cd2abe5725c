"""The outer step on the agreed state: the same bits everywhere, and the names of states."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from blake3 import blake3
from hypothesis import given
from hypothesis import strategies as st

from demoloco.codec.packet import Sparse
from demoloco.outer import agreed
from demoloco.outer.agreed import advance, cut, digest_parts, fingerprint
from tests.core import twins


def state_of(chunks: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(chunks, 4096)).astype(np.float32)


def packets_of(chunks: int, ks: list[int]) -> list[Sparse]:
    return [twins.largest(twins.momenta(chunks, seed=seed), k) for seed, k in enumerate(ks)]


@given(st.lists(st.sampled_from([1, 8, 64]), max_size=5), st.floats(0.1, 2), st.integers(1, 6))
def test_the_step_is_that_of_scalars_one_after_the_other(
    ks: list[int], alpha: float, chunks: int
) -> None:
    before, packets = state_of(chunks), packets_of(chunks, ks)
    weights = [1 / (place + 3) for place in range(len(ks))]
    out = np.empty_like(before)
    advance(before, packets, weights, alpha, out)
    assert out.tobytes() == twins.advanced(before, packets, weights, alpha).tobytes()


@pytest.mark.parametrize("slab", [1, 7, 1000])
def test_the_size_of_a_slab_changes_no_bit(slab: int, monkeypatch: pytest.MonkeyPatch) -> None:
    before, packets = state_of(300), packets_of(300, [64, 8, 32])
    reference, out = np.empty_like(before), np.empty_like(before)
    advance(before, packets, [0.5, 0.3, 0.2], 0.9, reference)
    monkeypatch.setattr(agreed, "SLAB", slab)
    advance(before, packets, [0.5, 0.3, 0.2], 0.9, out)
    assert out.tobytes() == reference.tobytes()


def test_a_file_is_advanced_into_another_file_and_the_first_stays(tmp_path: Path) -> None:
    first, packets = state_of(5), packets_of(5, [64])
    first.tofile(tmp_path / "before")
    before = np.memmap(tmp_path / "before", np.float32, "r", shape=first.shape)
    out = np.memmap(tmp_path / "after", np.float32, "w+", shape=first.shape)
    advance(before, packets, [1.0], 1.0, out)
    out.flush()
    expected = twins.advanced(first, packets, [1.0], 1.0)
    assert (tmp_path / "after").read_bytes() == expected.tobytes()
    assert (tmp_path / "before").read_bytes() == first.tobytes()


def test_a_state_may_be_advanced_in_place() -> None:
    before, packets = state_of(3), packets_of(3, [64, 8])
    expected = twins.advanced(before, packets, [0.5, 0.5], 1.0)
    advance(before, packets, [0.5, 0.5], 1.0, before)
    assert before.tobytes() == expected.tobytes()


def test_no_packets_move_nothing() -> None:
    before = state_of(2)
    before[0, 0] = -0.0
    out = np.empty_like(before)
    advance(before, [], [], 1.0, out)
    assert out.tobytes() == before.tobytes()


def test_what_does_not_fit_is_an_error() -> None:
    state, packets = state_of(2), packets_of(2, [8])
    with pytest.raises(ValueError, match="1 packets and 2 weights"):
        advance(state, packets, [0.5, 0.5], 1.0, state)
    with pytest.raises(ValueError, match="not of 2 chunks"):
        advance(state, packets_of(3, [8]), [1.0], 1.0, state)
    with pytest.raises(ValueError, match="shapes"):
        advance(state, packets, [1.0], 1.0, np.empty((3, 4096), np.float32))
    with pytest.raises(ValueError, match="float64"):
        advance(state.astype(np.float64), packets, [1.0], 1.0, state)


def test_a_state_is_cut_into_blobs_that_make_it_whole_again() -> None:
    state = state_of(2500)
    blobs = list(cut(state))
    assert [len(blob) for blob in blobs] == [1 << 24, 1 << 24, 452 << 14]
    assert b"".join(blobs) == state.astype("<f4").tobytes()
    parts = digest_parts(state)
    assert [part.size for part in parts] == [len(blob) for blob in blobs]
    assert parts[2].digest == blake3(blobs[2]).digest()
    joined = blake3(b"".join(part.digest for part in parts)).digest()
    assert fingerprint(part.digest for part in parts) == joined


def test_a_state_of_the_other_byte_order_has_the_same_name() -> None:
    state = state_of(2)
    assert digest_parts(state.astype(">f4")) == digest_parts(state)
