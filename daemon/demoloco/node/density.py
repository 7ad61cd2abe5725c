"""How much of what it learnt a node tells in one packet: the k of the run's ladder that fits. Pure.

Rule: the largest k whose packet, as often as it is sent, goes up in a share of the time in which
the round trains anyway, comes down at every member in its share of that, and is made in a little of
it. For others' sake, or the worker's, k never falls below the run's own; for its own link's it
does. Up by one rung a round, with room to spare; down at once, as far as needed; a rung that did
not hold is tried again after ever longer. Whose downlink is not known keeps k from rising for some
rounds; from then on it counts as no thinner than the others.

The time is that of the training alone, as the members' speeds tell it, and not of whole rounds:
a packet that is too large makes these longer, and would so make room for itself.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from statistics import median

from demoloco.config import RunConfig
from demoloco.types import Member, PeerId, short

LINK_SHARE = 0.7
"""Of the training time: so long a link may be busy with packets."""
MAKE_SHARE = 0.1
MARGIN = 1.3
"""So much larger a packet must still fit before it grows."""
PAUSE_ROUNDS, MAX_PAUSE_ROUNDS = 3, 24
"""After k fell it does not rise for so many rounds; twice as many where it had just risen…"""
AMPLE = 0.5
"""…unless so little of what the larger packet may take is taken: then something has changed."""
STEADY_ROUNDS = 6
"""A rung that held for so long was not tried in vain."""
UNKNOWN_ROUNDS = 6
"""So long a member has to find out what it can receive."""
FIRST_COPIES = 1.5
"""How often a packet goes up before that was measured."""
NEWEST = 5
UNMEASURED = "nothing is measured yet"
NO_CHOICE = "the run's ladder has no other"
Look = Callable[[], "Surroundings"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Surroundings:
    """What a node knows of its link and of the others when it makes a packet."""

    up: float = 0.0  # bytes a second; 0 = not known
    blobs_sent: int = 0  # bytes, since start
    speed: float = 0.0  # own samples a second
    others: tuple[Member, ...] = ()


@dataclass(frozen=True, slots=True)
class Need:
    """What one k asks of one thing: `share` of what it may; above 1 is too much."""

    share: float
    why: str


class Density:
    """Chooses k, packet after packet."""

    def __init__(self, config: RunConfig, now: Callable[[], float] = time.monotonic) -> None:
        self._config = config
        self._now = now
        self.look: Look = Surroundings
        """Set by who knows the surroundings."""
        self.k = config.k
        self.why = UNMEASURED
        self._size = 0.0  # of the newest packet, in bytes…
        self._size_k = config.k  # …and its k
        self._told_at = 0.0
        self._makes: deque[tuple[int, float]] = deque(maxlen=NEWEST)  # k, seconds
        self._blobs_sent = 0
        self._copies: deque[float] = deque((FIRST_COPIES,), maxlen=NEWEST)
        self._pause = PAUSE_ROUNDS  # after the newest fall, or the next
        self._held = 0  # rounds since k moved…
        self._risen = True  # …upward
        self._unknown: dict[PeerId, int] = {}  # packets since this member was first seen

    def choose(self) -> int:
        """The k of the packet that is made now."""
        self._told_at = self._now()
        around = self.look()
        if self._size:
            self._count_copies(around)
        self._blobs_sent = around.blobs_sent
        self._unknown = {
            one.peer: self._unknown.get(one.peer, 0) + 1 for one in around.others if not one.down
        }
        seconds = self._training_seconds(around)
        if not (self._size and around.up and seconds):
            self.k = self._config.k
            self.why = UNMEASURED if len(self._config.ladder) > 1 else NO_CHOICE
            return self.k
        self._move(around, seconds)
        self.why = self._told(around, seconds)
        return self.k

    def made(self, size: int, k: int) -> None:
        """The packet of this k is there, with so many bytes as it travels."""
        self._size, self._size_k = float(size), k
        self._makes.append((k, self._now() - self._told_at))

    def _move(self, around: Surroundings, seconds: float) -> None:
        ladder = self._config.ladder
        rung = ladder.index(self.k)
        self._held += 1
        while rung > 0 and self._hardest(ladder[rung], around, seconds).share > 1:
            rung -= 1
        if ladder[rung] < self.k:
            vain = self._risen and self._held <= STEADY_ROUNDS
            self._pause = min(MAX_PAUSE_ROUNDS, 2 * self._pause) if vain else PAUSE_ROUNDS
            self._held, self._risen = 0, False
        elif rung + 1 < len(ladder) and (self._risen or self._held >= PAUSE_ROUNDS):
            above = self._hardest(ladder[rung + 1], around, seconds)
            paused = not self._risen and self._held < self._pause
            if above.share * MARGIN <= (AMPLE if paused else 1):
                rung, self._held, self._risen = rung + 1, 0, True
        self.k = ladder[rung]

    def _told(self, around: Surroundings, seconds: float) -> str:
        """What keeps k from being larger; how the packet goes, if nothing does."""
        uplink = next(self._needs(self.k, around, seconds))
        larger = next((k for k in self._config.ladder if k > self.k), None)
        if larger is None:
            return uplink.why
        need = self._hardest(larger, around, seconds)
        if need.share == math.inf:
            return need.why
        return f"with {larger} {need.why}" if need.share * MARGIN > 1 else f"rising; {uplink.why}"

    def _hardest(self, k: int, around: Surroundings, seconds: float) -> Need:
        return max(self._needs(k, around, seconds), key=lambda need: need.share)

    def _needs(self, k: int, around: Surroundings, seconds: float) -> Iterator[Need]:
        size = self._size * _bits(k, self._config.bits) / _bits(self._size_k, self._config.bits)
        yield self._for_the_uplink(size, around, seconds)
        if k <= self._config.k:
            return
        making = median(made * _make_growth(k / then) for then, made in self._makes)
        told = f"it takes {duration(making)} to make in a round of {seconds:.1f} s"
        yield Need(making / (MAKE_SHARE * seconds), told)
        others = around.others
        packets = min(len(others), self._config.max_contributors)
        for member in others:
            if member.down:
                yield _for_a_downlink(member, size * packets, seconds)
            elif k > self.k and self._unknown.get(member.peer, 0) <= UNKNOWN_ROUNDS:
                name = short(member.peer)
                yield Need(math.inf, f"what {name} can receive is not known yet")

    def _for_the_uplink(self, size: float, around: Surroundings, seconds: float) -> Need:
        copies = min(median(self._copies), max(1, len(around.others)))
        sending = size * copies / around.up
        told = f"it takes {duration(sending)} to send in a round of {seconds:.1f} s"
        return Need(sending / (LINK_SHARE * seconds), f"{told}, on {mbit(around.up)} up")

    def _count_copies(self, around: Surroundings) -> None:
        """Others' packets that this node passes on are in it too: they take the same link."""
        sent = around.blobs_sent - self._blobs_sent
        if sent > 0:
            self._copies.append(max(1.0, sent / self._size))

    def _training_seconds(self, around: Surroundings) -> float:
        """In which this node trains a round, or a quorum of all if that takes longer; 0 = not
        known."""
        config = self._config
        samples = config.inner_steps * config.batch_size
        speeds = [around.speed, *(one.samples_per_second for one in around.others)]
        times = sorted(samples / speed for speed in speeds if speed > 0)
        if not around.speed:
            return 0.0
        if config.round_seconds > 0:
            return config.round_seconds
        return max(samples / around.speed, times[math.ceil(config.quorum * len(times)) - 1])


def _for_a_downlink(member: Member, size: float, seconds: float) -> Need:
    """As if all sent as much as this node."""
    receiving, name = size / member.down, short(member.peer)
    told = f"all packets take {duration(receiving)} to come in a round of {seconds:.1f} s"
    return Need(receiving / (LINK_SHARE * seconds), f"{told}, on {name}'s {mbit(member.down)} down")


def _make_growth(ratio: float) -> float:
    """How much longer a packet takes to make whose k is so many times as large, at most."""
    return max(ratio, (1 + ratio) / 2)


def _bits(k: int, bits: int) -> float:
    """About what the k coefficients of a chunk take, up to a factor: place, sign and level of each,
    and a scale."""
    return k * (math.log2(4096 / k) + 1.5 + bits) + 8


def mbit(rate: float) -> str:
    """Bytes a second, as people speak of links."""
    mega = rate * 8e-6
    return f"{mega:.3g} Mbit/s" if mega < 999.5 else f"{mega / 1000:.3g} Gbit/s"


def duration(seconds: float) -> str:
    return f"{seconds:.2g} s" if seconds >= 0.01 else "under 0.01 s"
