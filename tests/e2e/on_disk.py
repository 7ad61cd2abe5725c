"""What a node that does not run has in its home."""

from __future__ import annotations

from contextlib import closing

from benchmarks.daemons import Daemon
from demoloco.store.disk import open_disk_store
from demoloco.types import Manifest
from demoloco.wire import decode_manifest


def chain_on_disk(node: Daemon) -> list[Manifest]:
    """Oldest first."""
    with closing(open_disk_store(node.home)) as store:
        head = store.head()
        assert head is not None
        sealed = store.manifests(head.digest, 1000)
    return [decode_manifest(one, lambda *_: True) for one in reversed(sealed)]
