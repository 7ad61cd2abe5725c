"""A gift's bytes: small values survive, and nothing that anyone may have written does harm."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from demoloco.codec import gift
from demoloco.codec.gift import Content, Floats, GiftSpec
from demoloco.codec.layout import CHUNK
from demoloco.errors import PacketError
from demoloco.types import Digest
from demoloco.wire import digest_of

HEAD = Digest(b"h" * 32)
SPEC = GiftSpec(layout=Digest(b"l" * 32), chunks=2, values=CHUNK + 10)
HEADER_BYTES = 73
BLOCK_BYTES = 4 + CHUNK


def values(count: int, spread: float = 4.0, seed: int = 0) -> Floats:
    """Of both signs, over many orders of magnitude."""
    rng = np.random.default_rng(seed)
    return (rng.normal(size=count) * 10.0 ** -rng.uniform(0, spread, count)).astype(np.float32)


def content(**other: object) -> Content:
    rows: dict[str, object] = {
        "owed": [values(2 * CHUNK)],
        "first": [values(CHUNK - 3, seed=1), values(13, seed=2)],
        "second": [np.square(values(SPEC.values, seed=3))],
    }
    return Content(HEAD, 7, **(rows | other))  # type: ignore[arg-type]


@pytest.fixture
def written(tmp_path: Path) -> Path:
    path = tmp_path / "gift"
    gift.write(path, SPEC, content())
    return path


def test_a_gift_has_the_size_of_its_spec(written: Path) -> None:
    assert written.stat().st_size == SPEC.size == HEADER_BYTES + 6 * BLOCK_BYTES
    assert SPEC.size <= gift.max_bytes(SPEC.chunks)


def test_signed_values_come_back_within_a_hundredth_of_the_largest(written: Path) -> None:
    found = gift.read(written, SPEC)
    assert (found.head, found.steps) == (HEAD, 7)
    there, back = values(2 * CHUNK), found.owed.read(0, 2 * CHUNK)
    scale = np.abs(there.reshape(2, CHUNK)).max(axis=1).repeat(CHUNK)
    error = np.abs(there - back)
    assert (error <= 0.0082 * np.sqrt(np.abs(there) * scale) + 2e-5 * scale).all()
    assert np.linalg.norm(error) < 0.01 * np.linalg.norm(there)


def test_second_moments_come_back_within_a_twentieth_over_thirty_octaves(tmp_path: Path) -> None:
    there = np.exp2(np.linspace(-31, 0, SPEC.values)).astype(np.float32)
    gift.write(tmp_path / "gift", SPEC, content(second=[there]))
    back = gift.read(tmp_path / "gift", SPEC).second.read(0, CHUNK)
    np.testing.assert_allclose(back, there[:CHUNK], rtol=0.05)


def test_no_second_moment_becomes_zero(tmp_path: Path) -> None:
    there = np.full(SPEC.values, 1e-30, np.float32)
    there[::2] = 1e6
    gift.write(tmp_path / "gift", SPEC, content(second=[there]))
    assert (gift.read(tmp_path / "gift", SPEC).second.read(0, SPEC.values) > 0).all()


def test_zeros_stay_zeros(tmp_path: Path) -> None:
    nothing = np.zeros(SPEC.values, np.float32)
    rows = {"owed": [nothing[:CHUNK]] * 2, "first": [nothing], "second": [nothing]}
    gift.write(tmp_path / "gift", SPEC, content(**rows))
    found = gift.read(tmp_path / "gift", SPEC)
    assert not found.owed.read(0, CHUNK).any()
    assert not found.second.read(0, SPEC.values).any()


def test_what_is_owed_is_read_without_the_moments(written: Path) -> None:
    whole = gift.read(written, SPEC).owed.read(0, 2 * CHUNK)
    for length in (SPEC.size, SPEC.size - 1, gift.owed_bytes(SPEC.chunks)):
        written.write_bytes(written.read_bytes()[:length])
        head, owed = gift.read_owed(written, SPEC.layout, SPEC.chunks)
        assert head == HEAD
        np.testing.assert_array_equal(owed.read(0, 2 * CHUNK), whole)


def test_the_beginning_of_a_gift_is_checked_like_all_of_it(written: Path) -> None:
    with pytest.raises(PacketError, match="a gift for another model"):
        gift.read_owed(written, HEAD, SPEC.chunks)
    changed(written, HEADER_BYTES + BLOCK_BYTES, np.float32(np.nan).tobytes())
    with pytest.raises(PacketError, match="a scale that is not finite"):
        gift.read_owed(written, SPEC.layout, SPEC.chunks)
    written.write_bytes(written.read_bytes()[: gift.owed_bytes(SPEC.chunks) - 1])
    with pytest.raises(PacketError, match="a gift that begins with"):
        gift.read_owed(written, SPEC.layout, SPEC.chunks)


def test_any_part_of_a_row_can_be_read(written: Path) -> None:
    first = gift.read(written, SPEC).first
    whole = first.read(0, SPEC.values)
    for start, stop in [(0, 1), (CHUNK - 3, CHUNK + 3), (CHUNK, CHUNK + 10), (5, 5)]:
        np.testing.assert_array_equal(first.read(start, stop), whole[start:stop])


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf, 1e30])
@pytest.mark.parametrize("row", ["owed", "first", "second"])
def test_what_is_not_finite_is_not_given(tmp_path: Path, row: str, bad: float) -> None:
    rows = {"owed": values(2 * CHUNK), "first": values(SPEC.values), "second": values(SPEC.values)}
    rows[row][17] = bad
    with pytest.raises(ValueError, match="not finite or too large"):
        gift.write(tmp_path / "gift", SPEC, content(**{row: [rows[row]]}))


def test_fewer_values_than_the_spec_has_are_not_a_gift(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="its spec has"):
        gift.write(tmp_path / "gift", SPEC, content(owed=[values(CHUNK)]))


def test_the_parts_of_a_file_are_its_blobs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gift, "PART_BYTES", 10)
    (tmp_path / "file").write_bytes(bytes(range(25)))
    parts = gift.parts_of(tmp_path / "file")
    assert [part.size for part in parts] == [10, 10, 5]
    assert parts[2].digest == digest_of(bytes(range(20, 25)))


# -- hostile bytes ---------------------------------------------------------------------------------
def changed(path: Path, at: int, data: bytes) -> Path:
    whole = bytearray(path.read_bytes())
    whole[at : at + len(data)] = data
    path.write_bytes(whole)
    return path


@pytest.mark.parametrize(
    ("at", "data", "why"),
    [
        (0, b"\x02", "version 2"),
        (1, b"x", "another model"),
        (65, bytes(8), "after 0 inner steps"),
        (65, b"\xff" * 8, "inner steps"),
        (HEADER_BYTES, np.float32(np.nan).tobytes(), "scale"),
        (HEADER_BYTES, np.float32(-1).tobytes(), "scale"),
        (HEADER_BYTES + 5 * BLOCK_BYTES, np.float32(np.inf).tobytes(), "scale"),
        (HEADER_BYTES + BLOCK_BYTES, np.float32(2.0**65).tobytes(), "scale"),
    ],
)
def test_a_wrong_field_is_named(written: Path, at: int, data: bytes, why: str) -> None:
    with pytest.raises(PacketError, match=why):
        gift.read(changed(written, at, data), SPEC)


@pytest.mark.parametrize("change", [-1, 1])
def test_a_byte_more_or_less_is_refused(written: Path, change: int) -> None:
    whole = written.read_bytes()
    written.write_bytes(whole[:change] if change < 0 else whole + b"x")
    with pytest.raises(PacketError, match="bytes; this run's have"):
        gift.read(written, SPEC)


SMALL = GiftSpec(layout=Digest(b"l" * 32), chunks=1, values=1)
GOOD = bytes([1]) + SMALL.layout + HEAD + (7).to_bytes(8, "little")


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.binary(min_size=73, max_size=73) | st.just(GOOD), st.integers(0, 2**32 - 1), st.booleans()
)
def test_any_bytes_are_a_gift_of_finite_values_or_refused(
    tmp_path: Path, head: bytes, seed: int, tame: bool
) -> None:
    noise = np.random.default_rng(seed).integers(0, 256, (3, BLOCK_BYTES), np.uint8)
    if tame:
        noise[:, :4] = np.frombuffer(np.float32(3.0).tobytes(), np.uint8)
    path = tmp_path / "any"
    path.write_bytes(head + noise.tobytes())
    try:
        found = gift.read(path, SMALL)
    except PacketError:
        return
    for row, count in ((found.owed, CHUNK), (found.first, 1), (found.second, 1)):
        read = row.read(0, count)
        assert len(read) == count
        assert (np.abs(read) <= gift.MAX_SCALE).all()
    assert (found.second.read(0, 1) >= 0).all()
