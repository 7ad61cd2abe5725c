"""The estimate of a link: a transfer proves that it carries so much, never that it carries no more.

The link here is a queue of one rate: what is under way shares it evenly, and the last byte's
receipt is back a round trip after the first byte left."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from demoloco.swarm.links.link import MEMORY_SECONDS, NOBODY, Far, Passage, RoundTrips, Way
from demoloco.types import PeerId

MBIT = 125_000
SLICE = 4096
BUFFER = 64 << 10  # what a sender has given to the transport ahead of the link

rates = st.floats(2, 1000).map(lambda mbit: mbit * MBIT)
round_trips = st.floats(0.010, 0.300)


@dataclass
class Lab:
    """One direction of one node's link, and the clock."""

    rate: float
    round_trip: float
    upward: bool = True
    at: float = 0.0
    claim: float = 0.0
    peer: PeerId = NOBODY
    way: Way = field(init=False)

    def __post_init__(self) -> None:
        self.way = Way(lambda: self.at, upward=self.upward)

    def begin(self) -> Passage:
        return self.way.begin(Far(self.peer, self.round_trip, self.claim))

    def carry(self, *sizes: int) -> None:
        """These transfers at once, to their ends."""
        passages = [(self.begin(), size) for size in sizes]
        left = dict(passages)
        ahead = dict.fromkeys(left, 0)
        if not self.upward:
            self.at += self.round_trip
        while left:
            for passage in tuple(left):
                self._one_slice(passage, left, ahead)
        if self.upward:
            self.at += self.round_trip
        for passage, _ in passages:
            passage.end(whole=True)

    def _one_slice(
        self, passage: Passage, left: dict[Passage, int], ahead: dict[Passage, int]
    ) -> None:
        if self.upward:  # written before it is carried
            more = min(left[passage], BUFFER) - ahead[passage]
            if more > 0:
                passage.carried(more)
                ahead[passage] += more
        size = min(SLICE, left[passage])
        self.at += size / self.rate
        if self.upward:
            ahead[passage] -= size
        else:
            passage.carried(size)
        left[passage] -= size
        if not left[passage]:
            del left[passage]


def enough(rate: float, round_trip: float) -> int:
    """A size that takes about a round trip and some milliseconds more."""
    return int(rate * (round_trip + 0.02))


