"""The worker as a process of its own: the node's side.

The child is a fresh interpreter that runs `demoloco.worker.child`; it inherits no thread, no loop
and no import of the node, and the node never imports torch. Call `start` in the thread that lives
as long as the node: Linux ends the child with the thread that made it.
"""

from __future__ import annotations

import asyncio
import os
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from typing import Any

from demoloco.worker.port import Command, Died, Failed, Stop, WorkerEvent

Emit = Callable[[WorkerEvent], None]
_LOOK_SECONDS = 1.0
_REAP_SECONDS = 5.0


class ProcessWorker:
    """Implements worker.port.Worker. Nothing follows a Failed or a Died."""

    def __init__(self) -> None:
        self._outbox: queue.SimpleQueue[Command | None] = queue.SimpleQueue()
        self._process: subprocess.Popen[bytes] | None = None
        self._threads: tuple[threading.Thread, ...] = ()
        self._stopping = False

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process else None

    def start(self, emit: Emit) -> None:
        ours, theirs = Pipe()
        with theirs:
            self._process = subprocess.Popen(
                [
                    sys.executable,
                    "-P",
                    "-m",
                    "demoloco.worker.child",
                    str(theirs.fileno()),
                    str(os.getpid()),
                ],
                stdin=subprocess.DEVNULL,
                pass_fds=(theirs.fileno(),),
                env=_environment(),
            )
        loop = asyncio.get_running_loop()
        self._threads = (
            threading.Thread(
                target=self._receive, args=(ours, loop, emit), name="worker events", daemon=True
            ),
            threading.Thread(target=self._send, args=(ours,), name="worker commands", daemon=True),
        )
        for thread in self._threads:
            thread.start()

    def tell(self, command: Command) -> None:
        self._outbox.put(command)

    async def stop(self, timeout_seconds: float) -> None:
        process = self._process
        if process is None:
            return
        self._stopping = True
        self._outbox.put(Stop())
        try:
            await asyncio.to_thread(process.wait, timeout_seconds)
        except subprocess.TimeoutExpired:
            process.kill()
            await asyncio.to_thread(process.wait)
        self._outbox.put(None)
        for thread in self._threads:
            await asyncio.to_thread(thread.join)

    def _send(self, connection: Connection[Any, Any]) -> None:
        """Commands wait here for a full pipe, so that `tell` never does."""
        while (command := self._outbox.get()) is not None:
            try:
                connection.send(command)
            except OSError:
                return  # the child is gone; the other thread tells

    def _receive(
        self, connection: Connection[Any, Any], loop: asyncio.AbstractEventLoop, emit: Emit
    ) -> None:
        last: WorkerEvent | None = None
        try:
            while self._has_more(connection):
                last = connection.recv()
                loop.call_soon_threadsafe(emit, last)
        except (EOFError, OSError):
            pass
        except RuntimeError:  # the node's loop is closed
            self._stopping = True
        connection.close()
        self._outbox.put(None)
        code = self._reap()
        if not self._stopping and not isinstance(last, Failed | Died) and not loop.is_closed():
            loop.call_soon_threadsafe(emit, Died(why=_in_words(code)))

    def _has_more(self, connection: Connection[Any, Any]) -> bool:
        """Wait for an event or an end.

        The process's end, too: a data loader that it forked may hold the connection open.
        """
        assert self._process is not None
        while not connection.poll(_LOOK_SECONDS):
            if self._process.poll() is not None:
                return connection.poll()
        return True

    def _reap(self) -> int:
        assert self._process is not None
        try:
            return self._process.wait(_REAP_SECONDS)
        except subprocess.TimeoutExpired:  # it closed the connection and lives on: it is of no use
            self._process.kill()
            return self._process.wait()


def _environment() -> dict[str, str]:
    """Ours, with our import path and, for when the child's OpenMP loads, no spinning threads."""
    environment = {"OMP_WAIT_POLICY": "PASSIVE", **os.environ}
    environment["PYTHONPATH"] = os.pathsep.join(entry for entry in sys.path if entry)
    return environment


def _in_words(code: int) -> str:
    if code >= 0:
        return f"the worker ended with exit code {code}; its last words are in the log above"
    try:
        name = signal.Signals(-code).name
    except ValueError:
        name = f"signal {-code}"
    match -code:
        case signal.SIGKILL:
            return (
                f"the worker was killed ({name}), most likely by the system because memory ran out;"
                " dmesg tells, and a smaller batch or --accumulate 2 needs less"
            )
        case signal.SIGSEGV | signal.SIGBUS | signal.SIGILL | signal.SIGFPE | signal.SIGABRT:
            return f"the worker crashed in native code ({name}); the place is in the log above"
        case _:
            return f"the worker was ended by {name}"
