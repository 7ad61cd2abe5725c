"""What is in for the round that is open: announced packets, held packets, when they came.

Rule: facts only; whether a round closes is decided in `rules.py`.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence, Set
from dataclasses import dataclass, field

from demoloco.rounds.rules import Arrivals, Pace, quorum_of
from demoloco.rounds.tempo import Course, Tempo
from demoloco.rounds.turns import Turns
from demoloco.types import Digest, Manifest, Offer, PeerId, Round

MAX_PARENTS = 8
MAX_OFFERS = 256


@dataclass(frozen=True, slots=True)
class Held:
    """A packet that is here and checked: its header says what the offer says."""

    offer: Offer
    norm: float


@dataclass(slots=True)
class OpenRound:
    """The round after `parent`, from this node's view."""

    round: Round
    parent: Digest
    opened: float
    candidates: frozenset[PeerId]  # who took part when it opened
    present: dict[PeerId, Offer] = field(default_factory=dict)  # one packet each, checked
    mine: Offer | None = None
    passed: bool = False  # my steps for it are done, and it is not my turn
    arrivals: dict[PeerId, float] = field(default_factory=dict)  # packets that are here
    first: float | None = None
    quorum: float | None = None
    closable: float | None = None  # since when it may close
    heard: float | None = None  # since when a manifest for it is known
    announced: float = -float("inf")
    whole: float | None = None  # since when the packets of a manifest for it are all here
    drafted: bool = False  # my proposal is made
    turns: tuple[frozenset[PeerId], bool, Turns] | None = None  # of whom, and whether of me too

    @property
    def is_over(self) -> bool:
        """As far as my own steps go: what I train now is for the next."""
        return self.mine is not None or self.passed

    @property
    def samples_out(self) -> int:
        """Of my packet for this round, 0 while it is not out."""
        return self.mine.samples if self.mine is not None else 0

    def take_in(self, offer: Offer) -> None:
        """A packet for this round is here; of one contributor the newest counts, but nothing
        replaces my own."""
        if self.mine is None or offer.contributor != self.mine.contributor:
            self.present[offer.contributor] = offer

    def observe(self, expected: Set[PeerId], now: float, pace: Pace) -> Arrivals:
        """Note when the first packet and the quorum came; a time once noted stays. My own counts
        for the quorum when it has travelled as others' do, or all are in."""
        if self.present and self.first is None:
            self.first = now
        if self.quorum is None:
            counted = expected & self.present.keys()
            if len(counted) < len(expected):
                counted = {peer for peer in counted if self.arrivals.get(peer, now) <= now}
            if len(counted) >= quorum_of(len(expected), pace):
                self.quorum = now
        return Arrivals(self.opened, self.first, self.quorum)

    def teach(self, tempo: Tempo, me: PeerId, redo: Sequence[Manifest], now: float) -> None:
        """The round is over by `redo`: what it tells of the others' pace."""
        won = next((manifest for manifest in redo if manifest.parent == self.parent), None)
        if self.first is None:
            return
        if self.quorum is None:
            tempo.gathered(2 * (now - self.opened))
        else:
            tempo.gathered(self.quorum - self.opened)
            tempo.ran(Course(self.parent, self.quorum, self.candidates, self.arrivals))
        if won is not None and won.proposer != me and self.heard is not None:
            may = self.closable if self.closable is not None else self.heard
            tempo.heard(max(0.0, self.heard - may))
            tempo.fetched(self.whole - self.heard if self.whole is not None else 0.0)


class Offers:
    """Announcements by the manifest that they build on, and who holds which packet."""

    def __init__(self) -> None:
        self._by_parent: dict[Digest, dict[Digest, Offer]] = {}
        self._holders: dict[Digest, dict[PeerId, None]] = {}

    def hear(self, holder: PeerId, offer: Offer) -> None:
        """Note an announcement; of a packet's own contributor it counts more than of another.
        Offers for rounds not yet known are kept too, a few."""
        offers = self._by_parent.get(offer.parent)
        if offers is None:
            if len(self._by_parent) >= MAX_PARENTS:
                self._evict()
            offers = self._by_parent[offer.parent] = {}
        if offer.packet not in offers and len(offers) >= MAX_OFFERS:
            return
        if offer.packet not in offers or holder == offer.contributor:
            offers[offer.packet] = offer
        self.holds(holder, offer.packet)
        self.holds(offer.contributor, offer.packet)

    def holds(self, holder: PeerId, packet: Digest) -> None:
        self._holders.setdefault(packet, {})[holder] = None

    def under(self, parent: Digest) -> tuple[Offer, ...]:
        return tuple(self._by_parent.get(parent, {}).values())

    def holders(self, packet: Digest) -> tuple[PeerId, ...]:
        return tuple(self._holders.get(packet, ()))

    def _evict(self) -> None:
        for packet in self._by_parent.pop(next(iter(self._by_parent))):
            self._holders.pop(packet, None)

    def refuse(self, offer: Offer) -> None:
        """It is false: forget it."""
        offers = self._by_parent.get(offer.parent, {})
        if offers.get(offer.packet) == offer:
            del offers[offer.packet]

    def keep(self, parents: Collection[Digest], packets: Collection[Digest]) -> None:
        """Forget what neither builds on one of `parents` nor is one of `packets`."""
        self._by_parent = {p: offers for p, offers in self._by_parent.items() if p in parents}
        alive = {packet for offers in self._by_parent.values() for packet in offers}
        self._holders = {p: h for p, h in self._holders.items() if p in alive or p in packets}
