"""Which snapshot stays for others beside the two newest: one that somebody fetches right now.

Rule: at most one, for at most an hour, and only while parts of it are asked for or read; so the
disk stays bounded whatever peers ask.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from demoloco.store.retention import SERVED_SNAPSHOTS
from demoloco.swarm.port import BlobReader
from demoloco.types import Digest, Snapshot

RECENT_SECONDS = 120.0
MOST_SECONDS = 3600.0


class Lending:
    """What peers asked for lately."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._asked: dict[Digest, float] = {}
        self._since: dict[Digest, float] = {}  # of the snapshot that stays

    def watched(self, blob: Digest, reader: BlobReader) -> BlobReader:
        """The same reader; from now on it is known when it is read."""
        self.note(blob)
        return _Watched(reader, lambda: self.note(blob))

    def note(self, blob: Digest) -> None:
        """Somebody wants this."""
        self._asked[blob] = self._now()

    def wanted(self, kept: Sequence[Snapshot]) -> tuple[Digest, ...]:
        """Of the snapshots that are kept, newest first, the head of the older one that stays: the
        oldest in use, which somebody has most of."""
        now = self._now()
        asked = {blob: at for blob, at in self._asked.copy().items() if now - at < RECENT_SECONDS}
        self._asked, before, self._since = asked, self._since, {}
        for snapshot in reversed(kept[SERVED_SNAPSHOTS:]):
            head = snapshot.head.digest
            since = before.get(head, now)
            in_use = any(blob.digest in asked for blob in snapshot.blobs)
            if in_use and now - since < MOST_SECONDS:
                self._since[head] = since
                return (head,)
        return ()


class _Watched:
    def __init__(self, reader: BlobReader, note: Callable[[], None]) -> None:
        self._reader = reader
        self._note = note
        self.size = reader.size

    def read(self, offset: int, length: int) -> bytes:
        self._note()
        return self._reader.read(offset, length)

    def close(self) -> None:
        self._reader.close()
