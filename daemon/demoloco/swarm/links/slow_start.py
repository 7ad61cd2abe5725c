"""How long a link stands idle while new TCP connections find out what it carries. Pure.

Rule: a connection that was idle sends a small window, waits a round trip for its receipt, sends
twice as much, and so on, until its window fills the link. What it waits is no fault of the link:
a packet of 100 kB would else never show more than a few Mbit/s 100 ms away.
"""

from __future__ import annotations

from itertools import takewhile

WINDOW_BYTES = 10 * 1448
"""The first one (RFC 6928)."""
GROWTH = 2
MAX_IDLE_SHARE = 0.5
"""Of a transfer's time: no more is put down to it, for nobody knows whether it was really so."""
TRIP_SHARE = 0.93
"""Of a measured round trip: so much it takes at least; the rest may be the peers' own time."""
STEPS = 24


def idle_seconds(size: int, seconds: float, round_trip: float, connections: int) -> float:
    """Of `seconds` (without the round trip that each transfer takes), for `size` bytes.

    0 where it took less than cold connections need: they were not cold."""
    trip = TRIP_SHARE * round_trip
    windows = _windows(size, connections)
    if not windows or trip <= 0 or seconds <= trip * len(windows):
        return 0.0
    low, high = 0.0, seconds  # of the time in which the link is busy
    for _ in range(STEPS):
        busy = (low + high) / 2
        idle = sum(max(0.0, trip - window * busy / size) for window in windows)
        low, high = (busy, high) if busy + idle < seconds else (low, busy)
    return min(seconds - high, MAX_IDLE_SHARE * seconds)


def _windows(size: int, connections: int) -> list[int]:
    """Those after which there is more to send."""
    first = WINDOW_BYTES * connections
    sizes = (first * GROWTH**number for number in range(64))
    # all windows up to the n-th hold first * (2^n - 1) bytes
    return list(takewhile(lambda window: GROWTH * window - first < size, sizes))
