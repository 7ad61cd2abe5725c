"""Ends a process at every named step of a scene, each on its own copy of a home.

Run as a program, so that the forks start from a process with one thread: `crash SCENE BASE OUT`.
Copy n of BASE in OUT is what is left when the process ends at step n; the names of the steps go to
standard output.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

from demoloco.store.disk import DiskStore, open_disk_store
from tests.store.rounds import CHUNKS, content, head_of, play_round, snapshot_for

CRASHED = 9


def fetch(store: DiskStore) -> None:
    """A snapshot from the first part to the state."""
    snapshot = snapshot_for(50)
    store.put_part(snapshot, snapshot.blobs[0], content(50))
    store.finish_snapshot(snapshot, CHUNKS)
    store.move_head(head_of(50))


SCENES: dict[str, Callable[[DiskStore], None]] = {
    "start": lambda store: None,
    "round": lambda store: play_round(store, 4),
    "fetch": fetch,
    "note": lambda store: store.note("run", b"new"),
}


def steps_of(scene: str, home: Path) -> list[str]:
    """Play a scene to its end; the steps that it takes."""
    steps: list[str] = []
    store = open_disk_store(home, at=steps.append)
    SCENES[scene](store)
    store.close()
    return steps


def crash_at(number: int, scene: str, home: Path) -> None:
    """Play a scene in a child that ends, without any clean-up, at this step."""
    child = os.fork()
    if child == 0:
        left = number

        def at(step: str) -> None:
            nonlocal left
            if left == 0:
                os._exit(CRASHED)
            left -= 1

        SCENES[scene](open_disk_store(home, at=at))
        os._exit(0)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == CRASHED


def main(scene: str, base: Path, out: Path) -> None:
    """Fill OUT."""
    out.mkdir()
    steps = steps_of(scene, shutil.copytree(base, out / "whole"))
    for number, step in enumerate(steps):
        crash_at(number, scene, shutil.copytree(base, out / str(number)))
        print(step)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3]))
