"""Lines about peers that send what cannot be used: enough to see who and why, never a flood.

Rule: a peer's first mistake is told at once, the next ones as a number once a minute; all peers
together get one line a second at most. Times are passed in.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from dataclasses import dataclass

from demoloco.types import PeerId, short

log = logging.getLogger(__name__)

AGAIN_SECONDS = 60.0
ALL_SECONDS = 1.0
MAX_PEERS = 1024


@dataclass(slots=True)
class _Peer:
    again: float
    untold: int = 0


class Complaints:
    """What the operator was told of whom."""

    def __init__(self) -> None:
        self._peers: OrderedDict[PeerId, _Peer] = OrderedDict()
        self._next = float("-inf")

    def note(self, peer: PeerId, why: str, now: float) -> None:
        """One more message of this peer was dropped."""
        known = self._peers.setdefault(peer, _Peer(again=now))
        self._peers.move_to_end(peer)
        if len(self._peers) > MAX_PEERS:
            self._peers.popitem(last=False)
        known.untold += 1
        if now < known.again or now < self._next:
            return
        log.warning("garbage=dropped peer=%s messages=%d why=%s", short(peer), known.untold, why)
        known.untold, known.again, self._next = 0, now + AGAIN_SECONDS, now + ALL_SECONDS
