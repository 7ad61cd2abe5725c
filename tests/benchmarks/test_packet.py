"""The packet's benchmark, small: real momenta of a minute's model, and the formats it compares."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch

from benchmarks.packet import sizes, speed, tries
from benchmarks.packet.figures import figures
from benchmarks.packet.formats import FORMATS, FrontEnd, blocks_of, limit
from benchmarks.packet.models import Size
from benchmarks.packet.momenta import Momenta, grow


@pytest.fixture(scope="module")
def gpt() -> Momenta:
    return grow(Size("gpt", 4, 128, 2, 4, 2), 2, lambda text: None)


@pytest.fixture(scope="module")
def odd() -> Momenta:
    return grow(Size("odd", 0, 40, 1, 3, 2), 1, lambda text: None)


def bits_of(rows: Sequence[sizes.Row], k: int, name: str) -> float:
    return next(
        row["bits_per_coefficient"] for row in rows if row["k"] == k and row["format"] == name
    )


def test_packets_of_real_momenta_keep_their_promise(gpt: Momenta, odd: Momenta) -> None:
    """Two-bit values, everything in: a GPT of 0.85 M parameters, and 50257 rows, 7×7 convolutions,
    vectors, a scalar."""
    for name, found in (("gpt", gpt), ("odd", odd)):
        rows = sizes.measure(name, found, (32, 64))
        assert bits_of(rows, 64, "ours, 2 bit") <= 9.1
        assert bits_of(rows, 32, "ours, 2 bit") <= 10.0


def test_other_formats_cost_what_their_names_say(gpt: Momenta) -> None:
    rows = sizes.measure("gpt", gpt, (64,))
    assert bits_of(rows, 64, "DeMo, 64 + 32 bit") == 96
    assert 17 <= bits_of(rows, 64, "Psyche, 16 + 1 bit") < 17.2
    assert 14 <= bits_of(rows, 64, "12 + 2 bit") < 14.5
    assert bits_of(rows, 64, "limit, 2 bit") == pytest.approx(9.364, abs=0.001)
    assert limit(4096, 0) == pytest.approx(0, abs=1e-9)
    assert {row["format"] for row in rows} >= set(FORMATS)


def test_steps_are_timed_in_all_their_parts_and_become_figures(gpt: Momenta) -> None:
    times = speed.measure(gpt, 32, 1)
    assert min(times.values()) > 0
    parts = [value for name, value in times.items() if name.startswith("ours_")]
    assert len(parts) == 4
    rows = sizes.measure("gpt", gpt, (32, 64))
    facts = {"times": times, "sizes": rows, "peak": {"millions": 2, "bytes": 1e6}}
    told = figures(facts)
    assert told["peak_bytes_per_parameter"] == 0.5
    assert told["outer_step_speedup_over_demo"] == times["demo"] / times["ours"]
    assert told["bits_per_coefficient_k64"] == bits_of(rows, 64, "ours, 2 bit")


@pytest.mark.parametrize(
    ("shape", "blocks"),
    [((128, 192), (2, 64, 3, 64)), ((50257, 3), (1733, 29, 1, 3)), ((7,), (1, 1, 1, 7)),
     ((), (1, 1, 1, 1)), ((64, 3, 7, 7), (1, 64, 3, 49))],
)  # fmt: skip
def test_the_front_end_of_others_cuts_and_joins(shape: tuple[int, ...], blocks: object) -> None:
    assert blocks_of(torch.Size(shape)) == blocks
    tensor, front = torch.randn(shape), FrontEnd()
    all_kept = front.encode(tensor, 4096)
    back = front.decode(tensor.shape, all_kept.index, all_kept.value)
    assert torch.allclose(back, tensor, atol=1e-4)


def test_what_could_be_saved_is_a_small_part_of_a_packet(gpt: Momenta) -> None:
    told = tries.measure("gpt", gpt, 64)
    assert set(told["saved"]) == set(tries.TRIES)
    assert all(abs(bits) < 0.05 * told["bits"] for bits in told["saved"].values())
