"""A toy run for the store's tests: what each round is made of follows from its number."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from blake3 import blake3

from demoloco.store.memory import MemoryStore
from demoloco.store.port import Coefficients, Store
from demoloco.types import BlobRef, Digest, Head, Round, Snapshot

CHUNKS = 2


def manifest_of(round_: int, fork: str = "") -> bytes:
    """The sealed bytes of a round's manifest; with a newline, where a format might split."""
    return f"manifest\n{round_}{fork}\x00".encode()


def packet_of(round_: int, fork: str = "") -> bytes:
    """The one packet of a round."""
    return f"packet {round_}{fork} ".encode() * 50


def head_of(round_: int, fork: str = "") -> Head:
    """The head that a round makes."""
    digest = Digest(blake3(manifest_of(round_, fork)).digest())
    return Head(digest=digest, round=Round(round_), samples_total=100 * round_, rank=round_ % 3)


GENESIS = head_of(0)


def filling(round_: int, fork: str = "") -> Callable[[Coefficients], None]:
    """Write the agreed state after a round."""

    def fill(array: Coefficients) -> None:
        array[:] = np.arange(array.size, dtype=np.float32).reshape(array.shape)
        array += np.float32(round_ + 0.25 * len(fork))

    return fill


def content(round_: int, fork: str = "") -> bytes:
    """The bytes of that state."""
    array = np.zeros((CHUNKS, 4096), dtype=np.float32)
    filling(round_, fork)(array)
    return array.tobytes()


def snapshot_for(round_: int, fork: str = "") -> Snapshot:
    """What a store that makes that state says of it."""
    return MemoryStore().create_state(head_of(round_, fork), filling(round_, fork), CHUNKS)


def play_round(store: Store, round_: int, *, prune: bool = True) -> None:
    """One committed round, in the node's order: packet, manifest, state, head."""
    head = head_of(round_)
    if round_ > 0:
        packet = store.put(packet_of(round_))
        store.append(manifest_of(round_), head, head_of(round_ - 1).digest, [packet])
    store.create_state(head, filling(round_), CHUNKS)
    store.move_head(head)
    if prune:
        store.prune((), 2, 10)


def play(store: Store, last: int, *, first: int = 0, prune: bool = True) -> None:
    """Rounds `first` to `last`."""
    for round_ in range(first, last + 1):
        play_round(store, round_, prune=prune)


def read_all(store: Store, blob: BlobRef) -> bytes:
    """A blob that must be there."""
    reader = store.open_blob(blob.digest)
    assert reader is not None
    try:
        assert reader.size == blob.size
        return reader.read(0, blob.size)
    finally:
        reader.close()
