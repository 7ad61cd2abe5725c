"""Whether another node speaks with this node's identity: one home copied, and both in use.

Rule: words of an earlier life, from a clock that was ahead of this one, are no alarm. They are all
said already, so they cannot lie above a number that was drawn since; only somebody who is there
and heard that number outbids it again and again. Times are passed in.
"""

from __future__ import annotations

import logging
import random

log = logging.getLogger(__name__)

MAX_JUMP = 1 << 20
"""Milliseconds, some 17 minutes: how far above a strange word the next own one may lie."""

MAX_OUTBIDS = 4
"""So many strange words in a row, each above a fresh jump, are of no earlier life."""

ROW_SECONDS = 600.0
AGAIN_SECONDS = 60.0


class Twice:
    """Counts the words of this node's own identity that it did not say itself."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._row = 0
        self._last = 0.0
        self._said: float | None = None

    def outbid(self, sequence: int, now: float) -> int:
        """A strange word has this sequence; above which one the next own word must lie."""
        if now > self._last + ROW_SECONDS:
            self._row, self._said = 0, None
        self._row, self._last = self._row + 1, now
        if self._row <= MAX_OUTBIDS:
            return sequence + self._rng.randint(1, MAX_JUMP)
        if self._said is None or now >= self._said + AGAIN_SECONDS:
            self._said = now
            log.error(
                "identity=twice why=another node runs with this node's identity, in a copy of this"
                " home; each outbids the other, and what both learn may be lost. Stop one of"
                " the two, and start it anew in an empty home: --home DIRECTORY"
            )
        return sequence
