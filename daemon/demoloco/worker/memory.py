"""The worker inside the caller's event loop: for tests and simulations that want no process.

Each turn of the event loop is one turn of the worker's: a command or an inner step, so that both
interleave as in the child.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

from demoloco.worker.loop import Loop
from demoloco.worker.port import Command, Died, Stop, WorkerEvent


class MemoryWorker:
    """Implements worker.port.Worker."""

    def __init__(self) -> None:
        self._commands: deque[Command] = deque()
        self._loop: Loop | None = None  # None before start and after the end
        self._scheduled = False

    @property
    def pid(self) -> int | None:
        return None

    def start(self, emit: Callable[[WorkerEvent], None]) -> None:
        self._events = asyncio.get_running_loop()
        self._emit = emit
        self._loop = Loop(lambda event: self._tell_later(event))

    def tell(self, command: Command) -> None:
        self._commands.append(command)
        self._schedule()

    async def stop(self, timeout_seconds: float) -> None:
        self._loop = None
        self._commands.clear()

    def kill(self, why: str = "killed by a test") -> None:
        """End as if the process had been killed: nothing is saved, and the caller hears of it."""
        if self._loop is not None:
            self._loop = None
            self._commands.clear()
            self._tell_later(Died(why=why))

    def _tell_later(self, event: WorkerEvent) -> None:
        self._events.call_soon(self._emit, event)

    def _schedule(self) -> None:
        if self._loop is not None and not self._scheduled:
            self._scheduled = True
            self._events.call_soon(self._turn)

    def _turn(self) -> None:
        self._scheduled = False
        loop = self._loop
        if loop is None:
            return
        command = self._commands.popleft() if self._commands else None
        if isinstance(command, Stop) or not loop.advance(command):
            self._loop = None
        elif self._commands or loop.training:
            self._schedule()
