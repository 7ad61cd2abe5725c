"""A thread reads while another makes and prunes rounds: each round is seen whole or not at all."""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest

from demoloco.store.disk import DiskStore, open_disk_store
from demoloco.store.memory import MemoryStore
from demoloco.types import BlobRef, Snapshot
from tests.store.rounds import content, head_of, manifest_of, packet_of, play

ROUNDS = 60


def read_what_is_served(store: DiskStore) -> None:
    snapshot = store.served_snapshot()
    if snapshot is None:
        return
    for blob in snapshot.blobs:
        reader = store.open_blob(blob.digest)
        if reader is not None:  # pruned since
            assert reader.read(0, blob.size) == content(snapshot.head.round)
            reader.close()


def read_the_head(store: DiskStore) -> None:
    head = store.head()
    if head is None:
        return
    state = store.state(head.digest)
    assert state is None or state.tobytes() == content(head.round)
    expected = [manifest_of(round_) for round_ in range(head.round, 0, -1)]
    found = list(store.manifests(head.digest, 5))
    assert found == expected[: len(found)]
    if head.round > 0:
        packet = store.put(packet_of(head.round))
        assert store.get(packet) == packet_of(head.round)


def test_readers_see_whole_rounds_while_others_are_made_and_pruned(tmp_path: Path) -> None:
    store = open_disk_store(tmp_path / "home")
    reads = 0
    with ThreadPoolExecutor(1) as pool:
        rounds: Future[None] = pool.submit(play, store, ROUNDS)
        while not rounds.done():
            read_what_is_served(store)
            read_the_head(store)
            reads += 1
        rounds.result()
    read_the_head(store)
    assert reads > 5
    assert store.head() == head_of(ROUNDS)
    store.close()


@pytest.mark.parametrize("kind", ["memory", "disk"])
def test_a_mapped_state_and_an_opened_part_outlive_pruning(tmp_path: Path, kind: str) -> None:
    store = MemoryStore() if kind == "memory" else open_disk_store(tmp_path / "home")
    play(store, 1)
    state = store.state(head_of(1).digest)
    snapshot: Snapshot | None = store.snapshot_of(head_of(1).digest)
    assert state is not None
    assert snapshot is not None
    part: BlobRef = snapshot.blobs[0]
    reader = store.open_blob(part.digest)
    assert reader is not None
    play(store, 25, first=2)
    assert store.state(head_of(1).digest) is None
    assert store.open_blob(part.digest) is None
    assert reader.read(0, part.size) == content(1)
    assert state.tobytes() == content(1)
    reader.close()
    store.close()
