"""Agreed states on disk: `states/<round>-<hex>.f32`, raw float32, and beside each a `.json` that
tells its blobs.

Rule: a state is there when both files are; the description is written first, so that naming the
content completes it. No bytes are handed out before they were checked against the description once
in the life of this process.
"""

from __future__ import annotations

import logging
import mmap
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from itertools import accumulate
from pathlib import Path

import numpy as np

from demoloco.codec.layout import CHUNK
from demoloco.errors import StoreError
from demoloco.outer.agreed import digest_parts
from demoloco.store.files import FileRange, Home, reserve, sync
from demoloco.store.port import Coefficients
from demoloco.store.records import digest_of, snapshot_from_bytes, snapshot_to_bytes
from demoloco.types import Digest, Head, Snapshot, short

log = logging.getLogger(__name__)

CHUNK_BYTES = CHUNK * 4


@dataclass(frozen=True, slots=True)
class _Kept:
    snapshot: Snapshot
    path: Path
    checked: set[int] = field(default_factory=set)  # places of the parts found whole

    @property
    def offsets(self) -> list[int]:
        return [0, *accumulate(blob.size for blob in self.snapshot.blobs)]


class DiskStates:
    """The agreed states of one home. Safe to call from several threads; one at a time may write."""

    def __init__(self, home: Home) -> None:
        self._home = home
        self._folder = home.folder("states")
        self._lock = threading.Lock()
        self._kept: dict[Digest, _Kept] = {}
        self._parts: dict[Digest, dict[Digest, int]] = {}  # part -> state -> place
        for path in sorted(self._folder.iterdir()):
            if path.suffix == ".json":
                self._load(path)
        named = {kept.path for kept in self._kept.values()}
        for path in self._folder.iterdir():
            if path.with_suffix(".f32") not in named:
                home.remove(path)

    def heads(self) -> dict[Digest, Head]:
        """The heads whose states are kept, as it is now."""
        with self._lock:
            return {digest: kept.snapshot.head for digest, kept in self._kept.items()}

    def snapshot_of(self, digest: Digest) -> Snapshot | None:
        """What is kept for this head, as it was described when it was written."""
        with self._lock:
            kept = self._kept.get(digest)
            return None if kept is None else kept.snapshot

    def create(self, head: Head, fill: Callable[[Coefficients], None], chunks: int) -> Snapshot:
        """Write a state that `fill` makes, or find it; its parts."""
        kept = self.snapshot_of(head.digest) if self.is_whole(head.digest) else None
        if kept is not None:
            return kept
        if chunks < 1:
            raise ValueError(f"an agreed state has {chunks} chunks")
        draft = self._home.draft()
        with self._home.discarding(draft):
            snapshot = self._write(draft, head, fill, chunks)
            self.adopt(snapshot, draft)
        return snapshot

    def adopt(self, snapshot: Snapshot, draft: Path) -> None:
        """Make a durable file the state that `snapshot` describes, in place of any other."""
        self.forget([snapshot.head.digest])
        path = self._folder / f"{snapshot.head.round:08d}-{snapshot.head.digest.hex()}.f32"
        self._home.write(path.with_suffix(".json"), snapshot_to_bytes(snapshot), "description")
        self._home.publish(draft, path, "state")
        self._register(_Kept(snapshot, path, set(range(len(snapshot.blobs)))))

    def is_whole(self, digest: Digest) -> bool:
        """Whether the state is kept and every byte of it as it was; a damaged one is removed."""
        reader = self._open_whole(digest)
        if reader is not None:
            reader.close()
        return reader is not None

    def map(self, digest: Digest) -> Coefficients | None:
        """The state as a read-only array over its file."""
        reader = self._open_whole(digest)
        if reader is None:
            return None
        with reader, self._home.explained(f"map the state {short(digest)}"):
            mapped = mmap.mmap(reader.fileno(), 0, access=mmap.ACCESS_READ)
        return np.frombuffer(mapped, dtype=np.float32).reshape(-1, CHUNK)

    def path(self, digest: Digest) -> Path | None:
        """The state's file."""
        with self._lock:
            kept = self._kept.get(digest)
        return kept.path if kept is not None and self.is_whole(digest) else None

    def open_part(self, digest: Digest) -> FileRange | None:
        """A blob of some kept state for reading in pieces."""
        with self._lock:
            places = list(self._parts.get(digest, {}).items())
        for state, place in places:
            opened = self._open(state)
            if opened is None:
                continue
            kept, reader = opened
            if self._check(kept, reader, [place]):
                part = kept.snapshot.blobs[place]
                return reader.part(kept.offsets[place], part.size)
            reader.close()
        return None

    def forget(self, digests: Iterable[Digest]) -> None:
        """Remove these states; who maps one keeps it."""
        with self._lock:
            for digest in digests:
                self._forget(digest)

    def _load(self, description: Path) -> None:
        data = self._home.read(description)
        snapshot = None if data is None else snapshot_from_bytes(data)
        path = description.with_suffix(".f32")
        if snapshot is None:
            log.warning("state damaged file=%s action=removed", path.name)
        elif path.exists():
            self._register(_Kept(snapshot, path))

    def _register(self, kept: _Kept) -> None:
        digest = kept.snapshot.head.digest
        with self._lock:
            self._kept[digest] = kept
            for place, part in enumerate(kept.snapshot.blobs):
                self._parts.setdefault(part.digest, {})[digest] = place

    def _forget(self, digest: Digest) -> None:
        kept = self._kept.pop(digest, None)
        if kept is None:
            return
        for part in kept.snapshot.blobs:
            states = self._parts.get(part.digest, {})
            states.pop(digest, None)
            if not states:
                self._parts.pop(part.digest, None)
        self._home.remove(kept.path)
        self._home.remove(kept.path.with_suffix(".json"))

    def _open(self, digest: Digest) -> tuple[_Kept, FileRange] | None:
        with self._lock:
            kept = self._kept.get(digest)
            reader = None if kept is None else self._home.open(kept.path)
            if kept is None or reader is None:
                self._forget(digest)
                return None
            return kept, reader

    def _open_whole(self, digest: Digest) -> FileRange | None:
        opened = self._open(digest)
        if opened is None:
            return None
        kept, reader = opened
        if self._check(kept, reader, range(len(kept.snapshot.blobs))):
            return reader
        reader.close()
        return None

    def _check(self, kept: _Kept, reader: FileRange, places: Iterable[int]) -> bool:
        """Whether these parts are whole; if not, the state is removed."""
        for place in places:
            if place in kept.checked:
                continue
            if not _part_is_whole(kept, reader, place):
                head = kept.snapshot.head
                log.warning(
                    "state damaged round=%d head=%s part=%d action=removed",
                    head.round, short(head.digest), place,
                )  # fmt: skip
                self.forget([head.digest])
                return False
            kept.checked.add(place)
        return True

    def _write(
        self, draft: Path, head: Head, fill: Callable[[Coefficients], None], chunks: int
    ) -> Snapshot:
        size = chunks * CHUNK_BYTES
        doing = f"write the agreed state of round {head.round}"
        with self._home.explained(doing, size), draft.open("x+b", buffering=0) as file:
            reserve(file.fileno(), size)
            mapped = mmap.mmap(file.fileno(), size)
        self._home.at("state reserved")
        array = np.frombuffer(mapped, dtype=np.float32).reshape(chunks, CHUNK)
        fill(array)
        self._home.at("state filled")
        snapshot = Snapshot(head=head, blobs=digest_parts(array))
        with self._home.explained(doing, size), draft.open("rb") as file:
            mapped.flush()
            sync(file.fileno())
        return snapshot


def _part_is_whole(kept: _Kept, reader: FileRange, place: int) -> bool:
    part = kept.snapshot.blobs[place]
    if reader.size != kept.offsets[-1]:
        return False
    try:
        return digest_of(reader.read(kept.offsets[place], part.size)) == part.digest
    except StoreError as error:
        log.warning("state unreadable error=%r", str(error))
        return False
