"""The worker's life: started, described to, begun with; started anew when it dies.

Rule: nothing here knows rounds. What the worker says in answer to a question goes to who asked; all
else goes to who listens, and so does its end.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from demoloco.config import NodeConfig, RunConfig, Scalar
from demoloco.errors import ConfigError, WorkerError
from demoloco.types import PeerId
from demoloco.worker.exports import Export, Exported, NotExported
from demoloco.worker.port import (
    Begin,
    Command,
    Describe,
    Described,
    Died,
    Failed,
    InitialWritten,
    NotSaved,
    Ready,
    Saved,
    Worker,
    WorkerEvent,
    WriteInitial,
)

ANSWER_SECONDS = 600.0
"""Importing a task and building its model may take this long."""

RESTART_SECONDS = 1.0

Answer = TypeVar("Answer", Described, Ready, InitialWritten, Saved)


class Crew:
    """The process that owns all tensors, through all its lives."""

    def __init__(self, make: Callable[[], Worker], node: NodeConfig, me: PeerId) -> None:
        self._make = make
        self._node = node
        self._me = me
        self._worker = make()
        self._waiting: dict[type[WorkerEvent], asyncio.Future[WorkerEvent]] = {}
        self._exports: dict[int, asyncio.Future[WorkerEvent]] = {}  # by their tickets
        self._describe: Describe | None = None
        self._begin: Begin | None = None
        self._listener: Callable[[WorkerEvent], None] = lambda event: None
        self._end: Failed | Died | None = None
        self._begun = False

    def start(self) -> None:
        """Begin to start the process; it imports while the node does other things."""
        self._end = None
        self._begun = False
        self._worker.start(self._on_event)

    def listen(self, hear: Callable[[WorkerEvent], None]) -> None:
        """From now on tell `hear` all that answers no question, and an end that came before."""
        self._listener = hear
        if self._end is not None:
            hear(self._end)

    @property
    def pid(self) -> int | None:
        return self._worker.pid

    @property
    def max_restarts(self) -> int:
        """So often in a row a worker may be started anew."""
        return self._node.max_worker_restarts

    async def describe(self, task: str, args: dict[str, Scalar], seed: int) -> Described:
        """Load the task and build its model.

        Raises: ConfigError if the task or its settings are at fault."""
        self._describe = Describe(
            task=task,
            task_args=args,
            seed=seed,
            device=self._node.device,
            threads=self._node.threads,
            node=self._me,
        )
        return await self.ask(self._describe, Described)

    async def begin(self, config: RunConfig) -> None:
        """Make ready to train.

        Raises: ConfigError."""
        self._begin = Begin(config=config, accumulate=self._node.accumulate)
        await self.ask(self._begin, Ready)
        self._begun = True

    async def write_initial(self, path: Path) -> None:
        """Write the fresh model as an agreed state.

        Raises: ConfigError, WorkerError."""
        await self.ask(WriteInitial(path=path), InitialWritten)

    async def restart(self) -> None:
        """Bring up a new worker that is as ready as the last one was.

        Raises: ConfigError, WorkerError if it fails again."""
        assert self._describe is not None
        assert self._begin is not None
        await self.renew()
        await self.ask(self._describe, Described)
        await self.ask(self._begin, Ready)
        self._begun = True

    async def renew(self) -> None:
        """Begin to start another worker in the place of one that fell; it knows nothing yet."""
        await self._worker.stop(0.0)
        await asyncio.sleep(RESTART_SECONDS)
        self._worker = self._make()
        self.start()

    def tell(self, command: Command) -> None:
        """Queue a command; what it leads to is heard by who listens.

        Nothing for a worker that fell or has not begun: the command was meant for another."""
        if self._begun and self._end is None:
            self._worker.tell(command)

    async def ask(
        self, command: Command, answer: type[Answer], seconds: float = ANSWER_SECONDS
    ) -> Answer:
        """Queue a command and wait for its answer.

        Raises: ConfigError if the worker failed, WorkerError if it died, does not answer or could
        not save."""
        return await self._hear(answer, seconds, command)

    async def hear_next(self, answer: type[Answer], seconds: float) -> Answer:
        """Wait for the answer to a command that was told before. Raises: as `ask`."""
        return await self._hear(answer, seconds, None)

    async def _hear(self, answer: type[Answer], seconds: float, command: Command | None) -> Answer:
        if self._end is not None:
            raise _as_error(self._end)
        future = asyncio.get_running_loop().create_future()
        self._waiting[answer] = future
        if answer is Saved:
            self._waiting[NotSaved] = future
        if command is not None:
            self._worker.tell(command)
        try:
            heard = await _answered(future, seconds)
        finally:
            self._waiting = {kind: f for kind, f in self._waiting.items() if f is not future}
        assert isinstance(heard, answer)
        return heard

    async def export(self, order: Export, seconds: float = ANSWER_SECONDS) -> Exported:
        """Queue an export and wait for its answer; beside all else, and the worker's end is heard
        by who listens all the same.

        Raises: ConfigError, WorkerError."""
        if not self._begun and self._end is None:
            raise WorkerError("the worker is not ready")
        if self._end is not None:
            raise _as_error(self._end)
        self._exports[order.ticket] = future = asyncio.get_running_loop().create_future()
        self._worker.tell(order)
        try:
            heard = await _answered(future, seconds)
        finally:
            self._exports.pop(order.ticket, None)
        assert isinstance(heard, Exported)
        return heard

    async def stop(self, seconds: float) -> None:
        """End the process: in order, by force after the time-out."""
        self._listener = lambda event: None
        await self._worker.stop(seconds)

    def _on_event(self, event: WorkerEvent) -> None:
        if isinstance(event, Exported | NotExported):
            self._answer_export(event.ticket, event)  # who asked may have gone
            return
        if isinstance(event, Failed | Died):
            self._end = event
            for ticket in tuple(self._exports):
                self._answer_export(ticket, event)
            asked, self._waiting = tuple(self._waiting.values()), {}
        else:
            future = self._waiting.get(type(event))
            asked = () if future is None else (future,)
        for future in asked:
            if not future.done():
                future.set_result(event)
        if not asked:
            self._listener(event)

    def _answer_export(self, ticket: int, event: WorkerEvent) -> None:
        future = self._exports.get(ticket)
        if future is not None and not future.done():
            future.set_result(event)


async def _answered(future: asyncio.Future[WorkerEvent], seconds: float) -> WorkerEvent:
    """What the worker answers. Raises: ConfigError, WorkerError where it did not, or could not."""
    try:
        async with asyncio.timeout(seconds):
            heard = await future
    except TimeoutError:
        raise WorkerError(f"the worker did not answer for {seconds:.0f} s") from None
    if isinstance(heard, Failed | Died):
        raise _as_error(heard)
    if isinstance(heard, NotSaved | NotExported):
        raise WorkerError(heard.why)
    return heard


def _as_error(end: Failed | Died) -> ConfigError | WorkerError:
    if isinstance(end, Died):
        return WorkerError(end.why)
    return ConfigError(f"{end.why}\nfix: {end.fix}" if end.fix else end.why)
