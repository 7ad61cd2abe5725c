"""What this node serves to others, straight from its store; never through the worker."""

from __future__ import annotations

from collections.abc import Sequence

from demoloco.node.gifts import Shelf
from demoloco.node.lending import Lending
from demoloco.store.port import Store
from demoloco.swarm.port import BlobReader
from demoloco.types import Digest, Genesis, Gift, Snapshot


class StoreLibrary:
    """Implements swarm.port.Library. Empty until the node has a run."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._genesis: Genesis | None = None
        self.shelf = Shelf(store.checkpoint_dir() / "gifts")
        self.lending = Lending()

    def know(self, genesis: Genesis) -> None:
        """From now on tell newcomers of this run."""
        self._genesis = genesis

    def genesis(self) -> Genesis | None:
        return self._genesis if self._store.head() is not None else None

    def open_blob(self, blob: Digest) -> BlobReader | None:
        kept = self._store.open_blob(blob)
        return self.shelf.open(blob) if kept is None else self.lending.watched(blob, kept)

    def manifests(self, head: Digest, count: int) -> Sequence[bytes]:
        return self._store.manifests(head, count)

    def snapshot(self) -> Snapshot | None:
        return self._store.served_snapshot()

    def gift(self) -> Gift | None:
        return self.shelf.tell()
