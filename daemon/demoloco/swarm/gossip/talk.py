"""Which offers a node of a large swarm has heard of, and what it tells whom about them.

Rule: an offer travels as heard of until the teller holds the packet, so nobody counts as a holder
by passing a word on. What was lost on the way is found by comparing short names. Nothing here
sends or reads a clock; the mesh and the simulator both do what it says.
"""

from __future__ import annotations

import struct
from collections.abc import Container, Iterable, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b

from demoloco.swarm.gossip.rumours import Batch, Rumours
from demoloco.swarm.roster import Roster
from demoloco.types import Digest, Offer, PeerId, Phase

MAX_PARENTS = 4
MAX_OFFERS = 256
"""Offers under one parent, as many as one announcement carries."""

MAX_VERSIONS = 4
"""Offers of one contributor under one parent: true ones are one, after a restart two."""

VERSION_SECONDS = 10.0
"""Another version of an offer reaches the node only so long after the last, unless its contributor
itself says so: each false one may cost a fetch."""


def name_of(offer: Offer) -> int:
    """64 bits that name all of an offer among those of a few rounds."""
    text = offer.packet + offer.parent + offer.contributor.encode()
    figures = struct.pack("<QQQ", offer.round, offer.samples, offer.size)
    return int.from_bytes(blake2b(text + figures, digest_size=8).digest(), "little")


def for_leavers(offers: Iterable[Offer], roster: Roster) -> list[tuple[PeerId, Batch]]:
    """Who is on its way out is told straight who holds its packet: it waits for that."""
    rows = [(offer, roster.row(offer.contributor)) for offer in offers]
    return [
        (offer.contributor, Batch(offers=(offer,)))
        for offer, row in rows
        if row is not None and row.member.phase is Phase.LEAVING
    ]


@dataclass(slots=True)
class _Parent:
    offers: dict[int, Offer] = field(default_factory=dict)
    versions: dict[PeerId, list[int]] = field(default_factory=dict)
    passed: dict[Digest, float] = field(default_factory=dict)  # packet → when told to the node


Told = list[tuple[PeerId, tuple[Offer, ...]]]
"""Who holds which of these offers' packets, as the node is to hear it."""


