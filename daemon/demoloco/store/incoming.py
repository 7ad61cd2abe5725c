"""A snapshot on its way in: `incoming/<round>-<fingerprint>.f32`, full length from the start, parts
at their places.

Rule: which parts are there is asked of the bytes themselves, by digest, so a fetch goes on after
any crash. One snapshot is fetched at a time: the first part of another one takes the place of what
was there.
"""

from __future__ import annotations

import threading
from itertools import accumulate
from pathlib import Path

from demoloco.errors import StoreError
from demoloco.outer.agreed import fingerprint
from demoloco.store.files import Home, reserve, sync, write_at
from demoloco.store.records import digest_of
from demoloco.types import BlobRef, Digest, Snapshot


class Incoming:
    """What one home holds of a snapshot that is being fetched. Safe in several threads."""

    def __init__(self, home: Home) -> None:
        self._home = home
        self._folder = home.folder("incoming")
        self._lock = threading.Lock()
        self._active: Path | None = None
        self._there: set[Digest] = set()  # parts of the active one

    def missing(self, snapshot: Snapshot) -> tuple[BlobRef, ...]:
        """The parts to get, each once."""
        with self._lock:
            self._look_at(snapshot)
            return self._missing(snapshot)

    def put(self, snapshot: Snapshot, part: BlobRef, data: bytes) -> None:
        """Keep a part, durably, at all its places.

        Raises: ValueError if these are not the bytes of a part of this snapshot.
        """
        if part not in snapshot.blobs or len(data) != part.size or digest_of(data) != part.digest:
            raise ValueError(f"not a part of the snapshot of round {snapshot.head.round}")
        with self._lock:
            self._look_at(snapshot)
            if part.digest in self._there:
                return
            path = self._path(snapshot)
            if not path.exists():
                self._begin(snapshot, path)
            with (
                self._home.explained("write a part of a snapshot", part.size),
                path.open("r+b") as file,
            ):
                for place, offset in enumerate(_offsets(snapshot)):
                    if snapshot.blobs[place] == part:
                        write_at(file.fileno(), offset, data)
                self._home.at("part written")
                sync(file.fileno())
            self._home.at("part synced")
            self._there.add(part.digest)

    def whole(self, snapshot: Snapshot) -> Path:
        """The file of a snapshot whose parts are all there, each read and checked now.

        Raises: StoreError if some are not.
        """
        with self._lock:
            self._active = None
            self._look_at(snapshot)
            missing = self._missing(snapshot)
            self._active = None  # the file is about to move
            if missing:
                raise StoreError(
                    f"the snapshot of round {snapshot.head.round} is not whole: {len(missing)} of "
                    f"{len(snapshot.blobs)} parts are missing or damaged; fetch them again"
                )
            path = self._path(snapshot)
            with self._home.explained("sync a snapshot"), path.open("rb") as file:
                sync(file.fileno())  # parts that a crash left written are not yet durable
            return path

    def forget_old(self, round_: int) -> None:
        """Remove what was broken off and is of `round_` or before."""
        with self._lock:
            for path in self._folder.glob("[0-9]*-*.f32"):
                if path != self._active and int(path.name.partition("-")[0]) <= round_:
                    self._home.remove(path)

    def _look_at(self, snapshot: Snapshot) -> None:
        path = self._path(snapshot)
        if path == self._active:
            return
        self._active = path
        self._there = set()
        reader = self._home.open(path)
        if reader is None:
            return
        with reader:
            if reader.size != _size(snapshot):
                self._home.remove(path)
                return
            for part, offset in zip(snapshot.blobs, _offsets(snapshot), strict=True):
                if digest_of(reader.read(offset, part.size)) == part.digest:
                    self._there.add(part.digest)

    def _missing(self, snapshot: Snapshot) -> tuple[BlobRef, ...]:
        parts = {part.digest: part for part in snapshot.blobs if part.digest not in self._there}
        return tuple(parts.values())

    def _begin(self, snapshot: Snapshot, path: Path) -> None:
        for other in self._folder.iterdir():
            self._home.remove(other)
        size = _size(snapshot)
        draft = self._home.draft()
        with (
            self._home.discarding(draft),
            self._home.explained(f"fetch the snapshot of round {snapshot.head.round}", size),
        ):
            with draft.open("xb") as file:
                reserve(file.fileno(), size)
                sync(file.fileno())
            self._home.publish(draft, path, "fetch")

    def _path(self, snapshot: Snapshot) -> Path:
        name = fingerprint(part.digest for part in snapshot.blobs).hex()
        return self._folder / f"{snapshot.head.round:08d}-{name}.f32"


def _offsets(snapshot: Snapshot) -> list[int]:
    return [0, *accumulate(part.size for part in snapshot.blobs)][:-1]


def _size(snapshot: Snapshot) -> int:
    return sum(part.size for part in snapshot.blobs)
