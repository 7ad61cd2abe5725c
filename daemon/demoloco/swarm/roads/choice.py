"""Which road a stream of one peer takes: the one that has been measured as faster.

Rule: a road is measured while at least one stream is on it, so that what several carry together
counts. One that fails is set aside for a while, longer each time; one that is slower is tried
again now and then, ever more rarely. Pure: the time is passed in.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

LEAST_BYTES = 64 << 10
"""Less says nothing of a road."""
WINDOW_SECONDS = 5.0
"""A road that is always in use is measured so often."""
SMOOTHING = 0.3
"""How much the newest measurement counts."""
MARGIN = 1.1
"""The other road must be so much faster before it is taken."""
FAR = 2.0
"""One that is so much slower is tried again only after twice the time."""
FIRST_LOOK_SECONDS = 60.0
LAST_LOOK_SECONDS = 3600.0
FIRST_ASIDE_SECONDS = 1.0
LAST_ASIDE_SECONDS = 600.0


class Road(StrEnum):
    """The two roads, as the operator sees them."""

    LIBP2P = "libp2p"
    GRPC = "grpc"


@dataclass(slots=True)
class Pace:
    """How fast one road of one peer is, in bytes a second; 0 = not known."""

    rate: float = 0.0
    _streams: int = 0
    _since: float = 0.0
    _bytes: int = 0

    def begin(self, now: float) -> None:
        if self._streams == 0:
            self._since, self._bytes = now, 0
        self._streams += 1

    def came(self, size: int, now: float) -> None:
        self._bytes += size
        if now - self._since >= WINDOW_SECONDS:
            self._fold(now)

    def end(self, now: float) -> None:
        self._streams -= 1
        if self._streams == 0:
            self._fold(now)

    def _fold(self, now: float) -> None:
        if self._bytes >= LEAST_BYTES and now > self._since:
            new = self._bytes / (now - self._since)
            self.rate = new if self.rate == 0.0 else self.rate + SMOOTHING * (new - self.rate)
        self._since, self._bytes = now, 0


@dataclass(slots=True)
class _Standing:
    """What is known of one road."""

    pace: Pace = field(default_factory=Pace)
    aside_until: float = 0.0
    aside_seconds: float = 0.0
    look_at: float = 0.0
    look_seconds: float = FIRST_LOOK_SECONDS


class Choice:
    """The two roads of one peer."""

    def __init__(self) -> None:
        self._roads = {road: _Standing() for road in Road}
        self.road = Road.LIBP2P
        """The one that streams take now."""

    def pace(self, road: Road) -> Pace:
        return self._roads[road].pace

    def is_aside(self, road: Road, now: float) -> bool:
        return now < self._roads[road].aside_until

    def aside_left(self, road: Road, now: float) -> float:
        """For how many seconds it stays set aside; 0 if it is not."""
        return max(0.0, self._roads[road].aside_until - now)

    def pick(self, now: float, *, direct: bool) -> Road:
        """The road for the next stream; `direct`: whether the direct road is open."""
        if not direct or self.is_aside(Road.GRPC, now):
            self.road = Road.LIBP2P
            return self.road
        if self.is_aside(Road.LIBP2P, now):
            self.road = Road.GRPC
            return self.road
        self.road = self._faster()
        other = Road.GRPC if self.road is Road.LIBP2P else Road.LIBP2P
        return other if self._is_due(other, now) else self.road

    def failed(self, road: Road, now: float, least: float = 0.0) -> None:
        """Set it aside, for twice as long as the last time, `least` seconds at least."""
        state = self._roads[road]
        if now < state.aside_until:  # its streams fail together
            return
        longer = max(FIRST_ASIDE_SECONDS, least, 2 * state.aside_seconds)
        state.aside_seconds = min(LAST_ASIDE_SECONDS, longer)
        state.aside_until = now + state.aside_seconds

    def worked(self, road: Road) -> None:
        """A stream came to its end."""
        state = self._roads[road]
        state.aside_seconds = state.aside_until = 0.0

    def forgive(self, road: Road) -> None:
        """What is known of its failures is out of date."""
        self.worked(road)

    def _faster(self) -> Road:
        libp2p, grpc = self.pace(Road.LIBP2P).rate, self.pace(Road.GRPC).rate
        if grpc == 0.0:  # open and never measured: it may well be the better one
            return Road.GRPC
        rate, other = (libp2p, grpc) if self.road is Road.LIBP2P else (grpc, libp2p)
        if other > MARGIN * rate:
            return Road.GRPC if self.road is Road.LIBP2P else Road.LIBP2P
        return self.road

    def _is_due(self, other: Road, now: float) -> bool:
        """Whether the slower road is to be tried, once, to see whether it still is."""
        state = self._roads[other]
        if now < state.look_at:
            return False
        first = state.look_at == 0.0
        known, best = state.pace.rate, self.pace(self.road).rate
        far = known > 0.0 and best > FAR * known
        state.look_seconds = (
            min(LAST_LOOK_SECONDS, 2 * state.look_seconds) if far else FIRST_LOOK_SECONDS
        )
        state.look_at = now + state.look_seconds
        return not first
