"""One node's k while its link changes under it: from transfers to the estimate, the pace and k.

Rounds are in virtual time. Transfers are slowed by a cold connection's window, by an own pace and
by noise, and are cut when the round has been over for long."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from demoloco.config import RunConfig
from demoloco.node.density import LINK_SHARE, Density, Surroundings, _bits
from demoloco.swarm.links.access import Access
from demoloco.swarm.links.slow_start import GROWTH, WINDOW_BYTES
from demoloco.swarm.port import Link
from demoloco.types import Digest, Member, PeerId, Phase, Round

MBIT = 125_000.0
OPEN = 1000 * MBIT
ROUND_SECONDS = 10.0
CUT_SECONDS = 15.0
PIECES = 30
PUSHED_BYTES = 48_000
PEERS = (PeerId("one"), PeerId("other"))
LADDER = RunConfig().ladder


@dataclass
class Node:
    """It sends each packet to two others, one after the other."""

    chunks: int = 2_500  # ten million parameters
    noise: float = 0.0
    pushes: bool = False  # it gives large pieces to the road, or as much as goes
    seed: int = 0
    at: float = 0.0
    rate: float = OPEN
    trip: float = 0.001
    claim: float = OPEN  # what the others found out of theirs, which are alike; a round late
    sent: int = 0
    left_out: int = 0
    rungs: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.rng = Random(self.seed)
        self.access = Access(now=lambda: self.at, cold_starts=True)
        self.access.claims = lambda peer: Link(down=self.claim)
        self.density = Density(RunConfig(), lambda: self.at)
        self.density.look = self.around

    def around(self) -> Surroundings:
        speed = 50 * 16 / ROUND_SECONDS
        members = tuple(
            Member(
                peer=peer,
                run=Digest(bytes(32)),
                addresses=(),
                head=None,
                phase=Phase.TRAINING,
                sequence=Round(1),
                samples_per_second=speed,
                down=self.claim,
            )
            for peer in PEERS
        )
        return Surroundings(
            up=self.access.link.up, blobs_sent=self.sent, speed=speed, others=members
        )

    def size(self, k: int) -> int:
        return int(self.chunks * _bits(k, 2) / 8) + 500

    def becomes(self, mbit: float, trip: float) -> None:
        self.rate, self.trip = mbit * MBIT, trip

    def rounds(self, count: int) -> list[int]:
        return [self.round() for _ in range(count)]

    def round(self) -> int:
        """The k of its packet."""
        began = self.at
        k = self.density.choose()
        self.at += 0.05
        size = self.size(k)
        self.density.made(size, k)
        for peer in PEERS:
            self.send(peer, size, began + CUT_SECONDS)
        self.claim = self.rate
        self.at = max(self.at, began + ROUND_SECONDS)
        self.rungs.append(k)
        return k

    def send(self, peer: PeerId, size: int, end: float) -> None:
        for _ in range(3):
            self.access.round_trips.note(peer, self.trip * self.rng.uniform(1, 1.1))
        passages = [self.access.up.begin(peer)]
        began, pace = self.at, self.access.up.gate.pace
        paced = 0 < pace < self.rate
        writing = size / (pace if paced else self.rate)
        lag = idle(size, pace if paced else self.rate, self.trip)
        lag += (writing + lag) * self.rng.uniform(0, self.noise)
        pieces = max(1, size // PUSHED_BYTES) if self.pushes else PIECES
        events = []
        for number in range(pieces):
            if self.pushes:  # at the pace, or all at once; each has its own receipt
                gone = writing * number / pieces if paced else 0.0
                there = (writing + lag) * (number + 1) / pieces + self.trip
                events += [(gone, number, True), (there, number, False)]
                passages += [self.access.up.begin(peer)] if number else []
            else:
                gone = (writing if paced else writing + lag) * (number + 1) / pieces
                events.append((gone, 0, True))
        if not self.pushes:
            events.append((writing + lag + self.trip, 0, False))
        for seconds, number, goes in sorted(events, key=lambda event: (event[0], not event[2])):
            if began + seconds > end:
                self.left_out += 1
                break
            self.at = began + seconds
            if goes:
                waits = paced and (number > 0 or not self.pushes)
                passages[number]._passage.carried(  # type: ignore[union-attr]
                    size // pieces, writing / pieces if waits else 0.0
                )
                self.sent += size // pieces
            else:
                passages[number].arrived()
        for passage in passages:
            passage.__exit__()

    def fits(self, k: int) -> bool:
        copies = len(PEERS) * self.size(k)
        return copies / self.rate <= LINK_SHARE * ROUND_SECONDS * 1.1

    def best(self) -> int:
        """The highest rung that fits."""
        return max((k for k in LADDER if self.fits(k)), default=LADDER[0])


def idle(size: int, rate: float, trip: float) -> float:
    """While the window opens."""
    waits, window, sent = 0.0, WINDOW_BYTES, 0
    while sent + window < size and window < rate * trip:
        waits += trip - window / rate
        sent, window = sent + window, GROWTH * window
    return waits


COURSE = [(20, 0.1), (2, 0.3), (20, 0.1)]


@given(st.integers(0, 10_000), st.sampled_from([1_500, 2_500, 10_000, 25_000]), st.booleans())
@settings(max_examples=12, deadline=None)
def test_k_follows_the_link_within_three_rounds_down_and_eight_up(
    seed: int, chunks: int, pushes: bool
) -> None:
    node = Node(chunks=chunks, noise=0.2, pushes=pushes, seed=seed)
    node.rounds(6)
    for mbit, trip in COURSE:
        node.becomes(mbit, trip)
        node.rounds(3)
        out = node.left_out
        node.rounds(8)
        assert all(node.fits(k) or k == LADDER[0] for k in node.rungs[-8:])
        assert node.left_out == out or not node.fits(LADDER[0])
        assert node.rungs[-1] in _near(node.best())


@given(
    st.integers(0, 10_000),
    st.sampled_from([(2, 0.3), (5, 0.05), (20, 0.1), (50, 0.03)]),
    st.sampled_from([2_500, 10_000, 25_000]),
    st.booleans(),
)
@settings(max_examples=12, deadline=None)
def test_k_is_steady_on_a_steady_link(
    seed: int, link: tuple[float, float], chunks: int, pushes: bool
) -> None:
    node = Node(chunks=chunks, noise=0.3, pushes=pushes, seed=seed)
    node.becomes(*link)
    rungs = node.rounds(32)[12:]
    assert sum(a != b for a, b in pairwise(rungs)) <= 2


@given(st.integers(0, 10_000), st.sampled_from([(2, 0.3), (5, 0.05), (20, 0.1)]), st.booleans())
@settings(max_examples=12, deadline=None)
def test_the_estimate_is_right_within_a_quarter_where_packets_fill_the_link(
    seed: int, link: tuple[float, float], pushes: bool
) -> None:
    node = Node(chunks=10_000, noise=0.1, pushes=pushes, seed=seed)
    node.becomes(*link)
    node.rounds(10)
    for _ in range(10):
        node.round()
        assert node.access.link.up == pytest.approx(node.rate, rel=0.25)


def test_a_far_thinner_link_is_known_after_one_round() -> None:
    node = Node(chunks=10_000)
    node.becomes(100, 0.05)
    node.rounds(8)
    node.becomes(5, 0.05)
    node.round()
    assert node.access.link.up == pytest.approx(node.rate, rel=0.25)


def _near(k: int) -> tuple[int, ...]:
    """It, or the rung below, where there is little room to spare."""
    at = LADDER.index(k)
    return LADDER[max(0, at - 1) : at + 1]
