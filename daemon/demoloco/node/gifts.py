"""Gifts: what this node gives joiners of its newest checkpoint, and what it was given itself.

Rule: bytes that were promised stay as they are. A gift keeps a name of its own, so that the
checkpoint that it came from may go; the newest one and the ones told last are kept.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
from collections import deque
from contextlib import suppress
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path

from demoloco.errors import SwarmError
from demoloco.node.disk import Disk
from demoloco.store.files import FileRange, sync, sync_folder, write_at
from demoloco.store.port import Store
from demoloco.swarm.calls import MAX_LENDERS
from demoloco.swarm.port import Swarm
from demoloco.types import BlobRef, Digest, Gift, Loan, PeerId, Round

PARALLEL_PARTS = 2
"""Of a state or a gift, fetched side by side; each may come from several holders at once."""
KEPT_TOLD = 2
"""Gifts that are kept for joiners that were told of them, beside the newest."""


@dataclass(frozen=True, slots=True)
class _Kept:
    gift: Gift
    path: Path

    def open(self, blob: Digest) -> FileRange | None:
        """The blob's place in the file."""
        offsets = accumulate((part.size for part in self.gift.blobs), initial=0)
        for part, offset in zip(self.gift.blobs, offsets, strict=False):
            if part.digest == blob:
                with suppress(FileNotFoundError):
                    return FileRange(self.path).part(offset, part.size)
        return None


class Shelf:
    """What this node gives; its files are hard links to those of checkpoints."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._newest: _Kept | None = None
        self._told: deque[_Kept] = deque(maxlen=KEPT_TOLD)
        self._number = 0
        shutil.rmtree(folder, ignore_errors=True)

    def put(self, gift: Gift, file: Path) -> None:
        """From now on this is the newest. Raises: OSError, if the disk has no links."""
        if len(gift.lenders) > MAX_LENDERS:
            return  # too much of it is others'; there are other members to ask
        self._folder.mkdir(exist_ok=True)
        self._number += 1
        path = self._folder / str(self._number)
        os.link(file, path)
        self._newest = _Kept(gift, path)
        kept = {self._newest.path, *(told.path for told in tuple(self._told))}
        for other in set(self._folder.iterdir()) - kept:
            other.unlink()

    def tell(self) -> Gift | None:
        """The newest, which stays for whoever asked."""
        if self._newest is None:
            return None
        if self._newest not in self._told:
            self._told.append(self._newest)
        return self._newest.gift

    def open(self, blob: Digest) -> FileRange | None:
        """A blob of a gift that is kept."""
        for kept in (self._newest, *tuple(self._told)):
            reader = kept.open(blob) if kept is not None else None
            if reader is not None:
                return reader
        return None


class Given:
    """The gift that this node starts with, until a checkpoint of its own has it."""

    def __init__(self, store: Store) -> None:
        self._store = store

    @property
    def path(self) -> Path:
        return self._store.checkpoint_dir() / "given.bin"

    def keep(self, gift: Gift) -> None:
        """All of it is here."""
        words = {"since": gift.head.round, "lenders": list(gift.lenders)}
        self._store.note("given", json.dumps(words).encode())

    def loan(self) -> Loan | None:
        """Whom it is of, if there is one."""
        try:
            words = json.loads(self._store.noted("given") or b"null")
        except ValueError:
            return None
        match words:
            case {"since": int(since), "lenders": list(lenders)}:
                return Loan(lenders=tuple(map(PeerId, lenders)), since=Round(since))
        return None

    def forget(self) -> None:
        """It is used up, or of no use."""
        if self.loan() is not None:
            self._store.note("given", b"null")
            self.path.unlink(missing_ok=True)


async def fetch(gift: Gift, holder: PeerId, path: Path, swarm: Swarm, disk: Disk) -> None:
    """Bring a gift's parts into a file; durable on return.

    Raises: SwarmError, OSError."""
    await disk(_make_room, path)
    slots = asyncio.Semaphore(PARALLEL_PARTS)

    async def bring(part: BlobRef, offset: int) -> None:
        async with slots:
            data = await swarm.fetch(part, [holder])
            await disk(_write, path, offset, data)

    offsets = accumulate((part.size for part in gift.blobs), initial=0)
    try:
        async with asyncio.TaskGroup() as group:
            for part, offset in zip(gift.blobs, offsets, strict=False):
                group.create_task(bring(part, offset))
    except* (SwarmError, OSError) as errors:
        raise errors.exceptions[0] from None
    await disk(_make_durable, path)


def _make_room(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)


def _write(path: Path, offset: int, data: bytes) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT, 0o600)
    try:
        write_at(descriptor, offset, data)
    finally:
        os.close(descriptor)


def _make_durable(path: Path) -> None:
    with path.open("rb") as file:
        sync(file.fileno())
    sync_folder(path.parent)
