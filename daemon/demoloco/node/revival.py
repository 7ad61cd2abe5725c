"""What happens when the worker falls: it is started anew, as often as makes sense.

Rule: one revival at a time, however often the worker falls meanwhile; the machine hears of each
fall at once, and of a worker only when it can be used.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from demoloco.errors import ConfigError, WorkerError
from demoloco.node.parts import Parts
from demoloco.rounds import events as ev
from demoloco.worker.checkpoint import Checkpoint, newest_whole
from demoloco.worker.port import Died, Failed

Spawn = Callable[[Coroutine[Any, Any, None]], None]
Post = Callable[[ev.Event], None]


class Revival:
    """Brings the worker back."""

    def __init__(self, parts: Parts, post: Post) -> None:
        self._parts = parts
        self._post = post
        self._end: Failed | Died | None = None  # of the newest worker, if it fell
        self._reviving = False
        self._restarts = 0  # since the last packet
        self.checkpoint: Checkpoint | None = None
        """What the worker that came last can be restored from."""

    def proved(self) -> None:
        """The worker made a packet: it works, and may fall as often again."""
        self._restarts = 0

    async def ready(self) -> None:
        """A fresh worker has begun: find its checkpoint. → WorkerCame."""
        await self._find_checkpoint()
        self._post(ev.WorkerCame())

    def fell(self, end: Failed | Died, spawn: Spawn) -> None:
        """→ WorkerLost, then WorkerCame when a new one has begun.

        The spawned task raises WorkerError when it failed too often in a row."""
        self._parts.stance.fell()
        self._post(ev.WorkerLost(self._owed_at_checkpoint()))
        self._end = end
        if not self._reviving:
            self._reviving = True
            spawn(self._revive())

    async def _revive(self) -> None:
        while (end := self._end) is not None:
            self._end = None
            self._restarts += 1
            self._tell(end)
            if self._restarts > self._parts.node.max_worker_restarts:
                raise WorkerError(_in_a_row(self._restarts, end))
            self._parts.report.count("worker_restarts")
            try:
                await self._parts.crew.restart()
                await self._find_checkpoint()
            except (ConfigError, WorkerError) as error:
                self._end = Died(why=str(error))
        self._reviving = False
        self._post(ev.WorkerCame())

    async def _find_checkpoint(self) -> None:
        directory = self._parts.ledger.store.checkpoint_dir()
        self.checkpoint = await asyncio.to_thread(newest_whole, directory)

    def _tell(self, end: Failed | Died) -> None:
        facts = {"fix": end.fix} if isinstance(end, Failed) and end.fix else {}
        self._parts.report.warn("worker lost", why=end.why, restart=self._restarts, **facts)
        if isinstance(end, Failed) and end.detail:
            self._parts.report.warn("traceback of the worker", detail=end.detail)

    def _owed_at_checkpoint(self) -> int:
        head, round_ = self._parts.machine.head, self._parts.machine.state.round
        if head is None:
            return 0
        pending = round_.mine.samples if round_ is not None and round_.mine is not None else 0
        return max(self._parts.ledger.owed_samples(self._parts.me, head.digest), pending)


def _in_a_row(times: int, end: Failed | Died) -> str:
    fix = f"\nfix: {end.fix}" if isinstance(end, Failed) and end.fix else ""
    return f"the worker failed {times} times without a packet in between: {end.why}{fix}"
