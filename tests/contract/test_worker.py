"""What every worker answers: the same claims on the one in memory and on the child process."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import AsyncIterator
from pathlib import Path
from typing import TypeVar

import pytest

from demoloco.codec.layout import layout_from_bytes
from demoloco.codec.packet import PacketSpec, decode
from demoloco.types import Round
from demoloco.worker.memory import MemoryWorker
from demoloco.worker.port import (
    Begin,
    Contribute,
    Contributed,
    Correct,
    Corrected,
    Cut,
    Described,
    Died,
    Evaluated,
    Failed,
    InitialWritten,
    Progress,
    Ready,
    Restore,
    SaveCheckpoint,
    Saved,
    TakeAgreed,
    Train,
    Trained,
    Worker,
    WorkerEvent,
    WriteInitial,
)
from demoloco.worker.process import ProcessWorker
from tests.worker.desk import CONFIG, advance, describe

Event = TypeVar("Event")
DEADLINE_SECONDS = 60.0


class Ear:
    """Hears a worker's events in order."""

    def __init__(self) -> None:
        self.heard: asyncio.Queue[WorkerEvent] = asyncio.Queue()

    def emit(self, event: WorkerEvent) -> None:
        asyncio.get_running_loop()  # raises outside the loop
        self.heard.put_nowait(event)

    async def next(self, kind: type[Event]) -> Event:
        """The next event that is not progress; it must be of this kind."""
        while isinstance(
            event := await asyncio.wait_for(self.heard.get(), DEADLINE_SECONDS), Progress
        ):
            pass
        assert isinstance(event, kind), event
        return event


@pytest.fixture(params=["memory", "process"])
async def worker(request: pytest.FixtureRequest) -> AsyncIterator[Worker]:
    made: Worker = MemoryWorker() if request.param == "memory" else ProcessWorker()
    yield made
    await made.stop(20)


async def begun(worker: Worker) -> tuple[Ear, PacketSpec]:
    ear = Ear()
    worker.start(ear.emit)
    worker.tell(describe())
    layout = layout_from_bytes((await ear.next(Described)).layout)
    worker.tell(Begin(config=CONFIG, accumulate=1))
    await ear.next(Ready)
    return ear, PacketSpec.of(layout, bits=CONFIG.bits, ladder=CONFIG.ladder)


async def test_a_round_from_genesis_to_checkpoint(worker: Worker, tmp_path: Path) -> None:
    ear, spec = await begun(worker)
    before, after, directory = tmp_path / "0", tmp_path / "1", tmp_path / "checkpoint"
    worker.tell(WriteInitial(path=before))
    assert (await ear.next(InitialWritten)).path == before
    worker.tell(TakeAgreed(agreed=before, round=Round(0)))
    assert (await ear.next(Corrected)).round == 0
    worker.tell(Train(round=Round(1), steps=5))
    trained = await ear.next(Trained)
    assert (trained.round, trained.steps, trained.samples) == (1, 5, 40)
    worker.tell(Contribute(ticket=7, agreed=before, k=16))
    contributed = await ear.next(Contributed)
    assert (contributed.ticket, decode(contributed.body, spec).k) == (7, 16)
    advance(before, after, [contributed.body], spec)
    told = (contributed.body,)
    worker.tell(Correct(before=before, after=after, round=Round(1), told=told, evaluate=True))
    assert (await ear.next(Corrected)).round == 1
    assert 0 < (await ear.next(Evaluated)).loss < 10
    worker.tell(SaveCheckpoint(directory=directory, agreed=after, head=b"h" * 32))
    assert (await ear.next(Saved)).head == b"h" * 32
    worker.tell(Restore(checkpoint=directory, agreed=after, round=Round(1), told_since=()))
    assert (await ear.next(Corrected)).round == 1


async def test_training_hears_a_correction_and_a_cut(worker: Worker, tmp_path: Path) -> None:
    ear, _ = await begun(worker)
    agreed = tmp_path / "0"
    worker.tell(WriteInitial(path=agreed))
    await ear.next(InitialWritten)
    worker.tell(TakeAgreed(agreed=agreed, round=Round(0)))
    await ear.next(Corrected)
    worker.tell(Train(round=Round(1), steps=1_000_000))
    worker.tell(Correct(before=agreed, after=agreed, round=Round(1)))
    assert (await ear.next(Corrected)).round == 1
    worker.tell(Cut())
    assert (await ear.next(Trained)).steps < 1_000_000


async def test_a_users_mistake_is_told_with_its_fix_and_ends_the_worker(worker: Worker) -> None:
    ear = Ear()
    worker.start(ear.emit)
    order = describe(dataclasses.replace(CONFIG, task_args={"falt": "x"}))
    worker.tell(order)
    failed = await ear.next(Failed)
    assert "did you mean 'fault'" in failed.why
    assert failed.fix == "it takes fault=''"
    worker.tell(order)  # nobody answers, and nothing breaks
    await worker.stop(20)
    assert ear.heard.empty()


async def test_a_stop_in_order_is_no_death_and_may_be_repeated(worker: Worker) -> None:
    ear, _ = await begun(worker)
    await worker.stop(20)
    await worker.stop(20)
    worker.tell(Train(round=Round(1), steps=1))
    assert ear.heard.empty()


async def test_a_worker_in_memory_may_be_killed() -> None:
    worker = MemoryWorker()
    ear, _ = await begun(worker)
    worker.tell(Train(round=Round(1), steps=1_000_000))
    await ear.heard.get()  # it trains
    worker.kill("out of memory, says the test")
    while isinstance(event := await ear.heard.get(), Progress):
        pass
    assert event == Died(why="out of memory, says the test")
