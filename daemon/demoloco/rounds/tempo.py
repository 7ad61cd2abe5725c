"""How long to wait for others, derived from how the last rounds went: no timeout for a user to
guess.

Rule: arithmetic on seconds, no event and no effect. What most did counts (median, and median
deviation from it), so that a minority, however late, stretches nothing.
"""

from __future__ import annotations

import statistics
from collections import deque
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from demoloco.types import Digest, PeerId

WINDOW_ROUNDS = 8
"""So many of the last rounds are remembered."""

WINDOW_PACKETS = 32

MIN_ROUNDS = 3
"""Fewer rounds than these measure nothing."""

SPREAD = 6.0
"""Deviations beyond the median that count as usual."""

MAD_TO_SIGMA = 1.4826
"""Of a normal distribution, the standard deviation in median absolute deviations."""

GRACE_FLOOR = 0.25
GRACE_UNMEASURED = 2.0
"""At least so long while nothing is measured, or not with all of these members: a newcomer's start
takes cores and links from the others."""
GRACE_CEILING = 0.5
"""The grace is never longer than this share of the time that the quorum took."""

PATIENCE_FLOOR = 2.0
"""A quorum is waited for this long beyond the usual."""

PATIENCE_SHARE = 4.0
PATIENCE_SECONDS = 15.0
"""Without a quorum a round waits at most this share of the time that its first packet took, or
these seconds if they are more."""

TURN_FLOOR = 2.0
"""With 1 second ten times as many proposals crossed in troubled swarms."""

TURN_CEILING = 15.0
TURN_UNMEASURED = 5.0


def usual(samples: Sequence[float]) -> float:
    """What all but the unusual stay below: the median and SPREAD deviations.

    `samples`: at least one. Less than half of them, whatever they are, cannot move the result
    beyond what the others could."""
    middle = statistics.median(samples)
    deviation = statistics.median(abs(sample - middle) for sample in samples)
    return middle + SPREAD * MAD_TO_SIGMA * deviation


def bounded(value: float, low: float, high: float) -> float:
    """`low` wins over a lower `high`."""
    return max(low, min(high, value))


@dataclass(frozen=True, slots=True)
class Course:
    """How one round went, as seen from here: seconds on the node's clock."""

    parent: Digest
    quorum: float
    expected: Collection[PeerId]
    arrivals: dict[PeerId, float]

    def lateness(self) -> list[float]:
        """After the quorum; of those before it, below 0."""
        return [at - self.quorum for at in self.arrivals.values()]


class Tempo:
    """The last rounds, and the waits that follow from them."""

    def __init__(self) -> None:
        self._courses: deque[Course] = deque(maxlen=WINDOW_ROUNDS)
        self._gathered: deque[float] = deque(maxlen=WINDOW_ROUNDS)
        self._heard: deque[float] = deque(maxlen=WINDOW_ROUNDS)
        self._fetched: deque[float] = deque(maxlen=WINDOW_ROUNDS)
        self._travelled: deque[float] = deque(maxlen=WINDOW_PACKETS)

    # -- what happened -----------------------------------------------------------------------------
    def ran(self, course: Course) -> None:
        """A round with a quorum is over."""
        self._courses.append(course)

    def came(self, parent: Digest, peer: PeerId, now: float) -> None:
        """A packet for a round that is over is heard of: late, but not unheard of."""
        for course in self._courses:
            if course.parent == parent and peer in course.expected:
                course.arrivals.setdefault(peer, now)

    def gathered(self, seconds: float) -> None:
        """From the opening of a round to its quorum."""
        self._gathered.append(seconds)

    def heard(self, seconds: float) -> None:
        """From the time at which a round may close to its manifest."""
        self._heard.append(seconds)

    def fetched(self, seconds: float) -> None:
        """From a round's manifest to the last of its packets."""
        self._fetched.append(seconds)

    def travelled(self, seconds: float) -> None:
        """A packet took so long to get here."""
        self._travelled.append(seconds)

    # -- what follows ------------------------------------------------------------------------------
    def grace(self, quorum_seconds: float, expected: Collection[PeerId] = ()) -> float:
        """How long to wait for the rest after a quorum that took so long; `expected`: of whom."""
        high = GRACE_CEILING * quorum_seconds
        if len(self._courses) < MIN_ROUNDS or any(map(self._is_new, expected)):
            return max(GRACE_UNMEASURED, high)
        samples = [late for course in self._courses for late in course.lateness()]
        return bounded(usual(samples) + self.travel(), GRACE_FLOOR, high)

    def _is_new(self, peer: PeerId) -> bool:
        """Nobody knows yet what is usual with this one among the others."""
        return sum(peer in course.expected for course in self._courses) < MIN_ROUNDS

    def patience(self, first_seconds: float) -> float:
        """How long to wait for a quorum after a first packet that took so long."""
        high = max(PATIENCE_SECONDS, PATIENCE_SHARE * first_seconds)
        if len(self._gathered) < MIN_ROUNDS:
            return high
        rest = max(0.0, usual(self._gathered) - first_seconds)
        return bounded(rest + PATIENCE_FLOOR, PATIENCE_FLOOR, high)

    def silence(self) -> float:
        """How long to wait for a first packet of those who are in turn."""
        if len(self._gathered) < MIN_ROUNDS:
            return PATIENCE_SHARE * PATIENCE_SECONDS
        return max(PATIENCE_SECONDS, PATIENCE_SHARE * usual(self._gathered))

    def turn(self) -> float:
        """How long to wait for each proposer in the line."""
        return _measured(self._heard, TURN_FLOOR, TURN_CEILING, TURN_UNMEASURED)

    def travel(self) -> float:
        """How long a packet takes from one node to another; 0 while nothing is measured."""
        return statistics.median(self._travelled) if self._travelled else 0.0

    def fetching(self) -> float:
        """How long to wait, after a manifest, for its packets."""
        return _measured(self._fetched, TURN_FLOOR, TURN_CEILING, TURN_UNMEASURED)


def _measured(samples: Sequence[float], low: float, high: float, unmeasured: float) -> float:
    return bounded(usual(samples), low, high) if len(samples) >= MIN_ROUNDS else unmeasured
