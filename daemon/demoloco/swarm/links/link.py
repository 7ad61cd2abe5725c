"""What one direction of this node's link carries, as its transfers teach. Pure: times are given.

Rule: a transfer proves that the link carries at least so much, hardly ever that it carries no more:
the most that the newest ones proved is the estimate. It falls after several that say less and were
slowed neither by this node's own limits nor, as far as is known, by the other side; at once after
one that says far less and took long enough to be sure of it.

Transfers at the same time are one: bytes over the time in which any was under way, without the
round trip that each of them waits for the first or the last of its bytes, nor the pauses in which a
cold connection waits for its window to open (`slow_start.py`).
"""

from __future__ import annotations

import math
from collections import OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass

from demoloco.swarm.links.slow_start import idle_seconds
from demoloco.swarm.links.takers import Open, Takers, Verdict
from demoloco.types import PeerId

DOUBT_SHARE = 0.1
DOUBT_SECONDS = 0.002
"""Of a round trip, and on top of it: so much of a transfer's time may be the way's, not the
link's. A transfer that took no longer tells little."""
MEMORY = 3.0
"""Transfers that say less, each with its weight, after which a larger one is forgotten…"""
ENOUGH = 0.85 * MEMORY
MEMORY_SECONDS = 5.0
"""…if it is at least so old: others' traffic comes and goes…"""
CLEARLY, CLEAR_SECONDS = 2.5, 0.5
"""…or if one that took so long says that the link carries so many times less."""
MAX_SAMPLES = 64
OTHERS_SHARE = 0.6
"""At more than this share of what the other sides say they carry, they may be what slowed it."""
OTHERS_WEIGHT = 0.5
OTHERS_MOST = 0.4 * MEMORY
"""So much the same other sides may say, in all, against what was carried to or from others, until
all of these say less too."""
UNASKED_WEIGHT = 0.25
"""What comes unasked goes to several at once, each at its sender's own pace."""
CUT_SECONDS = 1.0
"""What broke off after so long still tells what the link did not carry until then."""
AHEAD_BYTES = 256 << 10
"""So much may have been given to the road and not have gone up when it broke off."""
HELD_SHARE = 0.2
"""A transfer that waited for an own limit for more of its time does not tell the link's rate."""
OWN_SHARE = 0.7
"""So much of what a transfer waited for an own limit is no word against the link."""
LAG_SHARE = 0.15
"""…unless what had passed the limit took more of it to arrive: then the link was slower still."""
HOLDS_SHARE = 0.85
"""What goes up at a limit of so much of the estimate shows that the estimate still holds."""
WINDOW_SECONDS = 5.0
"""What goes on for longer is looked at in windows too, but for the first: buffers fill in it."""
MAX_WINDOWS = 4
"""What took more of them tells no more as a whole: the link may have changed meanwhile."""
TRIPS_KEPT = 6
MAX_PEERS = 512

NOBODY = PeerId("")
ANYBODY: frozenset[PeerId] = frozenset()

Clock = Callable[[], float]


class RoundTrips:
    """How long a word to each peer and its answer take, in seconds, when nothing is in the way."""

    def __init__(self) -> None:
        self._newest: OrderedDict[PeerId, deque[float]] = OrderedDict()

    def note(self, peer: PeerId, seconds: float) -> None:
        kept = self._newest.setdefault(peer, deque(maxlen=TRIPS_KEPT))
        kept.append(seconds)
        self._newest.move_to_end(peer)
        if len(self._newest) > MAX_PEERS:
            self._newest.popitem(last=False)

    def of(self, peer: PeerId) -> float:
        """The shortest of the newest; 0 if none is known."""
        return min(self._newest.get(peer, (0.0,)))


@dataclass(frozen=True, slots=True)
class Lesson:
    """What was seen of one transfer, or of a window of it."""

    rate: float  # bytes a second, at least
    seconds: float
    held: bool  # an own limit slowed it, not the link
    claims: float  # what the other sides say they carry, in all; 0 = none says


@dataclass(slots=True)
class _Sample:
    at: float
    rate: float  # at least
    most: float  # and at most, if nothing else slowed it
    weight: float  # of its word against a higher rate; 0: it may only raise the estimate
    seconds: float
    others: bool  # the other sides may have slowed it
    verdict: Verdict  # on them

    def tells_little_of(self, sample: _Sample) -> bool:
        """Was slowed by peers other than those with whom the other one was seen?"""
        peers = sample.verdict.peers
        if self.tells_nothing_of(sample.rate):
            return not self.same_peers_as(sample)
        return self.others and self.verdict.peers.isdisjoint(peers - {NOBODY})

    def tells_nothing_of(self, rate: float) -> bool:
        """Would have been as slow on a link that carries so much, as far as is known?"""
        verdict = self.verdict
        silent = not verdict.claims and NOBODY not in verdict.peers
        thin = 0 < CLEARLY * verdict.claims <= rate
        return silent or thin or verdict.uneven

    def same_peers_as(self, sample: _Sample) -> bool:
        """Was carried to or from all those with whom the other one was seen?"""
        peers = sample.verdict.peers
        return NOBODY not in peers and peers <= self.verdict.peers

    def weighs_against(self, sample: _Sample) -> float:
        """How much it says against a higher rate."""
        clear = self.seconds >= CLEAR_SECONDS and sample.rate >= CLEARLY * self.most
        doubtful = self.others and not self.same_peers_as(sample)
        return (MEMORY if clear else 1.0) * self.weight * (OTHERS_WEIGHT if doubtful else 1.0)


