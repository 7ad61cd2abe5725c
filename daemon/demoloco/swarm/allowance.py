"""How much work a peer may make for this node: so much at once, so much a second.

Rule: what one peer has used up is nobody else's; the table is bounded. The time is passed in.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable

from demoloco.types import PeerId

MAX_PEERS = 1024


class Allowance:
    """A bucket for each peer, full at first."""

    def __init__(self, *, a_second: float, at_once: float, now: Callable[[], float]) -> None:
        self._a_second = a_second
        self._at_once = at_once
        self._now = now
        self._left: OrderedDict[PeerId, tuple[float, float]] = OrderedDict()

    def spend(self, peer: PeerId, cost: float) -> bool:
        """False if the peer has used up what it may."""
        now = self._now()
        left, then = self._left.pop(peer, (self._at_once, now))
        left = min(self._at_once, left + (now - then) * self._a_second)
        enough = left >= cost
        self._left[peer] = (left - cost if enough else left, now)
        if len(self._left) > MAX_PEERS:
            self._left.popitem(last=False)
        return enough
