"""Who was open while a link was busy, and so who may have slowed it. Pure: times are given.

Rule: what went in a time says nothing against the link unless those that were open for nearly all
of it could have carried clearly more. A fast peer's blob is there at once; a thin one's may take a
hundred times as long, and what went meanwhile is then the thin peer's rate, not the link's. Who
does not say what it carries may be thin too; so may all that were slow while another was fast.
"""

from __future__ import annotations

from dataclasses import dataclass

from demoloco.types import PeerId

BRIEF_SHARE = 0.2
"""What was open for all but so much of a time is what it took so long for."""
CLEARLY_FASTER = 2.5
"""One that went so many times as fast as all shows that the others waited for themselves."""

Open = frozenset[tuple[PeerId, float]]
"""Each peer with what it says it carries, in bytes a second; 0 = it does not say."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """Of a time in which something was always open."""

    peers: frozenset[PeerId]  # who was open while least could be carried
    claims: float  # what these say they carry in all, bytes a second; 0 = none of them says
    uneven: bool  # one was clearly faster than all: those that were open for long were slow


class Takers:
    """Those that were open in a time that began at `at`."""

    def __init__(self, at: float) -> None:
        self._at = at
        self._seconds: dict[Open, float] = {}
        self._fastest = 0.0

    def were(self, now: float, those: Open) -> None:
        """Since the last call these were open."""
        self._seconds[those] = self._seconds.get(those, 0.0) + now - self._at
        self._at = now

    def one_went(self, rate: float) -> None:
        """One of them carried so much by itself, in bytes a second."""
        self._fastest = max(self._fastest, rate)

    def judge(self, rate: float) -> Verdict:
        """Who slowed it, if somebody did, given that all went at so many bytes a second."""
        uneven = self._fastest >= CLEARLY_FASTER * rate
        levels = {those: sum(claim for _, claim in those) for those in self._seconds}
        left = BRIEF_SHARE * sum(self._seconds.values())
        level = 0.0
        for those in sorted(levels, key=lambda one: levels[one]):
            level = levels[those]
            left -= self._seconds[those]
            if left < 0:
                break
        slow = [those for those in levels if levels[those] <= level]
        peers = frozenset(peer for those in slow for peer, _ in those)
        return Verdict(peers, level, uneven)