@dataclass(frozen=True, slots=True)
class _Seen:
    """A time in which something was always under way, or a window of it."""

    size: int
    seconds: float
    doubt: float  # so much of them, more or less
    own_seconds: float  # of them: waited for an own limit
    takers: Takers
    held: bool  # an own limit slowed it

    @property
    def rate(self) -> float:
        return self.size / (self.seconds + self.doubt)


@dataclass(slots=True)
class _Busy:
    """A time in which something is always under way; `window_…`: the newest window of it."""

    began: float
    round_trip: float
    window_began: float
    takers: Takers
    window_takers: Takers
    size: int = 0
    held: float = 0.0
    progress: float = 0.0  # when bytes went or arrived last
    last: float = 0.0  # when the last bytes went…
    last_size: int = 0  # …and how many at once
    window_size: int = 0
    window_held: float = 0.0
    windows: int = 0
    whole: bool = True
    cold: int = 0  # connections whose window is yet to open; none if any of them was warm
    peers: frozenset[PeerId] = frozenset()
    asked: bool = True

    def were_open(self, now: float, those: Open) -> None:
        self.takers.were(now, those)
        self.window_takers.were(now, those)


@dataclass(frozen=True, slots=True)
class Far:
    """The other side of a transfer, as far as it is known."""

    peer: PeerId = NOBODY
    round_trip: float = 0.0  # seconds
    claim: float = 0.0  # bytes a second that it says it carries; 0 = it does not say
    cold: bool = False  # nothing went this way lately
    asked: bool = True  # the first byte comes a round trip after the beginning; down only


class Passage:
    """One transfer under way."""

    def __init__(self, way: Way, far: Far, at: float) -> None:
        self._way: Way | None = way
        self.far = far
        self.began = at
        self.size = 0  # of its bytes, so many went

    def carried(self, size: int, held_seconds: float = 0.0) -> None:
        """So many bytes went on after waiting so long for this node's own limit."""
        if self._way is not None:
            self.size += size
            self._way.carried(size, held_seconds)

    def end(self, whole: bool) -> None:
        """All of it arrived, or it broke off; idempotent."""
        way, self._way = self._way, None
        if way is not None:
            way.end(self, whole)


