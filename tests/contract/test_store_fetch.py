"""How every store takes in a snapshot: in parts, in any order, whole or not at all."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from demoloco.errors import StoreError
from demoloco.store.disk import open_disk_store
from demoloco.store.memory import MemoryStore
from demoloco.store.port import Store
from demoloco.types import BlobRef, Digest, Snapshot
from tests.store.rounds import CHUNKS, content, filling, head_of, play, read_all, snapshot_for


@pytest.fixture(params=["memory", "disk"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    in_memory = request.param == "memory"
    opened: Store = MemoryStore() if in_memory else open_disk_store(tmp_path / "home")
    yield opened
    opened.close()


LARGE = 2600  # chunks: three parts


def large_snapshot(store: Store, round_: int = 50) -> tuple[Snapshot, dict[Digest, bytes]]:
    """A snapshot that this store never had, and its parts."""
    donor = MemoryStore()
    snapshot = donor.create_state(head_of(round_), filling(round_), LARGE)
    return snapshot, {blob.digest: read_all(donor, blob) for blob in snapshot.blobs}


def test_a_snapshot_is_fetched_in_any_order(store: Store) -> None:
    snapshot, parts = large_snapshot(store)
    assert store.missing_parts(snapshot) == snapshot.blobs
    for number, blob in enumerate(reversed(snapshot.blobs)):
        store.put_part(snapshot, blob, parts[blob.digest])
        assert store.missing_parts(snapshot) == snapshot.blobs[: 2 - number]
    store.finish_snapshot(snapshot, LARGE)
    assert store.snapshot_of(snapshot.head.digest) == snapshot
    state = store.state(snapshot.head.digest)
    assert state is not None
    assert state.tobytes() == b"".join(parts[blob.digest] for blob in snapshot.blobs)
    assert store.missing_parts(snapshot) == ()
    store.finish_snapshot(snapshot, LARGE)
    assert store.head() is None


def test_a_snapshot_that_is_not_whole_is_refused(store: Store) -> None:
    snapshot, parts = large_snapshot(store)
    store.put_part(snapshot, snapshot.blobs[0], parts[snapshot.blobs[0].digest])
    with pytest.raises(StoreError, match="not whole"):
        store.finish_snapshot(snapshot, LARGE)
    assert store.state(snapshot.head.digest) is None
    assert store.missing_parts(snapshot) == snapshot.blobs[1:]


def test_a_snapshot_of_another_size_is_refused(store: Store) -> None:
    snapshot, parts = large_snapshot(store)
    for blob in snapshot.blobs:
        store.put_part(snapshot, blob, parts[blob.digest])
    with pytest.raises(StoreError, match="bytes"):
        store.finish_snapshot(snapshot, LARGE + 1)
    assert store.state(snapshot.head.digest) is None


def test_bytes_that_are_not_the_part_are_refused(store: Store) -> None:
    snapshot, parts = large_snapshot(store)
    first, second = snapshot.blobs[:2]
    with pytest.raises(ValueError, match="not a part"):
        store.put_part(snapshot, first, parts[second.digest])
    with pytest.raises(ValueError, match="not a part"):
        store.put_part(snapshot, BlobRef(digest=Digest(bytes(32)), size=3), b"abc")
    assert store.missing_parts(snapshot) == snapshot.blobs


def test_a_part_that_occurs_twice_is_fetched_once(store: Store) -> None:
    zeros = MemoryStore().create_state(head_of(50), lambda array: None, 2048)
    assert zeros.blobs[0] == zeros.blobs[1]
    assert store.missing_parts(zeros) == zeros.blobs[:1]
    store.put_part(zeros, zeros.blobs[0], bytes(16 << 20))
    assert store.missing_parts(zeros) == ()
    store.finish_snapshot(zeros, 2048)
    assert store.snapshot_of(head_of(50).digest) == zeros


def test_another_snapshot_takes_the_place_of_one_that_was_broken_off(store: Store) -> None:
    old, old_parts = large_snapshot(store, 50)
    new, new_parts = large_snapshot(store, 60)
    store.put_part(old, old.blobs[0], old_parts[old.blobs[0].digest])
    store.put_part(new, new.blobs[0], new_parts[new.blobs[0].digest])
    assert store.missing_parts(new) == new.blobs[1:]
    assert store.missing_parts(old) == old.blobs


def test_a_pruned_snapshot_can_be_fetched_again(store: Store) -> None:
    play(store, 12)
    snapshot, data = snapshot_for(5, "b"), content(5, "b")
    for _ in range(2):
        store.put_part(snapshot, snapshot.blobs[0], data)
        store.finish_snapshot(snapshot, CHUNKS)
        assert store.snapshot_of(snapshot.head.digest) == snapshot
        store.prune((), 2, 10)
        assert store.snapshot_of(snapshot.head.digest) is None


def test_a_fetched_snapshot_takes_the_place_of_a_state_that_differs(store: Store) -> None:
    wrong = store.create_state(head_of(4), filling(99), CHUNKS)
    snapshot = snapshot_for(4)
    store.put_part(snapshot, snapshot.blobs[0], content(4))
    store.finish_snapshot(snapshot, CHUNKS)
    state = store.state(head_of(4).digest)
    assert state is not None
    assert state.tobytes() == content(4)
    assert store.snapshot_of(head_of(4).digest) == snapshot
    assert store.open_blob(wrong.blobs[0].digest) is None
