"""The worker's life through the crew: questions, answers, ends."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from demoloco.config import NodeConfig, RunConfig
from demoloco.errors import ConfigError, WorkerError
from demoloco.node import crew as module
from demoloco.node.crew import Crew
from demoloco.types import PeerId, Round
from demoloco.worker.exports import Export, Exported, NotExported, Which
from demoloco.worker.port import (
    Begin,
    Command,
    Cut,
    Describe,
    Described,
    Died,
    Failed,
    InitialWritten,
    NotSaved,
    Ready,
    SaveCheckpoint,
    Saved,
    Trained,
    WorkerEvent,
    WriteInitial,
)

DESCRIBED = Described(layout=b"[]", defaults={}, device="cpu", unit="lines")
SAVED = Saved(head=b"h", seconds=0.1, size=1, learnt=0)
SAVE = SaveCheckpoint(directory=Path("c"), agreed=Path("a"), head=b"h")


class FakeWorker:
    """Answers as it was told to; says anything else on demand."""

    pid = 7

    def __init__(self, answers: dict[type[Command], WorkerEvent]) -> None:
        self.answers = answers
        self.told: list[Command] = []
        self.stopped = False
        self.on_begin: Callable[[], None] = lambda: None

    def start(self, emit: Callable[[WorkerEvent], None]) -> None:
        self.emit = emit

    def tell(self, command: Command) -> None:
        self.told.append(command)
        if isinstance(command, Begin):
            self.on_begin()
        answer = self.answers.get(type(command))
        if answer is not None:
            asyncio.get_running_loop().call_soon(self.emit, answer)

    async def stop(self, timeout_seconds: float) -> None:
        self.stopped = True


class Desk:
    """A crew whose workers are fakes."""

    def __init__(self) -> None:
        self.answers: dict[type[Command], WorkerEvent] = {Describe: DESCRIBED, Begin: Ready()}
        self.workers: list[FakeWorker] = []
        self.heard: list[WorkerEvent] = []
        self.asked_to_begin = asyncio.Event()
        self.crew = Crew(self._make, NodeConfig(home=Path("home")), PeerId("me"))

    def _make(self) -> FakeWorker:
        self.workers.append(FakeWorker(self.answers))
        self.worker.on_begin = self.asked_to_begin.set
        return self.worker

    async def begin(self) -> None:
        self.crew.start()
        await self.crew.describe("lm", {}, 0)
        await self.crew.begin(RunConfig())
        self.crew.listen(self.heard.append)

    @property
    def worker(self) -> FakeWorker:
        return self.workers[-1]


@pytest.fixture(autouse=True)
def _no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "RESTART_SECONDS", 0.0)


async def test_an_answer_goes_to_who_asked_all_else_to_who_listens() -> None:
    desk = Desk()
    desk.crew.start()
    assert await desk.crew.describe("lm", {}, 0) == DESCRIBED
    await desk.crew.begin(RunConfig())
    desk.crew.listen(desk.heard.append)
    trained = Trained(round=Round(1), steps=1, samples=1, loss=0.0, learnt=1)
    desk.worker.emit(trained)
    desk.worker.emit(SAVED)
    assert desk.heard == [trained, SAVED]
    assert desk.crew.pid == 7


async def test_a_failed_task_is_the_users_mistake_with_its_fix() -> None:
    desk = Desk()
    desk.answers[Describe] = Failed(why="no such task", fix="name another")
    desk.crew.start()
    with pytest.raises(ConfigError, match="no such task\nfix: name another"):
        await desk.crew.describe("x", {}, 0)
    with pytest.raises(ConfigError, match="no such task"):
        await desk.crew.begin(RunConfig())


async def test_a_worker_that_dies_while_it_is_asked_is_this_machines_fault() -> None:
    desk = Desk()
    desk.answers[WriteInitial] = Died(why="killed")
    await desk.begin()
    with pytest.raises(WorkerError, match="killed"):
        await desk.crew.write_initial(Path("x"))
    assert desk.heard == []


async def test_a_worker_that_says_nothing_is_not_waited_for_for_ever() -> None:
    desk = Desk()
    await desk.begin()
    with pytest.raises(WorkerError, match="did not answer"):
        await desk.crew.ask(WriteInitial(path=Path("x")), InitialWritten, seconds=0.0)


async def test_a_checkpoint_that_was_not_saved_says_why() -> None:
    desk = Desk()
    desk.answers[SaveCheckpoint] = NotSaved(head=b"h", why="no room")
    await desk.begin()
    with pytest.raises(WorkerError, match="no room"):
        await desk.crew.ask(SAVE, Saved)


async def test_the_next_answer_can_be_waited_for_without_asking() -> None:
    desk = Desk()
    await desk.begin()
    asyncio.get_running_loop().call_soon(desk.worker.emit, SAVED)
    assert await desk.crew.hear_next(Saved, 5.0) == SAVED
    assert desk.heard == []


async def test_an_end_that_nobody_heard_is_heard_by_who_comes_to_listen() -> None:
    desk = Desk()
    desk.crew.start()
    await desk.crew.describe("lm", {}, 0)
    desk.worker.emit(Died(why="killed"))
    desk.crew.listen(desk.heard.append)
    assert desk.heard == [Died(why="killed")]


async def test_a_restarted_worker_is_as_ready_as_the_last_one() -> None:
    desk = Desk()
    await desk.begin()
    first = desk.worker
    first.emit(Died(why="killed"))
    await desk.crew.restart()
    assert first.stopped
    assert desk.worker is not first
    assert desk.worker.told == first.told
    desk.crew.tell(Cut())
    assert desk.worker.told[-1] == Cut()


async def test_commands_for_a_fallen_worker_do_not_reach_the_next_one_unprepared() -> None:
    desk = Desk()
    await desk.begin()
    desk.worker.emit(Died(why="killed"))
    desk.crew.tell(Cut())
    assert Cut() not in desk.worker.told
    del desk.answers[Begin]
    desk.asked_to_begin.clear()
    restart = asyncio.create_task(desk.crew.restart())
    await desk.asked_to_begin.wait()
    desk.crew.tell(Cut())
    assert [type(command) for command in desk.worker.told] == [Describe, Begin]
    desk.worker.emit(Ready())
    await restart


async def test_a_stopped_worker_is_not_heard_any_longer() -> None:
    desk = Desk()
    await desk.begin()
    await desk.crew.stop(1.0)
    desk.worker.emit(Died(why="stopped"))
    assert desk.worker.stopped
    assert desk.heard == []


# -- exports ---------------------------------------------------------------------------------------
def export_of(ticket: int) -> Export:
    return Export(ticket=ticket, which=Which.OWN, agreed=Path("a"))


async def test_an_export_is_answered_by_its_ticket() -> None:
    """The answer to one that was given up is for nobody."""
    desk = Desk()
    await desk.begin()
    with pytest.raises(WorkerError, match="did not answer"):
        await desk.crew.export(export_of(1), seconds=0.0)
    asking = asyncio.create_task(desk.crew.export(export_of(2)))
    await asyncio.sleep(0)
    desk.worker.emit(NotExported(ticket=1, why="the folder is gone"))
    desk.worker.emit(Exported(ticket=2, size=5))
    assert (await asking).size == 5
    assert desk.heard == []


async def test_an_export_that_failed_says_why() -> None:
    desk = Desk()
    desk.answers[Export] = NotExported(ticket=3, why="no room")
    await desk.begin()
    with pytest.raises(WorkerError, match="no room"):
        await desk.crew.export(export_of(3))


async def test_a_worker_that_dies_amid_an_export_is_heard_of_by_both() -> None:
    """Else nobody would start it anew."""
    desk = Desk()
    desk.answers[Export] = Died(why="killed")
    await desk.begin()
    with pytest.raises(WorkerError, match="killed"):
        await desk.crew.export(export_of(1))
    assert desk.heard == [Died(why="killed")]
    with pytest.raises(WorkerError, match="killed"):
        await desk.crew.export(export_of(2))


async def test_a_worker_that_has_not_begun_is_asked_for_no_export() -> None:
    desk = Desk()
    desk.crew.start()
    with pytest.raises(WorkerError, match="not ready"):
        await desk.crew.export(export_of(1))
    assert desk.worker.told == []
