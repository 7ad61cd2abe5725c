"""The k of a packet: as large as the links and the worker bear, steady, and regardful of others."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from itertools import pairwise
from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from demoloco.codec.packet import PacketSpec, Sparse, encode
from demoloco.config import RunConfig
from demoloco.node.density import (
    LINK_SHARE,
    NO_CHOICE,
    UNKNOWN_ROUNDS,
    UNMEASURED,
    Density,
    Surroundings,
    _bits,
)
from demoloco.types import Digest, Member, PeerId, Phase, Round

MBIT = 125_000.0
LADDER = RunConfig().ladder
TRAIN_SECONDS = 10.0
SPEED = 50 * 16 / TRAIN_SECONDS  # samples a second of a node that trains a round in that


def member(name: str, down: float, speed: float = SPEED) -> Member:
    return Member(
        peer=PeerId(name),
        run=Digest(bytes(32)),
        addresses=(),
        head=None,
        phase=Phase.TRAINING,
        sequence=Round(1),
        samples_per_second=speed,
        down=down,
    )


@dataclass
class Desk:
    """A node that makes packet after packet."""

    chunks: int = 250  # a million parameters
    config: RunConfig = field(default_factory=RunConfig)
    at: float = 0.0
    make_seconds: float = 0.05

    def __post_init__(self) -> None:
        self.density = Density(self.config, lambda: self.at)
        self.around = Surroundings(speed=SPEED)
        self.density.look = lambda: self.around

    def size(self, k: int) -> int:
        return int(self.chunks * _bits(k, self.config.bits) / 8) + 500

    def packet(self, **changes: object) -> int:
        """The k of the next one."""
        self.around = replace(self.around, **changes)  # type: ignore[arg-type]
        k = self.density.choose()
        self.at += self.make_seconds * k / 64
        self.density.made(self.size(k), k)
        self.at += TRAIN_SECONDS
        sent = self.around.blobs_sent + int(1.5 * self.size(k))
        self.around = replace(self.around, blobs_sent=sent)
        return k

    def packets(self, count: int, **changes: object) -> list[int]:
        return [self.packet(**changes) for _ in range(count)]


def others(*downs: float) -> tuple[Member, ...]:
    return tuple(member(f"member{number}", down) for number, down in enumerate(downs))


def test_the_run_says_k_before_anything_is_measured() -> None:
    desk = Desk()
    assert desk.packets(3, others=others(50 * MBIT)) == [64] * 3
    assert desk.density.why == UNMEASURED


def test_where_the_ladder_has_one_k_nothing_is_waited_for() -> None:
    desk = Desk(config=RunConfig.of(method="diloco"))
    assert desk.packets(2) == [4096] * 2
    assert desk.density.why == NO_CHOICE


def test_k_rises_rung_by_rung_where_it_is_free() -> None:
    desk = Desk()
    rungs = desk.packets(6, up=100 * MBIT, others=others(100 * MBIT))
    assert rungs == [64, 128, 256, 512, 512, 512]
    assert desk.density.why.startswith("it takes ")


def test_k_falls_at_once_as_far_as_needed_and_below_the_runs_own() -> None:
    desk = Desk(chunks=25_000)
    assert desk.packets(4, up=1000 * MBIT, others=others(1000 * MBIT))[-1] == 512
    assert desk.packet(up=2 * MBIT) == 32
    assert desk.density.why == "with 64 it takes 7.7 s to send in a round of 10.0 s, on 2 Mbit/s up"


def test_nothing_of_the_ladder_is_left_below_its_first_rung() -> None:
    desk = Desk(chunks=250_000)
    desk.packet()
    assert desk.packet(up=2 * MBIT, others=others(2 * MBIT)) == 8


@pytest.mark.parametrize("up", [2, 5, 20, 100])
def test_the_packet_fits_into_its_share_of_the_training_time(up: float) -> None:
    desk = Desk(chunks=2_500)
    k = desk.packets(8, up=up * MBIT, others=others(1000 * MBIT, 1000 * MBIT))[-1]
    allowed = LINK_SHARE * TRAIN_SECONDS
    assert 1.5 * desk.size(k) / (up * MBIT) <= allowed
    above = LADDER[min(LADDER.index(k) + 1, len(LADDER) - 1)]
    assert k == 512 or 1.3 * 1.5 * desk.size(above) / (up * MBIT) > 0.95 * allowed


def test_k_regards_the_thinnest_downlink() -> None:
    desk = Desk()
    k = desk.packets(8, up=100 * MBIT, others=others(100 * MBIT, 1 * MBIT))[-1]
    assert k == 512
    desk = Desk(chunks=2_500)
    k = desk.packets(8, up=100 * MBIT, others=others(100 * MBIT, 2 * MBIT))[-1]
    assert 64 < k < 512
    assert 2 * desk.size(k) <= LINK_SHARE * TRAIN_SECONDS * 2 * MBIT
    assert "member1"[-6:] in desk.density.why


def test_for_others_sake_k_never_falls_below_the_runs_own() -> None:
    desk = Desk(chunks=25_000)
    assert desk.packets(4, up=1000 * MBIT, others=others(0.2 * MBIT)) == [64] * 4


def test_k_waits_for_a_downlink_that_is_not_known_but_not_for_ever() -> None:
    desk = Desk()
    rungs = desk.packets(12, up=100 * MBIT, others=others(0.0))
    assert rungs[:UNKNOWN_ROUNDS] == [64] * UNKNOWN_ROUNDS
    assert rungs[-1] == 512


def test_k_holds_when_a_member_comes_whose_downlink_is_not_known() -> None:
    desk = Desk()
    desk.packets(3, up=100 * MBIT, others=others(100 * MBIT))
    assert desk.packets(4, others=others(100 * MBIT, 0.0)) == [256] * 4


def test_k_falls_for_a_thin_member_as_soon_as_it_is_known() -> None:
    desk = Desk(chunks=2_500)
    desk.packets(8, up=1000 * MBIT, others=others(1000 * MBIT, 0.0))
    assert desk.packet(others=others(1000 * MBIT, 1 * MBIT)) == 128


def test_eight_members_with_the_largest_k_still_fetch_all_packets_in_time() -> None:
    down = 20 * MBIT
    desk = Desk(chunks=5_000)
    k = desk.packets(10, up=1000 * MBIT, others=others(*[down] * 7))[-1]
    assert 7 * desk.size(k) <= LINK_SHARE * TRAIN_SECONDS * down
    assert k == 256


def test_a_rung_that_did_not_hold_is_tried_ever_more_rarely() -> None:
    """It seems to fit, and what follows shows that it does not."""
    desk = Desk(chunks=5_000)
    rungs = []
    for _ in range(80):
        thin = desk.density.k > 256
        rungs.append(desk.packet(up=(2 if thin else 20) * MBIT, others=others(1000 * MBIT)))
    tries = [at for at, (a, b) in enumerate(pairwise(rungs)) if a <= 256 < b]
    assert 2 <= len(tries) <= 6
    gaps = [b - a for a, b in pairwise(tries)]
    assert gaps == sorted(gaps)


def test_one_packet_that_was_long_in_the_making_does_not_move_k() -> None:
    desk = Desk()
    desk.packets(6, up=100 * MBIT, others=others(100 * MBIT))
    desk.make_seconds = 1.0
    desk.packet()
    desk.make_seconds = 0.05
    assert desk.packets(4) == [512] * 4


def test_k_does_not_rise_where_making_the_packet_would_take_too_long() -> None:
    desk = Desk(make_seconds=0.3)
    assert desk.packets(6, up=100 * MBIT, others=others(100 * MBIT))[-1] == 128
    told = "with 256 it takes 1.2 s to make in a round of 10.0 s"
    assert desk.density.why == told


def test_a_fast_node_has_the_time_in_which_a_quorum_trains() -> None:
    slow = (member("one", 1000 * MBIT), member("other", 1000 * MBIT))
    alone, among = Desk(chunks=2_500), Desk(chunks=2_500)
    fast = {"up": 5 * MBIT, "speed": 10 * SPEED}
    k = alone.packets(8, others=(replace(slow[0], samples_per_second=10 * SPEED),), **fast)[-1]
    assert among.packets(8, others=slow, **fast)[-1] > k


def test_where_the_run_says_how_long_a_round_trains_the_packet_fits_into_that() -> None:
    desk = Desk(config=RunConfig(round_seconds=20.0, inner_steps=1))
    desk.packets(2, up=0.2 * MBIT)
    assert "in a round of 20.0 s, on 0.2 Mbit/s up" in desk.density.why


def test_a_ladder_of_one_rung_is_a_fixed_k() -> None:
    desk = Desk(config=RunConfig(k=32, ladder=(32,)))
    assert desk.packets(5, up=1000 * MBIT, others=others(1000 * MBIT)) == [32] * 5


@given(st.floats(0.5, 200), st.integers(0, 1000), st.integers(250, 250_000))
@settings(max_examples=60, deadline=None)
def test_k_does_not_flap_while_what_is_measured_shakes_by_a_tenth(
    up: float, seed: int, chunks: int
) -> None:
    desk, rng = Desk(chunks=chunks), Random(seed)
    rungs = []
    for _ in range(40):
        shaken = up * MBIT * rng.uniform(0.9, 1.1)
        rungs.append(desk.packet(up=shaken, others=others(1000 * MBIT)))
    settled = [earlier != later for earlier, later in pairwise(rungs[10:])]
    assert sum(settled) <= 1
    assert all(LADDER.index(b) - LADDER.index(a) <= 1 for a, b in pairwise(rungs))


@pytest.mark.parametrize("bits", [1, 2, 4])
def test_the_size_of_a_packet_is_foreseen_rung_by_rung(bits: int) -> None:
    spec = PacketSpec((64,), bits, LADDER)
    told = np.random.default_rng(0).standard_t(4, (64, 4096)) * np.exp(-np.arange(4096) / 1500)
    sizes = {}
    for k in LADDER:
        index = np.sort(np.argpartition(-abs(told), k, axis=1)[:, :k], axis=1).astype(np.int32)
        value = np.take_along_axis(told, index, 1).astype(np.float32)
        sizes[k] = len(encode(Sparse(index, value), spec)[0])
    for low, high in pairwise(LADDER):
        assert _bits(high, bits) / _bits(low, bits) == pytest.approx(
            sizes[high] / sizes[low], rel=0.1
        )
