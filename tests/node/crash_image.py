"""What a crash leaves of a home.

Rule: a killed process leaves what it had written, synced or not. A power cut leaves what was made
durable and nothing else: names as they were when their folder was last synced, a file's bytes as
they were when it was last synced, half of a file that never was.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

Tree = dict[str, bytes | None]
"""Path in the home → content; None for a folder."""


def seen(home: Path) -> Tree:
    """What is there."""
    tree: Tree = {}
    for folder, folders, files in os.walk(home):
        here = Path(folder)
        tree |= {str((here / name).relative_to(home)): None for name in folders}
        for name in files:
            tree[str((here / name).relative_to(home))] = (here / name).read_bytes()
    return tree


def lay_down(tree: Tree, home: Path) -> None:
    """Make a home of it."""
    home.mkdir()
    for name in sorted(tree):
        content = tree[name]
        if content is None:
            (home / name).mkdir()
        else:
            (home / name).write_bytes(content)


class Durable:
    """What a power cut would leave. Whoever writes in the home reports what it syncs."""

    def __init__(self, home: Path) -> None:
        self._home = home
        self._held: dict[int, int] = {}  # open, so that no inode's number is given out twice
        self._content: dict[int, bytes] = {}
        self._names: dict[int, dict[str, tuple[int, bool]]] = {}
        for folder, _, files in os.walk(home):
            for path in (Path(folder), *(Path(folder, name) for name in files)):
                descriptor = os.open(path, os.O_RDONLY)
                self.synced(descriptor)
                os.close(descriptor)

    def synced(self, descriptor: int) -> None:
        """This file or folder is durable as it is now."""
        state = os.fstat(descriptor)
        if state.st_ino not in self._held:
            self._held[state.st_ino] = os.dup(descriptor)
        if stat.S_ISDIR(state.st_mode):
            self._names[state.st_ino] = _listed(descriptor)
        else:
            with open(f"/proc/self/fd/{descriptor}", "rb") as file:
                self._content[state.st_ino] = file.read()

    def left(self) -> Tree:
        """What a power cut would leave now."""
        tree: Tree = {}
        self._gather(Path(), self._home.stat().st_ino, tree)
        return tree

    def _gather(self, folder: Path, inode: int, tree: Tree) -> None:
        for name, (number, is_folder) in self._names.get(inode, {}).items():
            path = folder / name
            if is_folder:
                tree[str(path)] = None
                self._gather(path, number, tree)
            else:
                known = self._content.get(number)
                tree[str(path)] = _half(self._home / path) if known is None else known

    def close(self) -> None:
        for descriptor in self._held.values():
            os.close(descriptor)
        self._held.clear()


def _listed(folder: int) -> dict[str, tuple[int, bool]]:
    """Name → inode, and whether it is a folder."""
    with os.scandir(folder) as entries:
        return {one.name: (one.inode(), one.is_dir(follow_symlinks=False)) for one in entries}


def _half(path: Path) -> bytes:
    try:
        whole = path.read_bytes()
    except FileNotFoundError:
        return b""
    return whole[: len(whole) // 2]
