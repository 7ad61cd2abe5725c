"""What the node keeps: blobs under digests, the manifest log, agreed states, its place in the run.

Rules for every adapter: what a method has returned from survives a power cut; nothing that was
damaged on disk is ever handed out as whole; foreign exceptions end here as StoreError with the
bytes needed and free where it is about space. An agreed state never changes once it has a name:
readers keep what they opened.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from demoloco.store.retention import Link
from demoloco.types import BlobRef, Digest, Head, Snapshot

Coefficients = NDArray[np.float32]
"""An agreed state: float32 (chunks of all its planes, 4096), in the DCT domain, little-endian on
disk."""


class BlobReader(Protocol):
    """A blob opened for reading; stays valid when the blob is deleted meanwhile."""

    size: int

    def read(self, offset: int, length: int) -> bytes:
        """At most `length` bytes from `offset` on, fewer where the blob ends."""
        ...

    def close(self) -> None: ...


class Store(Protocol):
    """One run in one home.

    Methods may block on the disk: the node calls the large ones in a thread, one at a time.
    """

    snapshot_every: int
    """The run's; set it when the run becomes known. `prune` sets it, too."""

    # -- blobs: packets, the genesis -------------------------------------------------------------
    def put(self, blob: bytes) -> Digest:
        """Keep a blob under its digest. Idempotent."""
        ...

    def get(self, digest: Digest) -> bytes | None:
        """The blob, or None if it is not here whole."""
        ...

    def open_blob(self, digest: Digest) -> BlobReader | None:
        """Blobs of `put` and parts of the snapshots that are served."""
        ...

    # -- the log ----------------------------------------------------------------------------------
    def append(
        self, sealed: bytes, head: Head, parent: Digest, packets: Sequence[Digest] = ()
    ) -> Digest:
        """Keep a sealed manifest; its digest. Does not move the head. Idempotent.

        `packets` are the blobs that it names, so that `prune` knows how long they are wanted.
        Raises: ValueError if `head.digest` is not the digest of `sealed`.
        """
        ...

    def manifest(self, digest: Digest) -> bytes | None:
        """The sealed manifest, or None if it is not here whole."""
        ...

    def manifests(self, head: Digest, count: int) -> Sequence[bytes]:
        """Sealed manifests from `head` towards the genesis, head first, as far as they are kept."""
        ...

    def lineage(self, head: Digest, count: int) -> Sequence[Link]:
        """The same manifests' places in the log, without reading them."""
        ...

    def head(self) -> Head | None:
        """The head whose agreed state is on disk and whole, or None in a new home."""
        ...

    # -- agreed states ----------------------------------------------------------------------------
    def create_state(
        self, head: Head, fill: Callable[[Coefficients], None], chunks: int
    ) -> Snapshot:
        """Write the agreed state after `head`, durably.

        `fill` gets a writable (chunks, 4096) array of zeros and must not keep it; it is not
        called for a state that exists.
        """
        ...

    def state(self, digest: Digest) -> Coefficients | None:
        """Read-only map of the agreed state after this manifest, if it is kept."""
        ...

    def state_path(self, digest: Digest) -> Path | None:
        """The file of that state, for the worker to map; raw float32, no header."""
        ...

    def snapshot_of(self, digest: Digest) -> Snapshot | None:
        """Blobs and head of a kept state; see `outer.agreed.fingerprint`."""
        ...

    def move_head(self, head: Head) -> None:
        """Durably make this the node's head; its state must exist."""
        ...

    # -- snapshots for others ---------------------------------------------------------------------
    def served_snapshot(self) -> Snapshot | None:
        """The newest kept state that the head builds on and whose round `snapshot_every` divides
        (round 0 included), else the head's."""
        ...

    def snapshots(self) -> Sequence[Snapshot]:
        """All kept states that the head builds on and whose round `snapshot_every` divides, newest
        first."""
        ...

    # -- fetching a snapshot ----------------------------------------------------------------------
    def missing_parts(self, snapshot: Snapshot) -> tuple[BlobRef, ...]:
        """What a fetch that was broken off left to get, each part once.

        The snapshot's size is the caller's to check before: disk is taken for all of it.
        """
        ...

    def put_part(self, snapshot: Snapshot, part: BlobRef, data: bytes) -> None:
        """Keep one checked blob of a snapshot that is being fetched.

        One snapshot is fetched at a time: the first part of another one drops what was there.
        Raises: ValueError if `data` is not this part, or the part not of this snapshot.
        """
        ...

    def finish_snapshot(self, snapshot: Snapshot, chunks: int) -> None:
        """All parts are there: check, make it a state. Raises StoreError if it is not whole."""
        ...

    # -- housekeeping -----------------------------------------------------------------------------
    def checkpoint_dir(self) -> Path:
        """Where the worker keeps its checkpoint; it writes, renames and fsyncs there itself."""
        ...

    def note(self, key: str, value: bytes) -> None:
        """Durably keep a small value under a name: the node's own notes (run, counters, peers).

        A name is 1 to 100 letters, digits, - and _. Raises: ValueError for any other.
        """
        ...

    def noted(self, key: str) -> bytes | None:
        """What was kept under this name last, or None if there is none, or it is damaged."""
        ...

    def is_noted(self, key: str) -> bool:
        """Whether anything was ever kept under this name, be it damaged."""
        ...

    def prune(
        self,
        keep: Iterable[Digest],
        depth: int,
        snapshot_every: int,
        log: Iterable[Digest] = (),
    ) -> None:
        """Bound the disk.

        Stays: the head's last `depth` rounds, the two newest snapshot rounds on its chain, all
        packets and manifests since the older of them, and whatever `keep` names: states,
        manifests or blobs. The genesis is a blob like any other: name it. `log` names manifests
        and blobs that stay without their states.
        """
        ...

    def used_bytes(self) -> int:
        """Bytes that all of this takes."""
        ...

    def close(self) -> None:
        """Let another process have the home; a second call does nothing."""
        ...
