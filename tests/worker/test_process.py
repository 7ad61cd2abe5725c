"""The worker's process: what ends it, what does not, and what the node hears."""

from __future__ import annotations

import asyncio
import dataclasses
import os
import select
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from demoloco.types import Round
from demoloco.worker.port import (
    Begin,
    Described,
    Died,
    Ready,
    TakeAgreed,
    WorkerEvent,
)
from demoloco.worker.process import ProcessWorker, _in_words
from tests.worker.desk import CONFIG, describe

DEADLINE_SECONDS = 60.0
ROOT = Path(__file__).parents[2]


@pytest.fixture
async def worker() -> AsyncIterator[ProcessWorker]:
    made = ProcessWorker()
    yield made
    await made.stop(5)


def listen(worker: ProcessWorker) -> asyncio.Queue[WorkerEvent]:
    heard: asyncio.Queue[WorkerEvent] = asyncio.Queue()
    worker.start(heard.put_nowait)
    return heard


async def hear(heard: asyncio.Queue[WorkerEvent]) -> WorkerEvent:
    return await asyncio.wait_for(heard.get(), DEADLINE_SECONDS)


async def test_a_killed_worker_has_died_and_the_likely_reason_is_named(
    worker: ProcessWorker,
) -> None:
    heard = listen(worker)
    assert worker.pid is not None
    os.kill(worker.pid, signal.SIGKILL)
    died = await hear(heard)
    assert isinstance(died, Died)
    assert "killed (SIGKILL)" in died.why
    assert "memory" in died.why
    worker.tell(describe())
    await worker.stop(5)
    assert heard.empty()


async def test_a_death_is_heard_though_a_helper_of_the_task_lives_on(
    worker: ProcessWorker,
) -> None:
    heard = listen(worker)
    worker.tell(describe(dataclasses.replace(CONFIG, task="tests.worker.tasks:Forking")))
    described = await hear(heard)
    assert isinstance(described, Described)
    assert worker.pid is not None
    try:
        os.kill(worker.pid, signal.SIGKILL)
        assert isinstance(await hear(heard), Died)
    finally:
        os.kill(int(described.unit), signal.SIGKILL)


async def test_the_child_is_clean_leaves_signals_to_the_node_and_tells_what_ends_it(
    worker: ProcessWorker,
) -> None:
    heard = listen(worker)
    worker.tell(describe(dataclasses.replace(CONFIG, task="tests.worker.tasks:Spy")))
    described = await hear(heard)
    assert isinstance(described, Described)
    assert described.unit == "[] PASSIVE 1"  # no hivemind, grpc or uvloop in the child
    assert worker.pid is not None
    os.kill(worker.pid, signal.SIGINT)
    os.kill(worker.pid, signal.SIGTERM)
    worker.tell(Begin(config=CONFIG, accumulate=1))
    assert isinstance(await hear(heard), Ready)
    worker.tell(TakeAgreed(agreed=Path("absent"), round=Round(0)))
    died = await hear(heard)
    assert isinstance(died, Died)
    assert "the worker stopped on FileNotFoundError" in died.why
    await worker.stop(5)
    assert heard.empty()  # it died once


async def test_a_stopped_child_is_ended_by_force(worker: ProcessWorker) -> None:
    heard = listen(worker)
    assert worker.pid is not None
    os.kill(worker.pid, signal.SIGSTOP)
    await worker.stop(0.1)
    assert heard.empty()
    with pytest.raises(ProcessLookupError):
        os.kill(worker.pid, 0)


NODE = """
import asyncio
from demoloco.worker.process import ProcessWorker

async def main():
    worker = ProcessWorker()
    worker.start(print)
    print(worker.pid, flush=True)
    await asyncio.sleep(600)

asyncio.run(main())
"""


def test_no_worker_outlives_its_node() -> None:
    node = subprocess.Popen([sys.executable, "-c", NODE], stdout=subprocess.PIPE, env=environment())
    assert node.stdout is not None
    with node.stdout:
        child = os.pidfd_open(int(node.stdout.readline()))
        try:
            node.kill()
            node.wait()
            ended, _, _ = select.select([child], [], [], DEADLINE_SECONDS)
            assert ended == [child]
        finally:
            os.close(child)


def test_the_nodes_side_imports_no_torch() -> None:
    modules = ["process", "port", "checkpoint", "schedule", "child"]
    imports = "; ".join(f"import demoloco.worker.{module}" for module in modules)
    check = f"{imports}; import sys; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", check], env=environment()).returncode == 0


def environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (3, "exit code 3"),
        (-signal.SIGSEGV, "crashed in native code (SIGSEGV)"),
        (-signal.SIGHUP, "ended by SIGHUP"),
        (-200, "signal 200"),
    ],
)
def test_an_exit_is_told_in_words(code: int, words: str) -> None:
    assert words in _in_words(code)
