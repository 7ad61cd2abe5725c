"""How fast blobs go up: just below what the link carries, so that its queue stays empty. Pure.

Rule: where a queue fills, words and acknowledgements wait in it, and data that comes the other way
slows down with them. What goes at the pace shows no more than the pace, so a faster one is tried
now and then: while it holds it is raised ever more, where it does not it falls back. Where nothing
faster holds for long, one transfer goes without a pace: what slows may be the peers' own time.
"""

from __future__ import annotations

import math

from demoloco.swarm.links.link import Lesson

BELOW = 0.93
"""Of the estimate."""
FIRST_STEP = 0.1
MAX_STEP = 1.0
FIRST_PATIENCE, PATIENCE = 1, 8
"""Transfers at the pace before a faster one is tried: at first, and after one that did not hold.
What goes up without a pace is slowed by its own queue, so the first estimate is low."""
FREE_AFTER, MAX_FREE_AFTER = 3, 6
"""Transfers before one goes without a pace; twice as many after one that showed nothing new."""
NEWS = 1.15
"""So many times what the others showed."""
SURE_SECONDS = 0.3
"""A shorter transfer does not tell a rate well enough to go by it."""
SURELY_MINE = 0.5
"""Of what the other sides say they carry: below it, this node's link is what slowed a transfer."""
FAT = 6.25e6
"""Bytes a second above which no queue is worth the care."""


class Pacer:
    """The pace of one direction."""

    def __init__(self) -> None:
        self._factor = 0.0  # of the estimate; 0 = no pace is known, infinite: none now
        self._free_after = FREE_AFTER
        self._shown: list[float] = []  # by transfers since the last without a pace
        self._step = FIRST_STEP
        self._clean = 0
        self._patience = FIRST_PATIENCE
        self._mine = False  # it is known that the link itself is what is thin

    def hear(self, lesson: Lesson) -> None:
        """What a transfer, or a window of one, showed."""
        if lesson.seconds < SURE_SECONDS:
            return
        if not lesson.held:
            self._mine = 0 < lesson.rate <= SURELY_MINE * lesson.claims
            self._patience = PATIENCE if self._factor > 1 else FIRST_PATIENCE
            if self._factor == math.inf:
                self._judge_free(lesson.rate)
            self._factor, self._step, self._clean = BELOW, FIRST_STEP, 0
        elif self._factor > 1:
            self._step = min(MAX_STEP, 2 * self._step)
            self._factor = 1 + self._step
        elif self._factor:
            self._clean += 1
            if self._clean >= self._patience:
                self._factor, self._clean = 1 + self._step, 0
        self._shown.append(lesson.rate)
        if len(self._shown) > self._free_after:
            self._factor = math.inf

    def _judge_free(self, rate: float) -> None:
        news = rate > NEWS * max(self._shown)
        self._free_after = FREE_AFTER if news else min(MAX_FREE_AFTER, 2 * self._free_after)
        self._patience = FIRST_PATIENCE if news else self._patience
        self._shown = []

    def pace(self, estimate: float, claims: float) -> float:
        """Bytes a second for what goes to peers that say they carry `claims` in all (0: some do not
        say); 0 = as fast as it goes."""
        if not 0 < self._factor < math.inf or estimate > FAT:
            return 0.0
        if not self._mine and not 0 < claims <= estimate / SURELY_MINE:
            return 0.0  # they may take more than was ever seen to go up
        return self._factor * estimate
