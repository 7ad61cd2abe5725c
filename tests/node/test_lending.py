"""A snapshot that somebody fetches stays beside the two newest, within bounds."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from demoloco.node.lending import MOST_SECONDS, RECENT_SECONDS, Lending
from demoloco.node.library import StoreLibrary
from demoloco.store.memory import MemoryStore
from tests.store.rounds import head_of, play_round, snapshot_for


class Member:
    """A store of rounds, ten to a snapshot, and what it serves, by a clock of its own."""

    def __init__(self) -> None:
        self.now = 0.0
        self.store = MemoryStore(snapshot_every=10)
        self.library = StoreLibrary(self.store)
        self.library.lending = Lending(lambda: self.now)
        self.round = -1

    def play(self, last: int, *, every: Callable[[], object] = lambda: None) -> None:
        """Rounds up to this one, each with its housekeeping."""
        for round_ in range(self.round + 1, last + 1):
            every()
            play_round(self.store, round_, prune=False)
            lent = self.library.lending.wanted(self.store.snapshots())
            manifests = [head_of(each).digest for each in range(round_)]
            self.store.prune(lent, 2, 10, manifests)
        self.round = last

    def ask(self, round_: int) -> bool:
        """Somebody asks for a part of the snapshot of this round; whether it is there."""
        reader = self.library.open_blob(snapshot_for(round_).blobs[0].digest)
        if reader is not None:
            reader.close()
        return reader is not None

    def kept(self) -> list[int]:
        return [snapshot.head.round for snapshot in self.store.snapshots()]


@pytest.fixture
def member() -> Iterator[Member]:
    made = Member()
    made.play(25)
    assert made.kept() == [20, 10]
    yield made
    made.store.close()


def test_a_snapshot_that_nobody_asks_for_goes(member: Member) -> None:
    member.play(35)
    assert member.kept() == [30, 20]


def test_a_snapshot_that_somebody_asks_for_stays_beside_the_two_newest(member: Member) -> None:
    member.play(95, every=lambda: member.ask(10))
    assert member.kept() == [90, 80, 10]
    assert member.store.served_snapshot() == snapshot_for(90)


def test_a_snapshot_that_is_read_stays(member: Member) -> None:
    reader = member.library.open_blob(snapshot_for(10).blobs[0].digest)
    assert reader is not None
    for last in range(30, 70, 10):
        member.now += RECENT_SECONDS
        reader.read(0, 1)
        member.play(last)
    assert member.kept() == [60, 50, 10]


def test_a_snapshot_that_is_asked_for_no_longer_goes(member: Member) -> None:
    member.ask(10)
    member.play(45)
    assert member.kept() == [40, 30, 10]
    member.now += RECENT_SECONDS
    member.play(46)
    assert member.kept() == [40, 30]


def test_of_several_that_are_asked_for_one_stays(member: Member) -> None:
    member.play(75, every=lambda: [member.ask(round_) for round_ in range(10, 80, 10)])
    assert member.kept() == [70, 60, 10]


def test_none_stays_for_ever(member: Member) -> None:
    def asking() -> None:
        member.now += MOST_SECONDS / 50
        member.ask(10)

    member.play(79, every=asking)
    assert member.kept() == [70, 60, 10]
    member.play(81, every=asking)
    assert member.kept() == [80, 70]
    assert member.store.state(head_of(10).digest) is None
