"""The disk under the home: room, speed, and what its file system can do.

Rule: it writes into a directory of its own beside the home's files, and removes it.
"""

from __future__ import annotations

import mmap
import os
import secrets
import shutil
import tempfile
import time
from pathlib import Path
from statistics import median

from demoloco.doctor.words import Facts

BLOCK_BYTES = 1 << 20
MAX_BLOCKS = 32
WRITE_SECONDS = 4.0
SYNCS = 5


def probe_disk(home: Path) -> Facts:
    """The home itself, or the nearest directory above that is there."""
    path = next(one for one in (home, *home.parents) if one.is_dir())
    facts: dict[str, object] = {"path": str(path), "filesystem": _filesystem(path), "error": ""}
    try:
        folder = Path(tempfile.mkdtemp(prefix=".doctor-", dir=path))
        try:
            facts |= _measure(folder)
        finally:
            shutil.rmtree(folder, ignore_errors=True)
        facts["free_bytes"] = shutil.disk_usage(path).free
    except OSError as error:
        facts["error"] = error.strerror or str(error)
    return facts


def _measure(folder: Path) -> Facts:
    block = secrets.token_bytes(BLOCK_BYTES)
    began, written = time.monotonic(), 0
    with (folder / "large").open("wb", buffering=0) as file:
        while written < MAX_BLOCKS and time.monotonic() < began + WRITE_SECONDS:
            file.write(block)
            written += 1
        os.fsync(file.fileno())
    seconds = max(1e-6, time.monotonic() - began)
    return {
        "write_bytes_a_second": written * BLOCK_BYTES / seconds,
        "sync_seconds": median(_sync_seconds(folder / f"small{n}") for n in range(SYNCS)),
        "hard_links": _links(folder / "large", folder / "linked"),
        "mmap": _maps(folder / "large"),
    }


def _sync_seconds(path: Path) -> float:
    began = time.monotonic()
    with path.open("wb", buffering=0) as file:
        file.write(bytes(4096))
        os.fsync(file.fileno())
    return time.monotonic() - began


def _links(path: Path, other: Path) -> bool:
    try:
        os.link(path, other)
    except OSError:
        return False
    return True


def _maps(path: Path) -> bool:
    try:
        with path.open("r+b") as file, mmap.mmap(file.fileno(), 0) as mapped:
            mapped[0] = 1
            mapped.flush()
    except OSError:
        return False
    return True


def _filesystem(path: Path) -> str:
    """The type of the file system, where the kernel tells it."""
    try:
        mounts = [line.split() for line in Path("/proc/self/mounts").read_text().splitlines()]
    except OSError:
        return "this disk"
    inside = [mount for mount in mounts if path.is_relative_to(mount[1].replace("\\040", " "))]
    return max(inside, key=lambda mount: len(mount[1]))[2] if inside else "this disk"