class Way:
    """One direction; `rate` is bytes a second, 0 while nothing is known."""

    def __init__(self, now: Clock, *, upward: bool) -> None:
        self._now = now
        self._upward = upward
        self._open: set[Passage] = set()
        self._busy: _Busy | None = None
        self._samples: deque[_Sample] = deque(maxlen=MAX_SAMPLES)
        self.tell: Callable[[Lesson], None] = _nobody
        """Called with each lesson."""

    @property
    def rate(self) -> float:
        """The most that is still believed."""
        return max((sample.rate for sample in self._samples), default=0.0)

    @property
    def claims(self) -> float:
        """What the other sides of all that is under way say they carry; 0 = some do not say."""
        claims = [passage.far.claim for passage in self._open]
        return sum(claims) if all(claims) else 0.0

    def begin(self, far: Far | None = None) -> Passage:
        """A transfer begins: up, with its first byte; down, when it is asked for."""
        far = far or Far()
        now = self._now()
        passage = Passage(self, far, now)
        if self._busy is None:
            asking = far.round_trip if far.asked else 0.0
            self._busy = _Busy(now, asking, now, Takers(now), Takers(now), cold=int(far.cold))
        elif far.peer not in self._busy.peers:
            all_cold = far.cold and self._busy.cold > 0
            self._busy.cold = self._busy.cold + 1 if all_cold else 0
        if self._open:
            self._busy.were_open(now, self._those())
        self._open.add(passage)
        self._busy.peers |= {far.peer}
        self._busy.asked &= far.asked
        return passage

    def carried(self, size: int, held_seconds: float) -> None:
        """A passage's own business."""
        busy = self._busy
        assert busy is not None
        busy.size += size
        busy.held += held_seconds
        busy.progress = busy.last = self._now()
        busy.last_size = size
        busy.window_size += size
        busy.window_held += held_seconds
        seconds = self._now() - busy.window_began
        if seconds < WINDOW_SECONDS:
            return
        busy.were_open(self._now(), self._those())
        if busy.windows:
            held = busy.window_held > HELD_SHARE * seconds
            own, takers = busy.window_held, busy.window_takers
            self._take(_Seen(busy.window_size, seconds, DOUBT_SECONDS, own, takers, held))
        busy.windows += 1
        busy.window_began, busy.window_size, busy.window_held = self._now(), 0, 0.0
        busy.window_takers = Takers(self._now())

    def end(self, passage: Passage, whole: bool) -> None:
        """A passage's own business."""
        busy = self._busy
        assert busy is not None
        busy.were_open(self._now(), self._those())
        self._open.discard(passage)
        if whole:
            self._one_went(passage, busy)
        busy.whole &= whole or not passage.size
        if whole:
            busy.progress = self._now()
        if self._open:
            return
        if not busy.whole:
            self._learn_of_a_cut(busy)
        elif busy.size and busy.windows <= MAX_WINDOWS:
            trip = passage.far.round_trip
            way = trip if self._upward else busy.round_trip
            seconds = max(0.0, self._now() - busy.began - way)
            lag = self._now() - busy.last - way if self._upward else 0.0
            self._learn(busy.size, seconds, trip, lag)
        self._busy = None

    def _those(self) -> Open:
        return frozenset((one.far.peer, one.far.claim) for one in self._open)

    def _one_went(self, passage: Passage, busy: _Busy) -> None:
        trip = passage.far.round_trip
        seconds = max(0.0, self._now() - passage.began - trip) + DOUBT_SECONDS + DOUBT_SHARE * trip
        busy.takers.one_went(passage.size / seconds)
        if passage.began >= busy.window_began:
            busy.window_takers.one_went(passage.size / seconds)

    def _learn(self, size: int, seconds: float, trip: float, lag: float) -> None:
        """Of all that was under way: it took so long, without the round trip of the way, and the
        last of it so long after it was given to the road."""
        busy = self._busy
        assert busy is not None
        doubt = DOUBT_SECONDS + DOUBT_SHARE * trip
        idle = idle_seconds(size, seconds + doubt, trip, busy.cold) if busy.cold else 0.0
        seconds -= idle
        if size > busy.last_size:  # the last piece, too, takes what the others waited for
            lag -= busy.held * busy.last_size / (size - busy.last_size)
        lag -= idle
        held = busy.held > HELD_SHARE * seconds and lag <= LAG_SHARE * seconds + doubt
        self._take(_Seen(size, seconds, doubt, busy.held, busy.takers, held))

    def _take(self, seen: _Seen) -> None:
        busy = self._busy
        assert busy is not None
        weight = 0.0 if seen.held else seen.seconds / (seen.seconds + seen.doubt)
        weight *= 1.0 if busy.asked else UNASKED_WEIGHT
        against = seen.seconds - seen.doubt - OWN_SHARE * seen.own_seconds
        most = seen.size / against if against > 0 else math.inf
        verdict = seen.takers.judge(seen.rate)
        others = seen.rate > OTHERS_SHARE * verdict.claims > 0
        self._keep(_Sample(self._now(), seen.rate, most, weight, seen.seconds, others, verdict))
        self.tell(Lesson(seen.rate, seen.seconds, seen.held, verdict.claims))

    def _learn_of_a_cut(self, busy: _Busy) -> None:
        seconds = busy.progress - busy.began - busy.round_trip
        if seconds < CUT_SECONDS or busy.held > HELD_SHARE * seconds:
            return
        sure = max(0, busy.size - AHEAD_BYTES) if self._upward else busy.size
        most = busy.size / seconds
        rate = sure / (busy.progress - busy.began)
        verdict = busy.takers.judge(most)
        others = most > OTHERS_SHARE * verdict.claims > 0
        self._keep(_Sample(self._now(), rate, most, 1.0, seconds, others, verdict))

    def _keep(self, sample: _Sample) -> None:
        """Forget what the newest say enough against."""
        best = max(self._samples, key=lambda one: one.rate, default=None)
        if best is not None and sample.weight == 0.0 and sample.rate <= best.rate:
            if sample.rate >= HOLDS_SHARE * best.rate:
                self._samples.remove(best)
                best.at = sample.at
                self._samples.append(best)
            return
        self._samples.append(sample)
        self._samples = deque(
            (one for one in self._samples if self._is_believed(one)), maxlen=MAX_SAMPLES
        )

    def _is_believed(self, sample: _Sample) -> bool:
        fresh = self._samples[-1].at - sample.at < MEMORY_SECONDS
        by_others: dict[frozenset[PeerId], float] = {}
        against, seen_since = 0.0, ANYBODY
        for one in self._samples:
            if one.at <= sample.at or one.most >= sample.rate:
                continue
            weight = one.weighs_against(sample)
            if fresh and weight <= one.weight:
                continue
            if one.tells_little_of(sample):
                seen_since |= one.verdict.peers
                these = ANYBODY if one.tells_nothing_of(sample.rate) else one.verdict.peers
                by_others[these] = by_others.get(these, 0.0) + weight
            else:
                against += weight
        peers = sample.verdict.peers
        all_say_less = NOBODY not in peers and peers <= seen_since
        most = math.inf if all_say_less else OTHERS_MOST
        against += sum(min(most, weight) for weight in by_others.values())
        return against < ENOUGH


def _nobody(lesson: Lesson) -> None:
    pass
