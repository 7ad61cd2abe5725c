"""The tasks that one adapter has in flight, so that none outlives it.

Rule: whoever starts a task here need not keep it; whoever stops the adapter waits for all.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine


class Tasks:
    """A set of running tasks."""

    def __init__(self) -> None:
        self._running: set[asyncio.Task[None]] = set()

    def spawn(self, work: Coroutine[None, None, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        self._running.add(task)
        task.add_done_callback(self._running.discard)
        return task

    async def cancel(self) -> None:
        """End all that run now, and wait until they have ended."""
        tasks = tuple(self._running)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def settle(self, seconds: float) -> None:
        """Give all that run now so long to end by themselves."""
        if self._running:
            await asyncio.wait(tuple(self._running), timeout=seconds)
