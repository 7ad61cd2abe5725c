"""What happens when the worker falls: it is started anew, as often as makes sense.

Rule: one revival at a time, however often the worker falls meanwhile; the machine hears of each
fall at once, and of a worker only when it can be used.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import replace
from pathlib import Path
from typing import Any

from demoloco.errors import ConfigError, WorkerError
from demoloco.node.parts import Parts
from demoloco.rounds import events as ev
from demoloco.worker.checkpoint import Checkpoint, newest_whole
from demoloco.worker.port import Died, Failed, Lapsed

TRACEBACK = "worker-traceback.txt"
"""In the home: the last one that there was."""

PROOF_PACKETS = 10
"""After so many packets even a worker that fell of the same cause as before counts as sound."""

Spawn = Callable[[Coroutine[Any, Any, None]], None]
Late = Callable[[], ev.Event]
"""An event that is made when its turn comes: what it says is of that moment."""

Post = Callable[[ev.Event | Late], None]


class Revival:
    """Brings the worker back."""

    def __init__(self, parts: Parts, post: Post) -> None:
        self._parts = parts
        self._post = post
        self._end: Failed | Died | None = None  # of the newest worker, if it fell
        self._reviving = False
        self._restarts = 0  # in a row
        self._packets = 0  # since the last fall
        self._cause = ""  # of the last fall
        self.checkpoint: Checkpoint | None = None
        """What the worker that came last can be restored from."""
        self.saved = 0
        """Samples that the newest checkpoint counts."""

    def started(self, started: ev.Started) -> ev.Started:
        """With what the checkpoint leaves owed."""
        account = self._parts.report.account
        account.show()
        owed = account.start_from(self.saved, started.pending)
        return replace(started, owed_samples=owed)

    def proved(self) -> None:
        """The worker made a packet."""
        self._packets += 1

    def forget_checkpoint(self) -> None:
        """It is of no use: the worker starts anew without it. → WorkerLost, WorkerCame."""
        self.checkpoint, self.saved = None, 0
        self._came()

    def fell(self, end: Failed | Died, spawn: Spawn) -> None:
        """→ WorkerLost, then WorkerCame when a new one has begun.

        The spawned task raises WorkerError when it failed too often in a row."""
        self._parts.stance.fell()
        self._post(self._lost)
        self._end = end
        if not self._reviving:
            self._reviving = True
            spawn(self._revive())

    def lapsed(self, event: Lapsed, spawn: Spawn) -> None:
        """The worker lives on without a model: it goes back to its checkpoint. → as `fell`."""
        self._parts.report.count("worker_lapses")
        self._parts.report.warn("going back to the last checkpoint", why=event.why)
        self._parts.stance.fell()
        self._post(self._lost)
        if not self._reviving:
            spawn(self.put_back())

    async def put_back(self) -> None:
        """The worker's model is of no use: it takes another. → WorkerLost, WorkerCame."""
        await self.find_checkpoint()
        if not self._reviving:  # it fell meanwhile: then there will be another
            self._came()

    async def _revive(self) -> None:
        while (end := self._end) is not None:
            self._end = None
            self._count(end)
            self._tell(end)
            if self._restarts > self._parts.node.max_worker_restarts:
                raise WorkerError(_in_a_row(self._restarts, end, self._traceback))
            self._parts.report.count("worker_restarts")
            try:
                await self._parts.crew.restart()
                await self.find_checkpoint()
            except (ConfigError, WorkerError) as error:
                self._end = Died(why=str(error))
        self._reviving = False
        self._came()

    def _came(self) -> None:
        """Once more what was lost: only now it is known what there is to start from."""
        self._post(self._lost)
        self._post(ev.WorkerCame())

    def _count(self, end: Failed | Died) -> None:
        """A packet in between ends a row of falls; where the cause stays the same, many do."""
        if self._packets >= (PROOF_PACKETS if end.why == self._cause else 1):
            self._restarts = 0
        self._restarts += 1
        self._packets, self._cause = 0, end.why

    async def find_checkpoint(self) -> None:
        """The newest whole one: what a fresh worker can be restored from."""
        directory = self._parts.ledger.store.checkpoint_dir()
        self.checkpoint = await asyncio.to_thread(newest_whole, directory)
        self.saved = self.checkpoint.counters.samples_learnt if self.checkpoint else 0

    def _tell(self, end: Failed | Died) -> None:
        facts = {"fix": end.fix} if isinstance(end, Failed) and end.fix else {}
        if end.detail:
            facts["traceback"] = str(self._write_traceback(end.detail))
        self._parts.report.warn("worker lost", why=end.why, restart=self._restarts, **facts)

    @property
    def _traceback(self) -> Path:
        return self._parts.node.home / TRACEBACK

    def _write_traceback(self, detail: str) -> Path | str:
        try:
            self._traceback.write_text(detail)
        except OSError as error:
            return f"not written: {error}\n{detail}"
        return self._traceback

    def _lost(self) -> ev.Event:
        round_ = self._parts.machine.state.round
        mine = round_.mine if round_ is not None else None
        return ev.WorkerLost(self._parts.report.account.start_from(self.saved, mine))


def _in_a_row(times: int, end: Failed | Died, traceback: Path) -> str:
    where = f" (traceback in {traceback})" if end.detail else ""
    fix = f"\nfix: {end.fix}" if isinstance(end, Failed) and end.fix else ""
    return f"the worker failed {times} times in a row: {end.why}{where}{fix}"
