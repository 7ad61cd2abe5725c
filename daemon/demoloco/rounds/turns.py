"""Fair turns: who takes part in a round where more train than fit into one.

Rule: pure functions of the chain, the lottery and who is there. Views of who is there may differ:
then one packet too many is made, or one is waited for in vain until the grace is over; no more.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from demoloco.rounds.rules import lot
from demoloco.types import Digest, Offer, PeerId, Round


@dataclass(frozen=True, slots=True)
class Turns:
    """Of one round."""

    expected: frozenset[PeerId]  # in turn, and waited for
    slow: frozenset[PeerId] = frozenset()  # missed their turn: may come, are not waited for

    def __contains__(self, peer: PeerId) -> bool:
        return peer in self.expected or peer in self.slow


def turns(
    peers: Collection[PeerId], last: Mapping[PeerId, Round], parent: Digest, round: Round, most: int
) -> Turns:
    """Who is in turn in the child of `parent`, which is `round`, of these peers.

    `last`: the round of each one's newest contribution, as far as the chain tells. Who has none
    comes first, then who has waited longest, then the lot decides. Who has waited for longer than
    it takes until all had a turn has missed its own, so it is slow: it comes when it can, and
    takes nobody's place, but an empty one.
    """
    if len(peers) <= most:
        return Turns(frozenset(peers))
    cycle = math.ceil(len(peers) / most)

    def place(peer: PeerId) -> tuple[int, int, bytes]:
        if peer not in last:
            return 0, 0, lot(parent, peer)
        waited = round - last[peer]
        return (
            (1, -waited, lot(parent, peer)) if waited <= cycle else (2, waited, lot(parent, peer))
        )

    expected = frozenset(sorted(peers, key=place)[:most])
    slow = frozenset(peer for peer in peers if place(peer)[0] == 2)
    return Turns(expected, slow - expected)


def taken(
    offers: Iterable[Offer],
    last: Mapping[PeerId, Round],
    parent: Digest,
    most: int,
    leaving: Collection[PeerId],
) -> Sequence[Offer]:
    """Of more packets than fit those of leavers, then of those who have waited longest."""

    def place(offer: Offer) -> tuple[bool, Round, bytes]:
        peer = offer.contributor
        return (peer not in leaving, last.get(peer, Round(0)), lot(parent, peer))

    return sorted(offers, key=place)[:most]