@given(rates, round_trips, st.integers(1, 4), st.booleans())
@settings(max_examples=60, deadline=None)
def test_the_estimate_is_right_within_a_fifth(
    rate: float, round_trip: float, at_once: int, upward: bool
) -> None:
    lab = Lab(rate, round_trip, upward)
    lab.carry(*[enough(rate, round_trip) // at_once] * at_once)
    assert lab.way.rate == pytest.approx(rate, rel=0.2)


@given(rates, round_trips, st.lists(st.integers(1, 1 << 16), min_size=1, max_size=8), st.booleans())
@settings(max_examples=60, deadline=None)
def test_small_transfers_never_prove_more_than_there_is(
    rate: float, round_trip: float, sizes: list[int], upward: bool
) -> None:
    lab = Lab(rate, round_trip, upward)
    for size in sizes:
        lab.carry(size)
    assert 0 < lab.way.rate <= 1.01 * rate


@given(rates, round_trips, st.booleans())
@settings(max_examples=40, deadline=None)
def test_small_transfers_do_not_make_a_known_link_look_thin(
    rate: float, round_trip: float, upward: bool
) -> None:
    lab = Lab(rate, round_trip, upward)
    lab.carry(enough(rate, round_trip))
    for _ in range(8):
        lab.at += 10
        lab.carry(2000)
    assert lab.way.rate == pytest.approx(rate, rel=0.2)


@pytest.mark.parametrize("upward", [True, False])
@pytest.mark.parametrize("round_trip", [0.01, 0.3])
def test_a_link_that_gets_thin_is_believed_within_a_few_transfers(
    round_trip: float, upward: bool
) -> None:
    lab = Lab(20 * MBIT, round_trip, upward)
    lab.carry(2_000_000)
    lab.rate = 2 * MBIT
    for _ in range(5):
        lab.at += 10
        lab.carry(300_000)
    assert lab.way.rate == pytest.approx(2 * MBIT, rel=0.2)


@pytest.mark.parametrize("upward", [True, False])
def test_a_link_that_gets_fat_is_believed_at_once(upward: bool) -> None:
    lab = Lab(2 * MBIT, 0.1, upward)
    lab.carry(300_000)
    lab.rate = 20 * MBIT
    lab.at += 10
    lab.carry(2_000_000)
    assert lab.way.rate == pytest.approx(20 * MBIT, rel=0.2)


def test_a_receiver_that_is_thin_does_not_make_the_link_look_thin() -> None:
    lab = Lab(50 * MBIT, 0.05)
    lab.carry(5_000_000)
    lab.rate = lab.claim = 2 * MBIT
    for _ in range(8):
        lab.at += 10
        lab.carry(300_000)
    assert lab.way.rate == pytest.approx(50 * MBIT, rel=0.2)


def test_what_is_held_up_by_an_own_limit_does_not_make_the_link_look_thin() -> None:
    lab = Lab(50 * MBIT, 0.05)
    lab.carry(5_000_000)
    for _ in range(8):
        lab.at += MEMORY_SECONDS
        passage = lab.begin()
        lab.at += 10
        passage.carried(100_000, held_seconds=9.9)
        passage.end(whole=True)
    assert lab.way.rate == pytest.approx(50 * MBIT, rel=0.2)


@pytest.mark.parametrize("upward", [True, False])
def test_a_change_in_the_midst_of_a_long_transfer_is_seen_before_its_end(upward: bool) -> None:
    lab = Lab(20 * MBIT, 0.1, upward)
    lab.carry(20_000_000)
    lab.rate = 2 * MBIT
    lab.carry(15_000_000)
    assert lab.way.rate == pytest.approx(2 * MBIT, rel=0.2)


def test_a_transfer_that_broke_off_tells_nothing() -> None:
    lab = Lab(20 * MBIT, 0.1)
    passage = lab.begin()
    passage.carried(1_000_000)
    lab.at += 1
    passage.end(whole=False)
    passage.end(whole=True)
    assert lab.way.rate == 0


def test_a_long_transfer_that_broke_off_tells_that_the_link_got_thin() -> None:
    lab = Lab(200 * MBIT, 0.1, upward=False)
    lab.carry(2_000_000)
    lab.at += 10
    passage = lab.begin()
    for _ in range(40):
        lab.at += 0.1
        passage.carried(25_000)
    passage.end(whole=False)
    assert lab.way.rate == pytest.approx(2 * MBIT, rel=0.2)


def test_one_clear_transfer_is_enough_to_know_that_a_link_got_thin() -> None:
    lab = Lab(20 * MBIT, 0.1)
    lab.carry(2_000_000)
    lab.rate = 2 * MBIT
    lab.carry(300_000)
    assert lab.way.rate == pytest.approx(2 * MBIT, rel=0.2)


def test_one_thin_receiver_says_little_of_what_others_were_sent() -> None:
    lab = Lab(50 * MBIT, 0.05, peer=PeerId("fat"), claim=100 * MBIT)
    lab.carry(5_000_000)
    lab.peer, lab.rate, lab.claim = PeerId("thin"), 2 * MBIT, 2 * MBIT
    for _ in range(8):
        lab.at += 10
        lab.carry(300_000)
    assert lab.way.rate == pytest.approx(50 * MBIT, rel=0.2)


def test_what_took_no_longer_than_the_way_proves_a_little() -> None:
    lab = Lab(20 * MBIT, 0.1)
    for size in (1000, 500):
        passage = lab.begin()
        passage.carried(size)
        lab.at += 0.09
        passage.end(whole=True)
    assert 0 < lab.way.rate < 20 * MBIT


def test_bursts_within_a_moment_do_not_outweigh_what_was_known() -> None:
    lab = Lab(20 * MBIT, 0.01)
    lab.carry(2_000_000)
    lab.rate = 2 * MBIT
    for _ in range(10):
        lab.carry(20_000)
    assert lab.way.rate == pytest.approx(20 * MBIT, rel=0.2)


def test_a_round_trip_is_the_shortest_of_the_newest() -> None:
    trips, peer = RoundTrips(), PeerId("one")
    assert trips.of(peer) == 0
    trips.note(peer, 0.1)
    for _ in range(5):
        trips.note(peer, 0.3)
    assert trips.of(peer) == 0.1
    trips.note(peer, 0.3)
    assert trips.of(peer) == 0.3


@pytest.mark.parametrize("share", [1.0, 0.3])
def test_a_thin_member_that_fetches_while_others_are_sent_to_costs_no_estimate(
    share: float,
) -> None:
    """Its packet takes a second; what goes to a fast member meanwhile is there at once."""
    lab = Lab(50 * MBIT, 0.02)
    fast, thin = (Far(PeerId(name), 0.02, claim) for name, claim in (("b", 50 * MBIT), ("d", 16e3)))
    lab.claim = 50 * MBIT
    lab.carry(2_000_000)
    before = lab.way.rate
    for _ in range(8):
        lab.at += 2.0
        slow = lab.way.begin(thin)
        slow.carried(14_000)
        quick = lab.way.begin(fast)
        lab.at += 14_000 / lab.rate
        quick.carried(14_000)
        lab.at += 0.02
        quick.end(whole=True)
        lab.at += 14_000 / (share * 16e3)
        slow.end(whole=True)
    assert lab.way.rate > 0.9 * before


@dataclass
class Blob:
    """On its way to a peer that takes no more than so much."""

    passage: Passage
    peer: Peer
    left: float


@dataclass(frozen=True)
class Peer:
    name: str
    takes: float
    claim: float

    @property
    def far(self) -> Far:
        return Far(PeerId(self.name), 0.02, self.claim)


def share_out(lab: Lab, starts: list[tuple[float, Peer, int]]) -> None:
    """Blobs that begin when told, each at the lesser of its peer's rate and its share of the
    link's, to the end of all."""
    waiting = sorted(((lab.at + after, peer, size) for after, peer, size in starts), key=_when)
    under_way: list[Blob] = []
    receipts: list[tuple[float, Passage]] = []
    while waiting or under_way or receipts:
        rates = {}
        room, hungry = lab.rate, sorted(under_way, key=lambda blob: blob.peer.takes)
        for number, blob in enumerate(hungry):
            rates[id(blob)] = min(blob.peer.takes, room / (len(hungry) - number))
            room -= rates[id(blob)]
        done = [lab.at + blob.left / rates[id(blob)] for blob in under_way]
        then = min(done + [at for at, *_ in waiting[:1]] + [at for at, _ in receipts[:1]])
        for blob in under_way:
            blob.left -= (then - lab.at) * rates[id(blob)]
        lab.at = then
        while waiting and waiting[0][0] <= then:
            _, peer, size = waiting.pop(0)
            under_way.append(Blob(lab.way.begin(peer.far), peer, size))
            under_way[-1].passage.carried(size)
        gone = [blob for blob in under_way if blob.left < 1]
        under_way = [blob for blob in under_way if blob.left >= 1]
        receipts += [(then + 0.02, blob.passage) for blob in gone]
        while receipts and receipts[0][0] <= then:
            receipts.pop(0)[1].end(whole=True)


def _when(start: tuple[float, Peer, int]) -> float:
    return start[0]


FAST = tuple(Peer(name, 50 * MBIT, 50 * MBIT) for name in "abc")


@pytest.mark.parametrize("claim", [0.0, 2 * MBIT])
def test_all_to_whom_it_was_fast_are_believed_when_each_shows_less(claim: float) -> None:
    lab = Lab(50 * MBIT, 0.02)
    share_out(lab, [(0.0, peer, 700_000) for peer in FAST[:2]])
    lab.rate = 2 * MBIT
    for peer in FAST[:2] * 2:
        lab.at += 5
        share_out(lab, [(0.0, replace(peer, claim=claim), 300_000)])
    assert lab.way.rate == pytest.approx(lab.rate, rel=0.2)


@given(
    thins=st.lists(
        st.tuples(st.floats(2_000, 60_000), st.floats(1, 4) | st.just(0.0)), min_size=1, max_size=3
    ),
    rounds=st.lists(
        st.tuples(
            st.integers(0, 2),
            st.integers(5_000, 60_000),
            st.lists(
                st.tuples(st.floats(0, 3), st.sampled_from(FAST), st.integers(5_000, 2_000_000)),
                max_size=6,
            ),
        ),
        min_size=4,
        max_size=12,
    ),
)
@settings(max_examples=60, deadline=None)
def test_thin_receivers_among_fast_ones_never_cost_more_than_two_thirds(
    thins: list[tuple[float, float]],
    rounds: list[tuple[int, int, list[tuple[float, Peer, int]]]],
) -> None:
    """Whether they say nothing, the truth, or more than they take just now."""
    lab = Lab(50 * MBIT, 0.02)
    share_out(lab, [(0.0, peer, 700_000) for peer in FAST])
    for number, size, starts in rounds:
        takes, claims = thins[number % len(thins)]
        thin = Peer(f"thin {number % len(thins)}", takes, claims * takes)
        lab.at += 2
        share_out(lab, [(0.0, thin, size), *starts])
        assert lab.rate / 3 < lab.way.rate < 1.25 * lab.rate

    lab.rate = 5 * MBIT
    for _ in range(3):
        lab.at += 2
        share_out(lab, [(0.0, peer, 300_000) for peer in FAST])
    assert lab.way.rate == pytest.approx(lab.rate, rel=0.3)
