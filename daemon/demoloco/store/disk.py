"""The store on disk: one directory that a node owns alone.

    lock         who owns the home             head       the node's head, replaced every round
    format       the version of this tree      notes/     the node's own notes
    blobs/       packets, the genesis          log/       sealed manifests
    states/      agreed states                 incoming/  a snapshot that is being fetched
    checkpoint/  the worker's                  tmp/       drafts, removed at start

Rule: the head pointer is a claim, the state's bytes are the proof. A head whose state is gone or
damaged is never handed out: the newest whole state that it builds on takes its place, with a
warning. So does the newest whole state where the pointer itself is gone.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Sequence
from itertools import islice
from pathlib import Path

from demoloco.errors import ConfigError, StoreError
from demoloco.store.blobs import DiskBlobs
from demoloco.store.files import FileRange, Home, Step, ignore_step, make_home
from demoloco.store.incoming import Incoming
from demoloco.store.lock import HomeLock, lock_home
from demoloco.store.log import DiskLog
from demoloco.store.port import Coefficients
from demoloco.store.records import (
    checked_key,
    digest_of,
    framed,
    head_from_bytes,
    head_to_bytes,
    unframed,
)
from demoloco.store.retention import (
    Link,
    ancestry,
    lineage,
    packet_rounds,
    retain,
    snapshot_rounds,
)
from demoloco.store.states import CHUNK_BYTES, DiskStates
from demoloco.types import BlobRef, Digest, Head, Snapshot, short

log = logging.getLogger(__name__)

FORMAT = b"1\n"


def open_disk_store(
    home: Path, *, snapshot_every: int = 10, version: str = "", at: Step = ignore_step
) -> DiskStore:
    """Take the home for this process, mend what a crash left, check the head's state.

    `version` is told to others that want the home; `at` is for tests (see `files.py`).
    Raises: ConfigError if the home is in use, is not a directory, cannot be written or has
    another format.
    """
    make_home(home)
    lock = lock_home(home, version)
    try:
        _check_format(home)
        return DiskStore(Home(home, at), lock, snapshot_every)
    except BaseException:
        lock.release()
        raise


class DiskStore:
    """See `port.Store`. `snapshot_every` is the run's; set it when the run becomes known."""

    def __init__(self, home: Home, lock: HomeLock, snapshot_every: int) -> None:
        self.snapshot_every = snapshot_every
        self._home = home
        self._home_lock = lock
        self._head_lock = threading.RLock()
        home.settle()
        self._blobs = DiskBlobs(home)
        self._log = DiskLog(home)
        self._states = DiskStates(home)
        self._incoming = Incoming(home)
        self._notes = home.folder("notes")
        self._checkpoint = home.folder("checkpoint")
        if not (home.path / "format").exists():
            home.write(home.path / "format", FORMAT, "format")
        self._head = self._load_head()

    # -- blobs ------------------------------------------------------------------------------------
    def put(self, blob: bytes) -> Digest:
        return self._blobs.put(blob)

    def get(self, digest: Digest) -> bytes | None:
        return self._blobs.get(digest)

    def open_blob(self, digest: Digest) -> FileRange | None:
        return self._blobs.open(digest) or self._states.open_part(digest)

    # -- the log ----------------------------------------------------------------------------------
    def append(
        self, sealed: bytes, head: Head, parent: Digest, packets: Sequence[Digest] = ()
    ) -> Digest:
        if digest_of(sealed) != head.digest:
            raise ValueError(f"{short(head.digest)} is not the digest of this manifest")
        self._log.append(sealed, Link(head, parent, tuple(packets)))
        return head.digest

    def manifest(self, digest: Digest) -> bytes | None:
        return self._log.sealed(digest)

    def manifests(self, head: Digest, count: int) -> Sequence[bytes]:
        found: list[bytes] = []
        for digest in islice(ancestry(self._log.links(), head), max(count, 0)):
            sealed = self._log.sealed(digest)
            if sealed is None:
                break
            found.append(sealed)
        return found

    def lineage(self, head: Digest, count: int) -> Sequence[Link]:
        return lineage(self._log.links(), head, count)

    def head(self) -> Head | None:
        with self._head_lock:
            if self._head is not None and self._states.snapshot_of(self._head.digest) is None:
                self._head = self._newest_whole(self._head)
            return self._head

    # -- agreed states ----------------------------------------------------------------------------
    def create_state(
        self, head: Head, fill: Callable[[Coefficients], None], chunks: int
    ) -> Snapshot:
        return self._states.create(head, fill, chunks)

    def state(self, digest: Digest) -> Coefficients | None:
        return self._states.map(digest)

    def state_path(self, digest: Digest) -> Path | None:
        return self._states.path(digest)

    def snapshot_of(self, digest: Digest) -> Snapshot | None:
        return self._states.snapshot_of(digest)

    def move_head(self, head: Head) -> None:
        with self._head_lock:
            if self._states.snapshot_of(head.digest) is None:
                raise StoreError(
                    f"round {head.round} ({short(head.digest)}) cannot be the head: its agreed "
                    "state is not on disk; make it or fetch its snapshot first"
                )
            self._home.write(self._home.path / "head", head_to_bytes(head), "head")
            self._head = head

    # -- snapshots --------------------------------------------------------------------------------
    def served_snapshot(self) -> Snapshot | None:
        kept, head = self.snapshots(), self.head()
        if kept or head is None:
            return kept[0] if kept else None
        return self._states.snapshot_of(head.digest)

    def snapshots(self) -> Sequence[Snapshot]:
        head = self.head()
        if head is None:
            return ()
        chain = ancestry(self._log.links(), head.digest)
        heads = snapshot_rounds(self._states.heads(), chain, self.snapshot_every)
        kept = (self._states.snapshot_of(one.digest) for one in heads)
        return tuple(snapshot for snapshot in kept if snapshot is not None)

    def missing_parts(self, snapshot: Snapshot) -> tuple[BlobRef, ...]:
        if self._states.snapshot_of(snapshot.head.digest) == snapshot:
            return ()
        return self._incoming.missing(snapshot)

    def put_part(self, snapshot: Snapshot, part: BlobRef, data: bytes) -> None:
        self._incoming.put(snapshot, part, data)

    def finish_snapshot(self, snapshot: Snapshot, chunks: int) -> None:
        size = sum(part.size for part in snapshot.blobs)
        if size != chunks * CHUNK_BYTES:
            raise StoreError(
                f"the snapshot of round {snapshot.head.round} has {size} bytes, "
                f"not {chunks * CHUNK_BYTES}"
            )
        if self._states.snapshot_of(snapshot.head.digest) == snapshot and self._states.is_whole(
            snapshot.head.digest
        ):
            return
        self._states.adopt(snapshot, self._incoming.whole(snapshot))

    # -- housekeeping -----------------------------------------------------------------------------
    def checkpoint_dir(self) -> Path:
        return self._checkpoint

    def note(self, key: str, value: bytes) -> None:
        self._home.write(self._notes / checked_key(key), framed(value), "note")

    def noted(self, key: str) -> bytes | None:
        data = self._home.read(self._notes / checked_key(key))
        value = None if data is None else unframed(data)
        if data is not None and value is None:
            log.warning("note damaged key=%s action=ignored", key)
        return value

    def is_noted(self, key: str) -> bool:
        return (self._notes / checked_key(key)).exists()

    def prune(
        self,
        keep: Iterable[Digest],
        depth: int,
        snapshot_every: int,
        log: Iterable[Digest] = (),
    ) -> None:
        self.snapshot_every = snapshot_every
        head = self.head()
        if head is None:
            return
        kept = frozenset(keep)
        logged = kept | frozenset(log)
        links, states = self._log.links(), self._states.heads()
        plan = retain(head, links, states, depth, snapshot_every)
        self._states.forget(states.keys() - plan.states - kept)
        gone = {link.head.digest for link in links.values() if link.head.round < plan.floor}
        self._log.forget(gone - logged)
        self._blobs.forget_old(logged, packet_rounds(links.values()), head, plan.floor)
        self._incoming.forget_old(head.round)

    def used_bytes(self) -> int:
        return self._home.used_bytes()

    def close(self) -> None:
        self._home_lock.release()

    def _load_head(self) -> Head | None:
        path = self._home.path / "head"
        if not path.exists() and not self._had_a_head():
            return None
        data = self._home.read(path)
        head = None if data is None else head_from_bytes(data)
        if head is not None and self._states.is_whole(head.digest):
            return head
        return self._newest_whole(head)

    def _had_a_head(self) -> bool:
        """Whether a round was applied here: a state stands beside the one that it was made from.
        One that is alone was fetched or founded, and then the node ended before it was the head."""
        states, links = self._states.heads(), self._log.links()
        return any(d in links and links[d].parent in states for d in states)

    def _newest_whole(self, lost: Head | None) -> Head | None:
        """The newest head below `lost` whose state is whole; any, if even the pointer is lost."""
        states = self._states.heads()
        if lost is None:
            digests = sorted(states, key=lambda d: (states[d].samples_total, d), reverse=True)
        else:
            digests = list(ancestry(self._log.links(), lost.digest))
        whole = (states[d] for d in digests if d in states and self._states.is_whole(d))
        head = next(whole, None)
        log.warning(
            "head lost round=%s action=%s",
            "unknown" if lost is None else lost.round,
            "fetch a snapshot" if head is None else f"go on from round {head.round}",
        )
        return head


def _check_format(home: Path) -> None:
    path = home / "format"
    if path.exists() and (found := path.read_bytes()) != FORMAT:
        theirs = found.decode(errors="replace").strip()
        raise ConfigError(
            f"the home {home} has format {theirs!r} and this version "
            f"reads {FORMAT.decode().strip()}; update demoloco-node or choose another --home"
        )
