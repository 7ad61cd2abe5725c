"""Blobs go up just below what the link carries, and find out when it carries more."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from demoloco.swarm.links.access import Access
from demoloco.swarm.port import Link
from demoloco.types import PeerId

MBIT = 125_000.0
PEER = PeerId("peer")
PAUSE_SECONDS = 5.0


@dataclass
class Lab:
    """A link with a long queue before it: what is sent too fast arrives at the link's rate."""

    rate: float
    round_trip: float = 0.1
    claim: float = 100 * MBIT
    at: float = 0.0

    def __post_init__(self) -> None:
        self.access = Access(now=lambda: self.at, cold_starts=False)
        self.access.claims = lambda peer: Link(down=self.claim)
        self.access.round_trips.note(PEER, self.round_trip)

    @property
    def pace(self) -> float:
        return self.access.up.gate.pace

    def send(self, seconds: float = 1.0) -> float:
        """A blob that takes the link about so long; the pace at which it went."""
        size = int(seconds * self.rate)
        with self.access.up.begin(PEER) as passage:
            pace, began = self.pace, self.at
            if pace:
                self.at += size / pace
            passage._passage.carried(size, self.at - began)
            self.at = max(self.at, began + size / self.rate) + self.round_trip
            passage.arrived()
        self.at += PAUSE_SECONDS
        return pace


def test_nothing_is_paced_before_the_link_is_known() -> None:
    lab = Lab(20 * MBIT)
    assert lab.send() == 0


@given(st.floats(1, 40), st.floats(0.01, 0.3))
@settings(max_examples=10, deadline=None)
def test_the_pace_is_below_the_link_most_of_the_time_and_never_far_below(
    mbit: float, round_trip: float
) -> None:
    lab = Lab(mbit * MBIT, round_trip)
    paces = [lab.send(2.0) for _ in range(40)][1:]
    assert sum(pace <= lab.rate for pace in paces) >= 0.6 * len(paces)
    assert min(pace for pace in paces[10:] if pace) >= 0.8 * lab.rate
    assert paces.count(0) <= len(paces) / 5


def test_a_link_that_got_faster_is_found() -> None:
    lab = Lab(2 * MBIT)
    for _ in range(10):
        lab.send()
    lab.rate = 20 * MBIT
    paces = [lab.send() for _ in range(24)]
    assert paces[-1] > 0.8 * lab.rate
    assert lab.access.link.up == pytest.approx(lab.rate, rel=0.2)


def test_a_link_that_got_thin_is_followed() -> None:
    lab = Lab(20 * MBIT)
    for _ in range(10):
        lab.send()
    lab.rate = 2 * MBIT
    for _ in range(6):
        lab.send()
    assert lab.send() <= 1.2 * lab.rate


def test_a_thin_receiver_does_not_slow_what_others_take() -> None:
    lab = Lab(2 * MBIT, claim=2 * MBIT)  # what the receiver takes; the sender's link is fat
    for _ in range(4):
        lab.send()
    lab.claim = 100 * MBIT
    assert lab.send() == 0


def test_a_fat_link_is_not_paced() -> None:
    lab = Lab(200 * MBIT, claim=1000 * MBIT)
    assert [lab.send() for _ in range(3)] == [0, 0, 0]


def test_what_comes_unasked_is_timed_from_its_first_piece_on() -> None:
    now = [0.0]
    access = Access(now=lambda: now[0], cold_starts=False)
    passage = access.down.unasked(PEER)
    now[0] = 5.0  # it was told of long before
    for _ in range(5):
        passage.came(50_000)
        now[0] += 0.2
    now[0] -= 0.2
    passage.arrived()
    assert access.link.down == pytest.approx(2 * MBIT, rel=0.05)


def test_a_single_piece_that_comes_unasked_shows_no_rate() -> None:
    access = Access(now=lambda: 0.0)
    passage = access.down.unasked(PEER)
    passage.came(40_000)
    passage.arrived()
    assert access.link.down == 0
