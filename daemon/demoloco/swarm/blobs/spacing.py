"""When the next piece goes up: not all at once, and no more under way than the link holds. Pure but
for sleeping.

Rule: a thin link's queue holds a few pieces; what fills it is lost, and to find out takes longer
than to wait. So pieces go in the order in which they come, at a rate that their answers steer:
while most come as soon as they can it rises, and when most are late it falls. A single late answer
says nothing: a lost segment makes it late, too. In the manner of LEDBAT, RFC 6817.
"""

from __future__ import annotations

import asyncio
import math
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from statistics import median

QUEUE_SECONDS = 0.15
"""So much may be on its way beside what a round trip holds: in queues, and as the last piece."""
MIN_UNDER_WAY = 32 << 10
FIRST, LEAST, MOST = 1.25, 0.1, 4.0
"""The rate, in parts of what the link is known to carry: it may carry more, and at times less."""
SEARCH, RAISE, LOWER = 1.15, 1.04, 0.75
"""After an answer: before the rate fell for the first time, and from then on. It falls again when
pieces that went at the lower rate are late, too."""
EARLY_SECONDS, LATE_SECONDS = 0.08, 0.2
"""More than a cold connection takes for the piece: below the one there is no queue to speak of."""
FIRST_WINDOW = 17 << 10
"""Bytes of a piece that a cold connection sends at once, or nearly."""
LEAST_JUDGED, JUDGED = 3, 5
"""Newest answers, whose median counts."""


class Spacing:
    """Of the pieces of one node."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._free_at = 0.0  # when those that went before have left
        self._under_way = 0  # bytes
        self._turn = asyncio.Lock()
        self._less = asyncio.Event()
        self._rate = 0.0
        self._late: deque[float] = deque(maxlen=JUDGED)
        self._lowered_at = -math.inf

    @asynccontextmanager
    async def room(self, size: int, known: float, trip: float) -> AsyncIterator[None]:
        """Wait until a piece of `size` bytes may go on a link that carries `known` bytes a second
        or more, 0 = at once; held until its answer is here, which takes `trip` seconds more, 0 =
        nobody knows."""
        waited = False
        if known:
            self._rate = min(MOST * known, max(LEAST * known, self._rate or FIRST * known))
            async with self._turn:
                waited = await self._wait(size, _most(min(FIRST * known, self._rate), size, trip))
        began = self._now()
        self._under_way += size
        try:
            yield
            if known and trip:
                least = trip * (1 + _windows(size)) + size / self._rate
                self._steer(self._now() - began - least, began, waited)
        finally:
            self._under_way -= size
            self._less.set()

    async def _wait(self, size: int, most: float) -> bool:
        """Whether it took any time."""
        came = self._now()
        while self._under_way and self._under_way + size > most:
            self._less.clear()
            await self._less.wait()
        if (wait := self._free_at - self._now()) > 0:
            await asyncio.sleep(wait)
        self._free_at = max(self._now(), self._free_at) + size / self._rate
        return self._now() > came

    def _steer(self, late: float, began: float, waited: bool) -> None:
        if began < self._lowered_at:
            return  # it went at the rate before
        self._late.append(late)
        if len(self._late) < LEAST_JUDGED:
            return
        usual = median(self._late)
        if usual < EARLY_SECONDS:
            raised = SEARCH if self._lowered_at == -math.inf else RAISE
            self._rate *= raised if waited else 1.0
        elif usual > LATE_SECONDS:
            self._rate *= LOWER
            self._lowered_at = self._now()
            self._late.clear()


def _most(rate: float, size: int, trip: float) -> float:
    """Bytes that may be under way: what fills the link while such pieces are answered."""
    if not trip:
        return math.inf
    return max(MIN_UNDER_WAY, rate * (trip * (1 + _windows(size)) + QUEUE_SECONDS))


def _windows(size: int) -> int:
    """For how many answers a cold connection waits within a piece."""
    return max(0, math.ceil(math.log2(size / FIRST_WINDOW)))
