"""The log on disk: `log/<round>-<hex>`, one immutable file for each sealed manifest.

Rule: a manifest is opaque; what the store must know of it (the head that it makes, its parent, its
packets) stands in a line before it. Forks are manifests with one parent; nothing here prefers one.
"""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Iterable
from pathlib import Path

from demoloco.store.files import Home
from demoloco.store.records import (
    digest_from_hex,
    framed,
    head_from_json,
    head_to_json,
    unframed,
)
from demoloco.store.retention import Link
from demoloco.types import Digest, short

log = logging.getLogger(__name__)


class DiskLog:
    """The sealed manifests of one home. Safe to call from several threads."""

    def __init__(self, home: Home) -> None:
        self._home = home
        self._folder = home.folder("log")
        self._lock = threading.Lock()
        self._links: dict[Digest, Link] = {}
        for path in sorted(self._folder.iterdir()):
            record = self._read(path)
            if record is None:
                log.warning("manifest damaged file=%s action=removed", path.name)
                home.remove(path)
            else:
                self._links[record[0].head.digest] = record[0]

    def append(self, sealed: bytes, link: Link) -> None:
        """Keep a manifest; one that is kept already stays as it is."""
        with self._lock:
            if link.head.digest in self._links:
                return
        self._home.write(self._path(link), _to_bytes(sealed, link), "manifest")
        with self._lock:
            self._links[link.head.digest] = link

    def sealed(self, digest: Digest) -> bytes | None:
        """The manifest's bytes, if they are here and whole."""
        with self._lock:
            link = self._links.get(digest)
            if link is None:
                return None
            record = self._read(self._path(link))
            if record is not None:
                return record[1]
            log.warning("manifest damaged digest=%s action=removed", short(digest))
            self._forget(digest)
            return None

    def links(self) -> dict[Digest, Link]:
        """All manifests' places, as they are now."""
        with self._lock:
            return dict(self._links)

    def forget(self, digests: Iterable[Digest]) -> None:
        """Remove these manifests."""
        with self._lock:
            for digest in digests:
                self._forget(digest)

    def _forget(self, digest: Digest) -> None:
        link = self._links.pop(digest, None)
        if link is not None:
            self._home.remove(self._path(link))

    def _path(self, link: Link) -> Path:
        return self._folder / f"{link.head.round:08d}-{link.head.digest.hex()}"

    def _read(self, path: Path) -> tuple[Link, bytes] | None:
        data = self._home.read(path)
        return None if data is None else _from_bytes(data)


def _to_bytes(sealed: bytes, link: Link) -> bytes:
    words = {
        "head": head_to_json(link.head),
        "parent": link.parent.hex(),
        "packets": [packet.hex() for packet in link.packets],
    }
    return framed(json.dumps(words).encode() + b"\n" + sealed)


def _from_bytes(data: bytes) -> tuple[Link, bytes] | None:
    payload = unframed(data)
    if payload is None:
        return None
    line, _, sealed = payload.partition(b"\n")
    words = json.loads(line)
    packets = tuple(digest_from_hex(packet) for packet in words["packets"])
    return Link(head_from_json(words["head"]), digest_from_hex(words["parent"]), packets), sealed
