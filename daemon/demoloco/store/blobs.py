"""Packets and other small blobs on disk: `blobs/<2 hex>/<hex>`, one immutable file each.

Rule: the name is the digest of the content; a file for which that is no longer true is removed
when it is met, so that it can be fetched anew.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Collection, Mapping
from pathlib import Path

from demoloco.store.files import FileRange, Home
from demoloco.store.records import digest_from_hex, digest_of
from demoloco.store.retention import PacketAges
from demoloco.types import DIGEST_BYTES, Digest, Head, short

log = logging.getLogger(__name__)


class DiskBlobs:
    """The blobs of one home. Safe to call from several threads."""

    def __init__(self, home: Home) -> None:
        self._home = home
        self._folder = home.folder("blobs")
        self._lock = threading.Lock()
        self._known = {
            digest_from_hex(file.name)
            for file in self._folder.glob("??/*")
            if len(file.name) == 2 * DIGEST_BYTES
        }
        self._checked: set[Digest] = set()
        self._ages = PacketAges()

    def put(self, blob: bytes) -> Digest:
        """Keep a blob under its digest."""
        digest = digest_of(blob)
        with self._lock:
            self._ages.renew(digest)
            if digest in self._checked:
                return digest
        path = self._path(digest)
        self._home.folder(f"blobs/{path.parent.name}")
        self._home.write(path, blob, "blob")
        with self._lock:
            self._known.add(digest)
            self._checked.add(digest)
        return digest

    def get(self, digest: Digest) -> bytes | None:
        """The blob, if it is here and whole."""
        with self._lock:
            if digest not in self._known:
                return None
            blob = self._home.read(self._path(digest))
            if blob is not None and digest_of(blob) == digest:
                self._checked.add(digest)
                return blob
            log.warning("blob damaged digest=%s action=removed", short(digest))
            self._forget(digest)
            return None

    def open(self, digest: Digest) -> FileRange | None:
        """The blob for reading in pieces; its bytes are checked once per process."""
        if digest not in self._checked and self.get(digest) is None:
            return None
        with self._lock:
            return self._home.open(self._path(digest)) if digest in self._known else None

    def forget_old(
        self, keep: Collection[Digest], named: Mapping[Digest, int], head: Head, floor: int
    ) -> None:
        """Remove the blobs of round `floor` and before, but those of `keep`."""
        with self._lock:
            for digest in self._ages.old(self._known, named, head, floor).difference(keep):
                self._forget(digest)

    def _forget(self, digest: Digest) -> None:
        self._known.discard(digest)
        self._checked.discard(digest)
        self._home.remove(self._path(digest))

    def _path(self, digest: Digest) -> Path:
        name = digest.hex()
        return self._folder / name[:2] / name
