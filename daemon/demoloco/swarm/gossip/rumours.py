"""Who is told what in a swarm that is too large to tell all: the choice of partners, and rumours.

Rule: pure but for the generator of chance that is passed in; names and peers, no bytes, no clock.
What each node does is bounded whatever others say: a rumour is told to a few peers and then rests.
Up to DIRECT members everything goes to all instead.
"""

from __future__ import annotations

import random
from collections.abc import Collection, Hashable, Iterable
from dataclasses import dataclass, field, replace
from typing import Generic, TypeVar

from demoloco.types import Digest, Member, Offer, PeerId, Phase

DIRECT = 8
"""Up to so many other members every word goes straight to all."""

PARTNERS = 3
"""Members drawn by chance that one beat greets, and that one batch of offers goes to."""

TELLINGS = 3
"""So many peers each node tells a rumour; what is heard again counts as told."""

PUBLISHED_TO = 4
RELAYED_TO = 2
"""Members to which a proposer sends its manifest, and to which each other passes it on, once. Whom
none of these reach learns of the new head by the next hello, and asks."""

RENEWAL_SECONDS_A_MEMBER = 0.75
"""A record of which nothing but its age is new travels anew so rarely, times the members: then the
records of all together cost each node the same in a swarm of any size."""

TABLE_SHARE = 7 / 8
"""Who knows less than this share of the members is given all of them."""

MAX_RUMOURS = 1024
MAX_SEEN = 1024

_AT_WORK = frozenset({Phase.TRAINING, Phase.EXCHANGING})

K = TypeVar("K", bound=Hashable)


def is_small(members: int) -> bool:
    """Whether so many other members are few enough to tell all of them everything."""
    return members <= DIRECT


def renewal_seconds(members: int, heartbeat_seconds: float) -> float:
    """How old a member's record may grow before a newer one of the same content is passed on."""
    return max(heartbeat_seconds, RENEWAL_SECONDS_A_MEMBER * members)


def same_standing(one: Member, other: Member) -> bool:
    """Whether nothing changed that all members must know soon.

    A head must not: who meets a member reads its newest head, and asks for what leads to it.
    Training and exchanging are one, for whoever does either takes part in the open round.
    """
    if (one.phase in _AT_WORK) != (other.phase in _AT_WORK):
        return False
    alike = replace(
        one,
        head=other.head,
        phase=other.phase if one.phase in _AT_WORK else one.phase,
        sequence=other.sequence,
        samples_per_second=other.samples_per_second,
        up=other.up,
        down=other.down,
    )
    return (one.head is None) == (other.head is None) and alike == other


def draw(rng: random.Random, peers: Collection[PeerId], most: int) -> list[PeerId]:
    """At most so many of them, by chance."""
    return rng.sample(tuple(peers), min(most, len(peers)))


@dataclass(frozen=True, slots=True)
class Silent:
    """A member that did not answer the teller, its newest word that the teller has, and for how
    long the teller has asked it."""

    peer: PeerId
    sequence: int
    asked_ms: int = 0


@dataclass(frozen=True, slots=True)
class Batch:
    """What one announcement says: offers of packets that the teller holds, and does not hold, and
    the short names of others that it holds, and knows; whether pieces of its own come unasked."""

    offers: tuple[Offer, ...] = ()
    heard: tuple[Offer, ...] = ()
    holds: tuple[int, ...] = ()
    knows: tuple[int, ...] = ()
    coming: bool = False

    def __bool__(self) -> bool:
        return bool(self.offers or self.heard or self.holds or self.knows)


@dataclass(slots=True)
class _Rumour:
    left: int
    knows: set[PeerId] = field(default_factory=set)


class Rumours(Generic[K]):
    """What is worth telling, and who knows it already."""

    def __init__(self, tellings: int = TELLINGS) -> None:
        self._tellings = tellings
        self._hot: dict[K, _Rumour] = {}

    def __len__(self) -> int:
        return len(self._hot)

    def __contains__(self, name: K) -> bool:
        return name in self._hot

    def start(self, name: K, knows: Iterable[PeerId] = ()) -> None:
        """It is new here: tell it, but to those who know it."""
        self._hot.pop(name, None)
        self._hot[name] = _Rumour(self._tellings, set(knows))
        if len(self._hot) > MAX_RUMOURS:
            del self._hot[next(iter(self._hot))]

    def heard_again(self, name: K, teller: PeerId) -> None:
        """Another tells what is known here: it needs one telling less."""
        rumour = self._hot.get(name)
        if rumour is not None and teller not in rumour.knows:
            self._spend(name, rumour, teller)

    def tell(self, peer: PeerId, most: int) -> list[K]:
        """What this peer is told now, newest first; it counts as told."""
        names: list[K] = []
        for name in reversed(self._hot):
            if len(names) >= most:
                break
            if peer not in self._hot[name].knows:
                names.append(name)
        for name in names:
            self._spend(name, self._hot[name], peer)
        return names

    def untell(self, peer: PeerId, names: Iterable[K]) -> None:
        """It did not arrive: tell somebody else instead."""
        for name in names:
            rumour = self._hot.setdefault(name, _Rumour(0))
            rumour.left += 1
            rumour.knows.discard(peer)

    def drop(self, name: K) -> None:
        self._hot.pop(name, None)

    def _spend(self, name: K, rumour: _Rumour, peer: PeerId) -> None:
        rumour.knows.add(peer)
        rumour.left -= 1
        if rumour.left <= 0:
            del self._hot[name]


class Relay:
    """Which manifests this node passes on: each once, and of one proposer a few at a time."""

    BURST = 4
    REST_SECONDS = 2.0

    def __init__(self) -> None:
        self._seen: dict[Digest, None] = {}
        self._spent: dict[PeerId, float] = {}  # proposer → until when its last ones count

    def is_new(self, manifest: Digest) -> bool:
        """Whether it was not met before; it is from now on."""
        if manifest in self._seen:
            return False
        self._seen[manifest] = None
        if len(self._seen) > MAX_SEEN:
            del self._seen[next(iter(self._seen))]
        return True

    def may_pass(self, proposer: PeerId, now: float) -> bool:
        """Whether this proposer has not had more than its share of late; it counts."""
        until = max(now, self._spent.pop(proposer, now)) + self.REST_SECONDS
        fits = until <= now + self.BURST * self.REST_SECONDS
        self._spent[proposer] = until if fits else until - self.REST_SECONDS
        if len(self._spent) > MAX_SEEN:
            del self._spent[next(iter(self._spent))]
        return fits
