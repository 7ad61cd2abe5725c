"""When the next piece goes up: not all at once, and no more under way than the link holds. Pure but
for sleeping.

Rule: a thin link's queue holds a few pieces; what fills it is lost, and to find out takes longer
than to wait. Pieces go in the order in which they come.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

QUEUE_SECONDS = 0.15
"""So much may be on its way beside what a round trip holds: in queues, and as the last piece."""
MIN_UNDER_WAY = 32 << 10


class Spacing:
    """Of the pieces of one node."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._free_at = 0.0  # when those that went before have left
        self._under_way = 0  # bytes
        self._turn = asyncio.Lock()
        self._less = asyncio.Event()

    @asynccontextmanager
    async def room(self, size: int, rate: float, trip: float) -> AsyncIterator[None]:
        """Wait until a piece of `size` bytes may go at `rate` bytes a second, 0 = at once; held
        until its answer is here, which takes `trip` seconds more, 0 = nobody knows."""
        if rate:
            async with self._turn:
                await self._wait(size, rate, trip)
        self._under_way += size
        try:
            yield
        finally:
            self._under_way -= size
            self._less.set()

    async def _wait(self, size: int, rate: float, trip: float) -> None:
        most = max(MIN_UNDER_WAY, rate * (trip + QUEUE_SECONDS)) if trip else math.inf
        while self._under_way and self._under_way + size > most:
            self._less.clear()
            await self._less.wait()
        if (wait := self._free_at - self._now()) > 0:
            await asyncio.sleep(wait)
        self._free_at = max(self._now(), self._free_at) + size / rate
