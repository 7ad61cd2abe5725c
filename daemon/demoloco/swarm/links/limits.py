"""Hard limits on what goes through the link: a bucket of tokens for each direction.

Rule: words between nodes (heartbeats, announcements, manifests) never wait; what they take is
noted, and blobs wait for it. Who waits goes on in the order of coming, a slice at a time, so that
several blobs share the link evenly.

The libraries of rate limits that are well kept count requests: what exceeds a burst they refuse,
and nothing can pass on credit, as words must here.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

BURST_SECONDS = 0.05
SLICE_SECONDS = 0.05
SOON_SECONDS = 1e-4
"""Nobody is woken for less."""
MIN_SLICE_BYTES = 4 << 10
THIN_SLICE_BYTES = 16 << 10
MAX_SLICE_BYTES = 64 << 10
THIN_BYTES_A_SECOND = 1 << 20

Sleep = Callable[[float], Awaitable[None]]


class Gate:
    """One direction's bucket. `rate`: bytes a second, 0 = no limit; `pace`: likewise, what is good
    for the link. Both may change at any time."""

    def __init__(
        self,
        rate: float = 0.0,
        *,
        now: Callable[[], float],
        sleep: Sleep = asyncio.sleep,
    ) -> None:
        self.rate = rate
        self.pace = 0.0
        self._now = now
        self._sleep = sleep
        self._paid_until = -float("inf")  # when all that went through will be paid for
        self._turn = asyncio.Lock()

    @property
    def slice_bytes(self) -> int:
        """Blobs go through in pieces of at most this size, so that words find a gap soon."""
        speed = self.speed
        if not speed:
            return MAX_SLICE_BYTES
        most = THIN_SLICE_BYTES if speed < THIN_BYTES_A_SECOND else MAX_SLICE_BYTES
        return max(MIN_SLICE_BYTES, min(most, int(speed * SLICE_SECONDS)))

    @property
    def speed(self) -> float:
        """What is kept to: the limit or the pace, whichever is less; 0 = neither."""
        return min((one for one in (self.rate, self.pace) if one), default=0.0)

    def note(self, size: int) -> None:
        """Words went through; they never wait."""
        self._pay(size, self.speed)

    async def pass_(self, size: int, *, paced: bool = True) -> float:
        """Wait until a piece of a blob may go through; how many seconds that took. What is not
        paced waits for the limit alone: something else takes care of the link's queue."""
        speed = self.speed if paced else self.rate
        if not speed:
            self.note(size)
            return 0.0
        came = self._now()
        async with self._turn:
            while (wait := self._paid_until - self._now() - BURST_SECONDS) > SOON_SECONDS:
                await self._sleep(wait)
            self._pay(size, speed)
        return self._now() - came

    def _pay(self, size: int, speed: float) -> None:
        if speed:
            self._paid_until = max(self._now(), self._paid_until) + size / speed
