"""The store without a disk, for tests and simulations: the same answers, gone with the process."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import islice, takewhile
from pathlib import Path

import numpy as np

from demoloco.codec.layout import CHUNK
from demoloco.errors import StoreError
from demoloco.outer.agreed import digest_parts, fingerprint
from demoloco.store.port import Coefficients
from demoloco.store.records import checked_key, digest_of
from demoloco.store.retention import (
    Link,
    PacketAges,
    ancestry,
    lineage,
    packet_rounds,
    retain,
    snapshot_rounds,
)
from demoloco.types import BlobRef, Digest, Head, Snapshot, short


class MemoryRange:
    """Bytes opened for reading."""

    def __init__(self, content: bytes) -> None:
        self._content = content
        self.size = len(content)

    def read(self, offset: int, length: int) -> bytes:
        if offset < 0 or length < 0:
            raise ValueError(f"a range has no bytes at {offset} + {length}")
        return self._content[offset : offset + length]

    def close(self) -> None:
        """Nothing to let go of."""


@dataclass(slots=True)
class _Fetch:
    fingerprint: Digest
    parts: dict[Digest, bytes] = field(default_factory=dict)


class MemoryStore:
    """See `port.Store`. Paths are real: what asks for one gets a file in a temporary directory."""

    def __init__(self, *, snapshot_every: int = 10) -> None:
        self.snapshot_every = snapshot_every
        self._blobs: dict[Digest, bytes] = {}
        self._ages = PacketAges()
        self._links: dict[Digest, Link] = {}
        self._sealed: dict[Digest, bytes] = {}
        self._head: Head | None = None
        self._states: dict[Digest, tuple[Snapshot, bytes]] = {}
        self._fetch: _Fetch | None = None
        self._notes: dict[str, bytes] = {}
        self._folder: tempfile.TemporaryDirectory[str] | None = None

    # -- blobs ------------------------------------------------------------------------------------
    def put(self, blob: bytes) -> Digest:
        digest = digest_of(blob)
        self._ages.renew(digest)
        self._blobs[digest] = bytes(blob)
        return digest

    def get(self, digest: Digest) -> bytes | None:
        return self._blobs.get(digest)

    def open_blob(self, digest: Digest) -> MemoryRange | None:
        if digest in self._blobs:
            return MemoryRange(self._blobs[digest])
        for snapshot, content in self._states.values():
            offset = 0
            for part in snapshot.blobs:
                if part.digest == digest:
                    return MemoryRange(content[offset : offset + part.size])
                offset += part.size
        return None

    # -- the log ----------------------------------------------------------------------------------
    def append(
        self, sealed: bytes, head: Head, parent: Digest, packets: Sequence[Digest] = ()
    ) -> Digest:
        if digest_of(sealed) != head.digest:
            raise ValueError(f"{short(head.digest)} is not the digest of this manifest")
        self._links.setdefault(head.digest, Link(head, parent, tuple(packets)))
        self._sealed[head.digest] = bytes(sealed)
        return head.digest

    def manifest(self, digest: Digest) -> bytes | None:
        return self._sealed.get(digest)

    def manifests(self, head: Digest, count: int) -> Sequence[bytes]:
        kept = takewhile(self._sealed.__contains__, ancestry(self._links, head))
        return [self._sealed[digest] for digest in islice(kept, max(count, 0))]

    def lineage(self, head: Digest, count: int) -> Sequence[Link]:
        return lineage(self._links, head, count)

    def head(self) -> Head | None:
        return self._head

    # -- agreed states ----------------------------------------------------------------------------
    def create_state(
        self, head: Head, fill: Callable[[Coefficients], None], chunks: int
    ) -> Snapshot:
        if head.digest not in self._states:
            if chunks < 1:
                raise ValueError(f"an agreed state has {chunks} chunks")
            array = np.zeros((chunks, CHUNK), dtype=np.float32)
            fill(array)
            snapshot = Snapshot(head=head, blobs=digest_parts(array))
            self._states[head.digest] = snapshot, array.tobytes()
        return self._states[head.digest][0]

    def state(self, digest: Digest) -> Coefficients | None:
        kept = self._states.get(digest)
        return None if kept is None else np.frombuffer(kept[1], np.float32).reshape(-1, CHUNK)

    def state_path(self, digest: Digest) -> Path | None:
        kept = self._states.get(digest)
        if kept is None:
            return None
        path = self._directory("states") / f"{digest.hex()}.f32"
        if not path.exists():
            path.write_bytes(kept[1])
        return path

    def snapshot_of(self, digest: Digest) -> Snapshot | None:
        kept = self._states.get(digest)
        return None if kept is None else kept[0]

    def move_head(self, head: Head) -> None:
        if head.digest not in self._states:
            raise StoreError(f"round {head.round} cannot be the head: its agreed state is not kept")
        self._head = head

    # -- snapshots --------------------------------------------------------------------------------
    def served_snapshot(self) -> Snapshot | None:
        kept = self.snapshots()
        if kept or self._head is None:
            return kept[0] if kept else None
        return self.snapshot_of(self._head.digest)

    def snapshots(self) -> Sequence[Snapshot]:
        if self._head is None:
            return ()
        chain = ancestry(self._links, self._head.digest)
        heads = snapshot_rounds(self._heads(), chain, self.snapshot_every)
        return tuple(self._states[head.digest][0] for head in heads)

    def missing_parts(self, snapshot: Snapshot) -> tuple[BlobRef, ...]:
        if self.snapshot_of(snapshot.head.digest) == snapshot:
            return ()
        there = self._parts_of(snapshot)
        return tuple({p.digest: p for p in snapshot.blobs if p.digest not in there}.values())

    def put_part(self, snapshot: Snapshot, part: BlobRef, data: bytes) -> None:
        if part not in snapshot.blobs or len(data) != part.size or digest_of(data) != part.digest:
            raise ValueError(f"not a part of the snapshot of round {snapshot.head.round}")
        name = fingerprint(part.digest for part in snapshot.blobs)
        if self._fetch is None or self._fetch.fingerprint != name:
            self._fetch = _Fetch(name)
        self._fetch.parts[part.digest] = bytes(data)

    def finish_snapshot(self, snapshot: Snapshot, chunks: int) -> None:
        size = sum(part.size for part in snapshot.blobs)
        if size != chunks * CHUNK * 4:
            raise StoreError(
                f"the snapshot has {size} bytes; {chunks} chunks have {chunks * CHUNK * 4}"
            )
        if self.snapshot_of(snapshot.head.digest) == snapshot:
            return
        if self.missing_parts(snapshot):
            raise StoreError(f"the snapshot of round {snapshot.head.round} is not whole")
        parts = self._parts_of(snapshot)
        content = b"".join(parts[part.digest] for part in snapshot.blobs)
        self._states[snapshot.head.digest] = snapshot, content
        self._fetch = None

    # -- housekeeping -----------------------------------------------------------------------------
    def checkpoint_dir(self) -> Path:
        return self._directory("checkpoint")

    def note(self, key: str, value: bytes) -> None:
        self._notes[checked_key(key)] = bytes(value)

    def noted(self, key: str) -> bytes | None:
        return self._notes.get(checked_key(key))

    def is_noted(self, key: str) -> bool:
        return checked_key(key) in self._notes

    def prune(
        self,
        keep: Iterable[Digest],
        depth: int,
        snapshot_every: int,
        log: Iterable[Digest] = (),
    ) -> None:
        self.snapshot_every = snapshot_every
        if self._head is None:
            return
        kept = frozenset(keep)
        logged = kept | frozenset(log)
        plan = retain(self._head, self._links, self._heads(), depth, snapshot_every)
        named = packet_rounds(self._links.values())
        for digest in self._states.keys() - plan.states - kept:
            path = self.state_path(digest) if self._folder else None
            if path is not None:
                path.unlink()
            del self._states[digest]
        for digest, link in list(self._links.items()):
            if link.head.round < plan.floor and digest not in logged:
                del self._links[digest], self._sealed[digest]
        for digest in self._ages.old(self._blobs, named, self._head, plan.floor) - logged:
            del self._blobs[digest]

    def used_bytes(self) -> int:
        states = sum(len(content) for _, content in self._states.values())
        return states + sum(map(len, (*self._blobs.values(), *self._sealed.values())))

    def close(self) -> None:
        if self._folder is not None:
            self._folder.cleanup()
            self._folder = None

    def _heads(self) -> dict[Digest, Head]:
        return {digest: snapshot.head for digest, (snapshot, _) in self._states.items()}

    def _parts_of(self, snapshot: Snapshot) -> dict[Digest, bytes]:
        name = fingerprint(part.digest for part in snapshot.blobs)
        return self._fetch.parts if self._fetch and self._fetch.fingerprint == name else {}

    def _directory(self, name: str) -> Path:
        if self._folder is None:
            self._folder = tempfile.TemporaryDirectory(prefix="demoloco-")
        path = Path(self._folder.name) / name
        path.mkdir(exist_ok=True)
        return path
