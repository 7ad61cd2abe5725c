"""How far this node's clock is from the other members', for the operator.

Rule: nothing in a round hangs on it: words are ordered by each peer's own sequence, waits are
measured by clocks that only go forward. Times are passed in.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from statistics import median

from demoloco.types import PeerId

log = logging.getLogger(__name__)

OFF_SECONDS = 5.0
AGAIN_SECONDS = 600.0
MAX_ROUND_TRIP_SECONDS = 4.0
"""A slower answer does not tell the time."""
MAX_CLOCKS = 512


class Clocks:
    """What the other members' clocks say, and whether the operator knows."""

    def __init__(self) -> None:
        self._ahead: dict[PeerId, float] = {}
        self._said: float | None = None

    def note(self, peer: PeerId, clock_ms: int, asked: float, answered: float) -> None:
        """`peer` said this time between these two times of my clock, in seconds."""
        if clock_ms <= 0 or not 0 <= answered - asked <= MAX_ROUND_TRIP_SECONDS:
            return
        self._ahead.pop(peer, None)
        self._ahead[peer] = (asked + answered) / 2 - clock_ms / 1000
        if len(self._ahead) > MAX_CLOCKS:
            del self._ahead[next(iter(self._ahead))]

    def ahead_seconds(self, members: Iterable[PeerId]) -> float:
        """By how much my clock is ahead of the median of all, mine included; of one other's, if
        there is one other only: nobody can say whose is wrong."""
        others = [self._ahead[peer] for peer in members if peer in self._ahead]
        if len(others) < 2:
            return others[0] if others else 0.0
        return median([0.0, *others])

    def complain(self, members: Iterable[PeerId], now: float) -> None:
        """Tell the operator if the clock is off: when it begins, then every ten minutes."""
        members = tuple(members)
        if not any(peer in self._ahead for peer in members):
            return
        ahead = self.ahead_seconds(members)
        if abs(ahead) < OFF_SECONDS:
            if self._said is not None:
                log.info("clock=right seconds=%.1f", ahead)
            self._said = None
        elif self._said is None or now >= self._said + AGAIN_SECONDS:
            self._said = now
            whose = "the other members'"
            if sum(peer in self._ahead for peer in members) == 1:
                whose = "the only other member's, and one of the two is wrong"
            log.warning(
                "clock=off seconds=%.0f why=this machine's clock is %s %s; rounds go on all the"
                " same, but set it: timedatectl set-ntp true",
                abs(ahead),
                "ahead of" if ahead > 0 else "behind",
                whose,
            )
