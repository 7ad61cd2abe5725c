"""An event loop whose clock jumps to the next timer: hours of patience in seconds of test.

Rule: for code that waits for timers only; nothing in it may wait for a thread or a socket.
"""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class _Jumping(selectors.SelectSelector):
    """Never waits: the time that the loop would have slept has passed."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = super().select(0)
        if not ready:
            assert timeout is not None, "everybody waits for something that is no timer"
            self.now += max(timeout, 1e-6)
        return ready


class VirtualLoop(asyncio.SelectorEventLoop):
    """As asyncio's own, in its own time."""

    def __init__(self) -> None:
        self._jumping = _Jumping()
        super().__init__(self._jumping)

    def time(self) -> float:
        return self._jumping.now


def in_virtual_time(story: Coroutine[Any, Any, T]) -> T:
    """Run it from second 0 on."""
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(story)