class Talk:
    """The offers of the newest few rounds."""

    def __init__(self, me: PeerId) -> None:
        self._me = me
        self._parents: dict[Digest, _Parent] = {}
        self._held: set[Digest] = set()
        self._hot: Rumours[int] = Rumours()
        self._by_name: dict[int, Offer] = {}

    @property
    def has_news(self) -> bool:
        return len(self._hot) > 0

    def hold(self, offers: Iterable[Offer]) -> bool:
        """These packets are here; whether there is anything to tell at once."""
        for offer in offers:
            self._held.add(offer.packet)
            name = name_of(offer)
            if name not in self._by_name and self._enter(name, offer, own=True):
                self._hot.start(name, (offer.contributor,))
        return self.has_news

    def batch_for(self, peer: PeerId) -> Batch:
        """What is new for this peer; it counts as told."""
        names = self._hot.tell(peer, MAX_OFFERS)
        return self._batch(self._by_name[name] for name in names if name in self._by_name)

    def untold(self, peer: PeerId, batch: Batch) -> None:
        """It did not arrive."""
        names = (name_of(offer) for offer in (*batch.offers, *batch.heard))
        self._hot.untell(peer, [name for name in names if name in self._by_name])

    def answer(self, batch: Batch, peer: PeerId) -> Batch:
        """What the peer that told this batch is told in turn."""
        if batch.holds or batch.knows:
            return self._lacking(batch.holds, batch.knows)
        return self.batch_for(peer)

    def summary(self) -> Batch:
        """The short names of all that is known of the newest round, for a peer to compare."""
        newest = self._newest()
        holds = [name for name, offer in newest.items() if offer.packet in self._held]
        knows = [name for name, offer in newest.items() if offer.packet not in self._held]
        return Batch(holds=tuple(holds[:MAX_OFFERS]), knows=tuple(knows[:MAX_OFFERS]))

    def _lacking(self, holds: Sequence[int], knows: Sequence[int]) -> Batch:
        """What a peer lacks that knows these, if it speaks of the same round as this node."""
        there = {*holds, *knows}
        newest = self._newest()
        if there and not any(name in newest for name in there):
            return Batch()
        return self._batch(offer for name, offer in newest.items() if name not in there)

    def hear(self, teller: PeerId, batch: Batch, members: Container[PeerId], now: float) -> Told:
        """What of this the node is to hear; rumours of it begin. Strangers' offers are dropped."""
        told: dict[PeerId, list[Offer]] = {}
        for held, offers in ((True, batch.offers), (False, batch.heard)):
            for offer in offers:
                if offer.contributor != self._me and offer.contributor not in members:
                    continue
                holder = teller if held else offer.contributor
                if self._hear_one(teller, offer, now) or held:
                    told.setdefault(holder, []).append(offer)
        held_there = [self._by_name[name] for name in batch.holds if name in self._by_name]
        if held_there:
            told.setdefault(teller, []).extend(held_there)
        return [(holder, tuple(offers)) for holder, offers in told.items()]

    # ----------------------------------------------------------------------------------------------
    def _hear_one(self, teller: PeerId, offer: Offer, now: float) -> bool:
        """True if the node is to hear it."""
        name = name_of(offer)
        if offer.contributor == self._me:
            return False  # nobody tells me of my own packets but that they hold them
        if name in self._by_name:
            self._hot.heard_again(name, teller)
        elif self._enter(name, offer, own=teller == offer.contributor):
            self._hot.start(name, (teller, offer.contributor))
        else:
            return False
        passed = self._parents[offer.parent].passed
        last = passed.get(offer.packet)
        if last is not None and teller != offer.contributor and now - last < VERSION_SECONDS:
            return False
        passed[offer.packet] = now
        return True

    def _enter(self, name: int, offer: Offer, *, own: bool = False) -> bool:
        """Note an offer if there is room for it; its contributor's own word makes room."""
        parent = self._parents.get(offer.parent)
        if parent is None:
            if len(self._parents) >= MAX_PARENTS:
                self._forget(next(iter(self._parents)))
            parent = self._parents[offer.parent] = _Parent()
        versions = parent.versions.setdefault(offer.contributor, [])
        if own and len(versions) >= MAX_VERSIONS:
            self._drop(parent, versions.pop(0))
        if len(versions) >= MAX_VERSIONS or len(parent.offers) >= MAX_OFFERS:
            return False
        versions.append(name)
        parent.offers[name] = self._by_name[name] = offer
        return True

    def _forget(self, digest: Digest) -> None:
        parent = self._parents.pop(digest)
        for name in tuple(parent.offers):
            self._held.discard(parent.offers[name].packet)
            self._drop(parent, name)

    def _drop(self, parent: _Parent, name: int) -> None:
        del parent.offers[name], self._by_name[name]
        self._hot.drop(name)

    def _newest(self) -> dict[int, Offer]:
        """The offers of the highest round that this node holds a packet of, else of the last."""
        best: tuple[int, dict[int, Offer]] = (-1, {})
        for parent in self._parents.values():
            held = [o.round for o in parent.offers.values() if o.packet in self._held]
            if held and max(held) >= best[0]:
                best = (max(held), parent.offers)
        if best[0] < 0 and self._parents:
            return next(reversed(self._parents.values())).offers
        return best[1]

    def _batch(self, offers: Iterable[Offer]) -> Batch:
        chosen = list(offers)[:MAX_OFFERS]
        return Batch(
            offers=tuple(offer for offer in chosen if offer.packet in self._held),
            heard=tuple(offer for offer in chosen if offer.packet not in self._held),
        )
