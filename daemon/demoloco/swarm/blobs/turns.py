"""Whose download is next: a few at a time, what matters most first.

Rule: a slow download holds up nobody. One that takes over a moment lets the next begin where the
link has room for more, and where it has not after a longer moment; calls never wait here.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass

from demoloco.swarm.port import Link

UNKNOWN_TURNS = 4
TURN_RATE = 625_000.0
"""Bytes a second, 5 Mbit/s: so much downlink for each download at once."""
MIN_TURNS, MAX_TURNS = 2, 8
MAX_DOWNLOADS = 32
LONG_SECONDS = 1.0
MAX_LONG_SECONDS = 5.0
"""After so long the next begins though the link seems full: what was measured may be too little."""
WINDOW_SECONDS, IDLE_SECONDS = 0.5, 3.0
FULL = 0.8
"""A link that carries this share of what it can has no room for another download."""

Rank = Callable[[], tuple[int, ...]]
"""Evaluated when a place is free; the least goes first."""


@dataclass(eq=False, slots=True)
class _Turn:
    """One download under way."""

    began: float
    counts: bool = True  # while it holds up others
    timer: asyncio.TimerHandle | None = None


@dataclass(eq=False, slots=True)
class _Waiting:
    rank: Rank
    number: int
    ready: asyncio.Future[_Turn]


class Turns:
    """The downloads of one node."""

    def __init__(self, link: Callable[[], Link]) -> None:
        self._link = link
        self._waiting: list[_Waiting] = []
        self._under_way: set[_Turn] = set()
        self._number = 0
        self._came = 0
        self._then = 0.0
        self._rate = 0.0

    @property
    def count(self) -> int:
        """How many may begin at once."""
        down = self._link().down
        return max(MIN_TURNS, min(MAX_TURNS, round(down / TURN_RATE))) if down else UNKNOWN_TURNS

    @asynccontextmanager
    async def turn(self, rank: Rank) -> AsyncIterator[None]:
        """Wait for a place, and hold it."""
        waiting = _Waiting(rank, self._number, asyncio.get_running_loop().create_future())
        self._number += 1
        self._waiting.append(waiting)
        self._next()
        try:
            turn = await waiting.ready
            self._watch(turn)
            yield
        finally:
            self._end(waiting)

    def came(self, length: int) -> None:
        """So many bytes arrived for one of them."""
        now = asyncio.get_running_loop().time()
        since = now - self._then
        if since >= WINDOW_SECONDS:
            self._rate = self._came / since if since < IDLE_SECONDS else 0.0
            self._came, self._then = 0, now
        self._came += length

    def _end(self, waiting: _Waiting) -> None:
        """Whether or not it ever began."""
        if waiting in self._waiting:
            self._waiting.remove(waiting)
        if waiting.ready.done() and not waiting.ready.cancelled():
            turn = waiting.ready.result()
            self._under_way.discard(turn)
            if turn.timer is not None:
                turn.timer.cancel()
        self._next()

    def _next(self) -> None:
        """Let begin whom there is room for."""
        while self._waiting and self._has_room():
            first = min(self._waiting, key=lambda one: (*one.rank(), one.number))
            self._waiting.remove(first)
            if not first.ready.done():
                turn = _Turn(began=asyncio.get_running_loop().time())
                self._under_way.add(turn)
                first.ready.set_result(turn)

    def _has_room(self) -> bool:
        counted = sum(turn.counts for turn in self._under_way)
        return counted < self.count and len(self._under_way) < MAX_DOWNLOADS

    def _watch(self, turn: _Turn) -> None:
        loop = asyncio.get_running_loop()
        turn.timer = loop.call_later(LONG_SECONDS, self._let_others, turn)

    def _let_others(self, turn: _Turn) -> None:
        now, down = asyncio.get_running_loop().time(), self._link().down
        full = 0 < FULL * down <= self._rate and now - self._then < IDLE_SECONDS
        if full and now - turn.began < MAX_LONG_SECONDS:
            self._watch(turn)
            return
        turn.counts = False
        self._next()
