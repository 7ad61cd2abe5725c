"""The points between which a crash can fall, told as they are reached: every step that changes a
home on disk, every effect of the driver, every command to the worker and every answer of it.

Rule: everything is wrapped from outside, nothing in the node knows. Reached means: what the point
is named after has not happened yet (`before`), or has just happened (`after`). Steps on disk have
no `after`: nothing that a crash could show happens between one and the next.
"""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from demoloco.node.driver import Driver
from demoloco.rounds import effects as ef
from demoloco.worker import port
from demoloco.worker.process import ProcessWorker

Reached = Callable[[str], None]
Set = Callable[[Any, str, Any], None]

INWARD = (ef.Note, ef.WakeMe)
"""Effects that leave no trace on disk, in the worker or at a peer."""

IDLE_WORDS = (port.Progress, port.Evaluated, port.Skipped)
"""Of the worker: figures for the operator."""

_NUMBERED = re.compile(r"\d+(-[0-9a-f]+)?|[0-9a-f]{2,}")


class Homes:
    """The homes that are watched. Steps on disk happen one at a time, so that nobody else's falls
    between the point that is reached and what is done about it."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self._watched: dict[str, Watch] = {}

    def add(self, watch: Watch) -> None:
        self._watched[str(watch.home)] = watch

    def remove(self, watch: Watch) -> None:
        self._watched.pop(str(watch.home), None)

    def of(self, path: str) -> Watch | None:
        """Whose this path is."""
        for home, watch in tuple(self._watched.items()):
            if path == home or path.startswith(f"{home}/"):
                return watch
        return None


class Watch:
    """One home; `synced` hears what became durable."""

    def __init__(self, home: Path, reached: Reached) -> None:
        self.home = home
        self.reached = reached
        self.synced: Callable[[int], None] = lambda descriptor: None

    def place(self, path: str) -> str:
        """A path in the home, without numbers and digests."""
        if path.endswith(" (deleted)"):
            path = path.removesuffix(" (deleted)")
        parts = Path(path).relative_to(self.home).parts
        return "/".join(_nameless(part) for part in parts) or "home"


def _nameless(part: str) -> str:
    stem, dot, suffix = part.partition(".")
    return f"*{dot}{suffix}" if _NUMBERED.fullmatch(stem) else part


# -- the disk --------------------------------------------------------------------------------------
def watch_disk(homes: Homes, set_attribute: Set = setattr) -> None:
    """Tell of each call that changes one of the homes."""
    for name in ("fsync", "write", "pwrite", "posix_fallocate"):
        _wrap(homes, set_attribute, name, _of_descriptor)
    for name in ("unlink", "rmdir", "mkdir"):
        _wrap(homes, set_attribute, name, _of_path)
    for name in ("rename", "replace", "link"):
        _wrap(homes, set_attribute, name, _of_target)


def _wrap(homes: Homes, set_attribute: Set, name: str, path_of: Callable[..., str]) -> None:
    original = getattr(os, name)

    def step(*args: Any, **kwargs: Any) -> Any:
        path = path_of(*args, **kwargs)
        watch = homes.of(path)
        if watch is None:
            return original(*args, **kwargs)
        with homes.lock:
            watch.reached(f"{name} {watch.place(path)}")
            done = original(*args, **kwargs)
            if name == "fsync":
                watch.synced(args[0])
            return done

    set_attribute(os, name, step)


def _of_descriptor(descriptor: int, *args: Any) -> str:
    return os.readlink(f"/proc/self/fd/{descriptor}")


def _of_path(path: Any, *args: Any, dir_fd: int | None = None, **kwargs: Any) -> str:
    text = os.fsdecode(path)
    return text if dir_fd is None else f"{_of_descriptor(dir_fd)}/{text}"


def _of_target(source: Any, target: Any, **kwargs: Any) -> str:
    return os.fsdecode(target)


# -- the driver and the worker ---------------------------------------------------------------------
def watch_driver(homes: Homes, set_attribute: Set = setattr) -> None:
    """Tell of each effect of a driver whose home is watched."""
    original = Driver._carry_out

    async def carried_out(driver: Driver, effect: ef.Effect) -> None:
        watch = homes.of(str(driver._parts.node.home))
        if watch is None or isinstance(effect, INWARD):
            return await original(driver, effect)
        name = name_of(effect)
        watch.reached(f"{name} before")
        await original(driver, effect)
        watch.reached(f"{name} after")

    set_attribute(Driver, "_carry_out", carried_out)


def name_of(effect: ef.Effect) -> str:
    """An effect's; that of a fork is another one."""
    undoes = isinstance(effect, ef.Apply) and bool(effect.undo)
    return type(effect).__name__ + (" with undo" if undoes else "")


def told(reached: Reached, tell: Callable[[port.Command], None]) -> Callable[[port.Command], None]:
    """Tell of each command."""

    def telling(command: port.Command) -> None:
        reached(f"tell {type(command).__name__} before")
        tell(command)
        reached(f"tell {type(command).__name__} after")

    return telling


def heard(
    reached: Reached, hear: Callable[[port.WorkerEvent], None]
) -> Callable[[port.WorkerEvent], None]:
    """Tell of each answer."""

    def hearing(event: port.WorkerEvent) -> None:
        if isinstance(event, IDLE_WORDS):
            return hear(event)
        reached(f"hear {type(event).__name__} before")
        hear(event)
        reached(f"hear {type(event).__name__} after")

    return hearing


def watch_process_worker(reached: Reached, set_attribute: Set = setattr) -> None:
    """Tell of each command to a worker that is a process, and of each answer of it."""
    start, tell = ProcessWorker.start, ProcessWorker.tell

    def starting(worker: ProcessWorker, emit: Callable[[port.WorkerEvent], None]) -> None:
        start(worker, heard(reached, emit))

    def telling(worker: ProcessWorker, command: port.Command) -> None:
        told(reached, lambda one: tell(worker, one))(command)

    set_attribute(ProcessWorker, "start", starting)
    set_attribute(ProcessWorker, "tell", telling)
