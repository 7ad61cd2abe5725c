"""Which share of the time a node trains.

Rule: the time counts from the first inner step on, whatever follows: waiting for packets, for a
correction, for a worker that is started anew. The time is passed in.
"""

from __future__ import annotations

import time
from collections.abc import Callable


class Diligence:
    """Adds up what workers say that they spent in inner steps."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._began: float | None = None
        self._heard = 0.0  # of the worker that is there now
        self._busy = 0.0  # of all

    def hear(self, busy_seconds: float) -> None:
        """What the worker says now; a new one begins at 0."""
        more = busy_seconds - self._heard if busy_seconds >= self._heard else busy_seconds
        if self._began is None and busy_seconds > 0:
            self._began = self._now() - busy_seconds
        self._heard = busy_seconds
        self._busy += more

    @property
    def share(self) -> float:
        """0..1; 0 before the first inner step."""
        if self._began is None:
            return 0.0
        return min(1.0, self._busy / max(self._now() - self._began, 1e-9))
