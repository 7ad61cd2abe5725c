"""Which holder to ask next: who is free and fast, so that load is spread and thin links are spared.

Rule: what a holder did a moment ago counts; among equals chance decides between those that are
known to hold the blob, and the order that the caller gave between the others.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Sequence

from demoloco.swarm.blobs.slots import is_thin
from demoloco.swarm.standing import Standing
from demoloco.types import PeerId

LAST_SECONDS = 120.0
"""So long a slow holder is asked after all others."""
BUSY_SECONDS = 2.0
"""So long one that had no slot free is asked after those that may have one."""
FULL_SECONDS = 10.0
"""So long a holder that was busy is taken to serve no more streams at once than it did then."""
UNKNOWN_RATE = 1 << 20
"""Bytes a second that are expected of a holder of which nothing is known."""
MIN_MEASURED = 32 << 10
"""Less than this says nothing of how fast a holder is."""
NEWER = 0.5
"""How much the newest measurement counts."""
MAX_MEASURED = 1024


class Preference:
    """What this node knows of its holders."""

    def __init__(self, standing: Standing) -> None:
        self._standing = standing
        self._slow: dict[PeerId, float] = {}  # until when it is asked last
        self._busy: dict[PeerId, float] = {}
        self._rates: dict[PeerId, float] = {}  # bytes a second, as they came
        self._under_way: Counter[PeerId] = Counter()
        self._most: dict[PeerId, tuple[int, float]] = {}  # streams at once, and until when

    # What happened

    def begins(self, peer: PeerId) -> None:
        self._under_way[peer] += 1

    def ended(self, peer: PeerId, length: int, seconds: float) -> None:
        """It sent so much in so long a time."""
        self._under_way[peer] -= 1
        if not self._under_way[peer]:
            del self._under_way[peer]
        if peer in self._most:
            self._standing.holders.look_again()
        if length < MIN_MEASURED or seconds <= 0:
            return
        self._busy.pop(peer, None)
        rate = length / seconds
        before = self._rates.pop(peer, rate)
        self._rates[peer] = NEWER * rate + (1 - NEWER) * before
        if len(self._rates) > MAX_MEASURED:
            del self._rates[next(iter(self._rates))]

    def was_slow(self, peer: PeerId) -> bool:
        """It will be asked last for a while; True if that is new."""
        new = peer not in self._slow
        self._slow[peer] = self._standing.now() + LAST_SECONDS
        return new

    def was_busy(self, peer: PeerId) -> None:
        now = self._standing.now()
        self._busy[peer] = now + BUSY_SECONDS
        if self._under_way[peer]:
            self._most[peer] = self._under_way[peer], now + FULL_SECONDS

    # Whom to ask

    def ordered(
        self, candidates: Sequence[PeerId], known: Collection[PeerId], *, blind: bool
    ) -> list[PeerId]:
        """Whom to ask first; `known` have the blob, as far as anybody told; `blind`: the others
        are a mere guess."""
        self._forget()
        order = {peer: place for place, peer in enumerate(candidates)}

        def key(peer: PeerId) -> tuple[float, ...]:
            slow, busy, place = peer in self._slow, peer in self._busy, order[peer]
            if peer not in known and blind:
                return slow, True, busy, False, 0, place
            chance = self._standing.rng.random() if peer in known else 1.0 + place
            speed = self._rate(peer) / (1 + self._under_way[peer])
            return slow, False, busy, self.is_thin(peer), -round(math.log2(speed)), chance

        return sorted(order, key=key)

    def is_full(self, peer: PeerId) -> bool:
        """Whether it sends this node as much at once as it does at most."""
        most, until = self._most.get(peer, (0, 0.0))
        return self._standing.now() < until and self._under_way[peer] >= most

    def is_free(self, peer: PeerId) -> bool:
        """Whether there is no sign that it would answer that it is busy."""
        return not self.is_full(peer) and self._busy.get(peer, 0.0) <= self._standing.now()

    def is_thin(self, peer: PeerId) -> bool:
        row = self._standing.roster.row(peer)
        return row is not None and is_thin(row.member.up)

    def _rate(self, peer: PeerId) -> float:
        measured = self._rates.get(peer)
        if measured is not None:
            return measured
        row = self._standing.roster.row(peer)
        return row.member.up if row is not None and row.member.up > 0 else UNKNOWN_RATE

    def _forget(self) -> None:
        now = self._standing.now()
        self._slow = {peer: until for peer, until in self._slow.items() if until > now}
        self._busy = {peer: until for peer, until in self._busy.items() if until > now}
        self._most = {peer: most for peer, most in self._most.items() if most[1] > now}
