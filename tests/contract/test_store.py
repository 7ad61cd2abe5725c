"""What every store answers: the same claims on the memory twin and on the disk."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from blake3 import blake3

from demoloco.errors import StoreError
from demoloco.store.disk import open_disk_store
from demoloco.store.memory import MemoryStore
from demoloco.store.port import Store
from demoloco.types import Digest, Head
from tests.store.rounds import (
    CHUNKS,
    GENESIS,
    content,
    filling,
    head_of,
    manifest_of,
    packet_of,
    play,
    play_round,
    read_all,
    snapshot_for,
)


@pytest.fixture(params=["memory", "disk"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    in_memory = request.param == "memory"
    opened: Store = MemoryStore() if in_memory else open_disk_store(tmp_path / "home")
    yield opened
    opened.close()


# -- blobs ----------------------------------------------------------------------------------------
def test_a_blob_is_kept_under_its_digest(store: Store) -> None:
    digest = store.put(b"packet")
    assert digest == blake3(b"packet").digest()
    assert store.get(digest) == b"packet"
    assert store.put(b"packet") == digest


def test_an_empty_blob_is_a_blob(store: Store) -> None:
    assert store.get(store.put(b"")) == b""


def test_an_unknown_blob_is_none(store: Store) -> None:
    assert store.get(Digest(bytes(32))) is None
    assert store.open_blob(Digest(bytes(32))) is None


def test_a_blob_is_read_in_ranges_that_end_with_it(store: Store) -> None:
    reader = store.open_blob(store.put(b"0123456789"))
    assert reader is not None
    assert reader.read(2, 3) == b"234"
    assert reader.read(8, 100) == b"89"
    assert reader.read(10, 1) == b""
    assert reader.read(99, 1) == b""
    with pytest.raises(ValueError, match="no bytes at"):
        reader.read(-1, 1)
    reader.close()


def test_a_reader_outlives_its_blob(store: Store) -> None:
    reader = store.open_blob(store.put(b"old packet"))
    assert reader is not None
    play(store, 30)
    assert store.get(Digest(blake3(b"old packet").digest())) is None
    assert reader.read(0, 100) == b"old packet"
    reader.close()


# -- the log --------------------------------------------------------------------------------------
def test_a_manifest_is_kept_and_does_not_move_the_head(store: Store) -> None:
    sealed = manifest_of(1)
    assert store.append(sealed, head_of(1), GENESIS.digest) == head_of(1).digest
    assert store.append(sealed, head_of(1), GENESIS.digest) == head_of(1).digest
    assert store.manifest(head_of(1).digest) == sealed
    assert store.manifest(head_of(2).digest) is None
    assert store.head() is None


def test_a_manifest_under_another_digest_is_refused(store: Store) -> None:
    with pytest.raises(ValueError, match="not the digest"):
        store.append(manifest_of(1), head_of(2), GENESIS.digest)
    assert store.manifest(head_of(2).digest) is None


def test_manifests_come_head_first_as_far_as_they_are_kept(store: Store) -> None:
    for round_ in range(3, 7):
        store.append(manifest_of(round_), head_of(round_), head_of(round_ - 1).digest)
    assert store.manifests(head_of(6).digest, 2) == [manifest_of(6), manifest_of(5)]
    assert store.manifests(head_of(5).digest, 99) == [manifest_of(r) for r in (5, 4, 3)]
    assert list(store.manifests(head_of(5).digest, 0)) == []
    assert list(store.manifests(head_of(9).digest, 5)) == []


def test_a_fork_has_its_own_way_to_the_genesis(store: Store) -> None:
    for round_, fork, parent in ((1, "", GENESIS), (2, "", head_of(1)), (2, "b", head_of(1))):
        store.append(manifest_of(round_, fork), head_of(round_, fork), parent.digest)
    assert store.manifests(head_of(2).digest, 9) == [manifest_of(2), manifest_of(1)]
    assert store.manifests(head_of(2, "b").digest, 9) == [manifest_of(2, "b"), manifest_of(1)]


# -- agreed states --------------------------------------------------------------------------------
def test_a_new_home_has_no_head(store: Store) -> None:
    assert store.head() is None
    assert store.served_snapshot() is None
    assert store.state(GENESIS.digest) is None
    assert store.state_path(GENESIS.digest) is None
    assert store.snapshot_of(GENESIS.digest) is None


def test_a_state_starts_as_zeros_and_is_read_as_it_was_filled(store: Store) -> None:
    def fill(array: np.ndarray) -> None:
        assert array.shape == (CHUNKS, 4096)
        assert array.dtype == np.float32
        assert not array.any()
        array[1, 7] = 3.5

    store.create_state(head_of(4), fill, CHUNKS)
    state = store.state(head_of(4).digest)
    assert state is not None
    assert state[1, 7] == 3.5
    assert np.count_nonzero(state) == 1


def test_a_state_is_read_only(store: Store) -> None:
    store.create_state(head_of(4), filling(4), CHUNKS)
    state = store.state(head_of(4).digest)
    assert state is not None
    with pytest.raises(ValueError, match="read-only"):
        state[0, 0] = 1


def test_a_states_file_is_raw_float32(store: Store) -> None:
    store.create_state(head_of(4), filling(4), CHUNKS)
    path = store.state_path(head_of(4).digest)
    assert path is not None
    assert path.read_bytes() == content(4)


def test_a_states_snapshot_tells_its_blobs(store: Store) -> None:
    snapshot = store.create_state(head_of(4), filling(4), CHUNKS)
    assert snapshot == snapshot_for(4)
    assert store.snapshot_of(head_of(4).digest) == snapshot
    assert b"".join(read_all(store, blob) for blob in snapshot.blobs) == content(4)


def test_a_large_state_has_blobs_of_at_most_16_mib(store: Store) -> None:
    chunks = 1500
    snapshot = store.create_state(head_of(1), filling(1), chunks)
    assert [blob.size for blob in snapshot.blobs] == [16 << 20, chunks * 16384 - (16 << 20)]
    state = store.state(head_of(1).digest)
    assert state is not None
    raw = state.tobytes()
    assert read_all(store, snapshot.blobs[0]) == raw[: 16 << 20]
    assert read_all(store, snapshot.blobs[1]) == raw[16 << 20 :]


def test_a_state_that_exists_is_not_filled_again(store: Store) -> None:
    first = store.create_state(head_of(4), filling(4), CHUNKS)
    assert store.create_state(head_of(4), filling(5), CHUNKS) == first
    state = store.state(head_of(4).digest)
    assert state is not None
    assert state.tobytes() == content(4)


def test_a_fill_that_fails_leaves_no_state(store: Store) -> None:
    def fail(array: np.ndarray) -> None:
        array[:] = 1
        raise RuntimeError("worker gone")

    with pytest.raises(RuntimeError, match="worker gone"):
        store.create_state(head_of(4), fail, CHUNKS)
    assert store.state(head_of(4).digest) is None
    store.create_state(head_of(4), filling(4), CHUNKS)
    assert store.snapshot_of(head_of(4).digest) == snapshot_for(4)


def test_a_state_without_chunks_is_refused(store: Store) -> None:
    with pytest.raises(ValueError, match="0 chunks"):
        store.create_state(head_of(4), filling(4), 0)


def test_the_head_moves_only_to_a_kept_state(store: Store) -> None:
    with pytest.raises(StoreError, match="round 4"):
        store.move_head(head_of(4))
    store.create_state(head_of(4), filling(4), CHUNKS)
    assert store.head() is None
    store.move_head(head_of(4))
    assert store.head() == head_of(4)


def test_the_head_may_move_to_a_fork(store: Store) -> None:
    play(store, 3)
    fork = head_of(2, "b")
    store.append(manifest_of(2, "b"), fork, head_of(1).digest)
    store.create_state(fork, filling(2, "b"), CHUNKS)
    store.move_head(fork)
    assert store.head() == fork


# -- snapshots for others -------------------------------------------------------------------------
def test_the_newest_snapshot_round_is_served(store: Store) -> None:
    store.snapshot_every = 4
    play(store, 3, prune=False)
    assert store.served_snapshot() == snapshot_for(0)
    play(store, 9, first=4, prune=False)
    assert store.served_snapshot() == snapshot_for(8)
    assert store.snapshots() == (snapshot_for(8), snapshot_for(4), snapshot_for(0))


def test_without_a_snapshot_round_the_heads_state_is_served(store: Store) -> None:
    store.create_state(head_of(7), filling(7), CHUNKS)
    store.move_head(head_of(7))
    assert store.served_snapshot() == snapshot_for(7)


def test_a_forks_snapshot_round_is_not_served(store: Store) -> None:
    play(store, 11)
    store.snapshot_every = 10
    store.create_state(head_of(10, "b"), filling(10, "b"), CHUNKS)
    store.create_state(head_of(20, "b"), filling(20, "b"), CHUNKS)
    assert store.served_snapshot() == snapshot_for(10)


# -- housekeeping ---------------------------------------------------------------------------------
def test_a_note_is_the_last_one_of_its_name(store: Store) -> None:
    assert store.noted("run") is None
    store.note("run", b"one")
    store.note("run", b"two")
    store.note("peers-known", b"")
    assert store.noted("run") == b"two"
    assert store.noted("peers-known") == b""


def test_a_store_knows_what_was_ever_noted(store: Store) -> None:
    assert not store.is_noted("run")
    store.note("run", b"one")
    assert store.is_noted("run")
    assert not store.is_noted("peers-known")


@pytest.mark.parametrize("key", ["", "../head", "a/b", "a.b", "x" * 101])
def test_a_note_that_cannot_be_a_file_is_refused(store: Store, key: str) -> None:
    with pytest.raises(ValueError, match="name of a note"):
        store.note(key, b"value")


def test_the_checkpoint_has_a_directory(store: Store) -> None:
    assert store.checkpoint_dir().is_dir()
    assert store.checkpoint_dir() == store.checkpoint_dir()


def test_the_store_tells_how_much_it_holds(store: Store) -> None:
    before = store.used_bytes()
    store.put(bytes(100_000))
    assert store.used_bytes() >= before + 100_000


def test_the_log_tells_its_links_without_reading_manifests(store: Store) -> None:
    play(store, 4, prune=False)
    links = store.lineage(head_of(4).digest, 9)
    assert [link.head for link in links] == [head_of(n) for n in (4, 3, 2, 1)][: len(links)]
    assert [link.parent for link in links[:-1]] == [link.head.digest for link in links[1:]]
    assert all(link.packets for link in links)
    assert store.lineage(head_of(4).digest, 2) == links[:2]
    assert store.lineage(head_of(4).digest, -1) == store.lineage(Digest(bytes(32)), 3) == []


def test_prune_without_a_head_keeps_all(store: Store) -> None:
    digest = store.put(b"early packet")
    store.prune((), 1, 10)
    assert store.get(digest) == b"early packet"


def kept_rounds(store: Store, last: int) -> tuple[list[int], list[int], list[int]]:
    """Rounds whose states, manifests, packets are kept."""
    rounds = range(last + 1)
    return (
        [r for r in rounds if store.snapshot_of(head_of(r).digest)],
        [r for r in rounds if store.manifest(head_of(r).digest)],
        [r for r in rounds if store.get(Digest(blake3(packet_of(r)).digest()))],
    )


def test_prune_keeps_what_joiners_and_the_last_rounds_need(store: Store) -> None:
    play(store, 34, prune=False)
    store.prune((), 3, 10)
    states, manifests, packets = kept_rounds(store, 34)
    assert states == [20, 30, 32, 33, 34]
    assert manifests == list(range(20, 35))
    assert packets == list(range(21, 35))


def test_prune_keeps_the_last_rounds_when_a_snapshot_round_was_just_reached(store: Store) -> None:
    play(store, 20, prune=False)
    store.prune((), 14, 10)
    states, manifests, packets = kept_rounds(store, 20)
    assert states == list(range(7, 21))
    assert manifests == list(range(6, 21))
    assert packets == list(range(7, 21))


def test_prune_keeps_what_it_is_told_to(store: Store) -> None:
    genesis = store.put(b"genesis")
    play(store, 34, prune=False)
    for _ in range(2):
        store.prune([head_of(3).digest, genesis], 3, 10)
    states, manifests, _ = kept_rounds(store, 34)
    assert states == [3, 20, 30, 32, 33, 34]
    assert manifests == [3, *range(20, 35)]
    assert store.get(genesis) == b"genesis"


def test_prune_keeps_of_the_log_what_it_is_told_to_without_the_state(store: Store) -> None:
    play(store, 34, prune=False)
    kept = head_of(3).digest
    store.prune((), 3, 10, [kept])
    assert store.manifest(kept) is not None
    assert store.state(kept) is None
    assert store.manifest(head_of(4).digest) is None


def test_prune_drops_a_lost_fork_and_keeps_what_is_ahead(store: Store) -> None:
    play(store, 12)
    for round_ in (12, 13):
        store.create_state(head_of(round_, "b"), filling(round_, "b"), CHUNKS)
    store.prune((), 3, 10)
    assert store.snapshot_of(head_of(12, "b").digest) is None
    assert store.snapshot_of(head_of(13, "b").digest) is not None


def test_prune_keeps_packets_fetched_long_before_their_round(store: Store) -> None:
    play(store, 1)
    for round_ in range(2, 25):
        store.put(packet_of(round_))
    store.prune((), 2, 10)
    for round_ in range(2, 25):
        play_round(store, round_)
    assert kept_rounds(store, 24)[2] == list(range(11, 25))


def test_a_packet_that_no_manifest_names_goes_with_its_round(store: Store) -> None:
    play(store, 5)
    digest = store.put(b"left out")
    play(store, 25, first=6)
    assert store.get(digest) is None
    again = store.put(b"left out")
    store.prune((), 3, 10)
    assert store.get(again) == b"left out"


def test_a_blob_that_is_put_again_starts_a_new_life(store: Store) -> None:
    play(store, 5)
    digest = store.put(b"left out")
    play(store, 15, first=6)
    store.put(b"left out")
    play(store, 25, first=16)
    assert store.get(digest) == b"left out"
    play(store, 45, first=26)
    assert store.get(digest) is None


def test_300_rounds_take_no_more_than_30(store: Store) -> None:
    play(store, 30)
    early = store.used_bytes()
    play(store, 300, first=31)
    assert store.used_bytes() <= early * 1.05
    assert store.head() == head_of(300)
    states, manifests, packets = kept_rounds(store, 300)
    assert states == [290, 299, 300]
    assert manifests == list(range(290, 301))
    assert packets == list(range(291, 301))


def test_close_may_be_called_twice(store: Store) -> None:
    store.put(b"x")
    store.close()
    store.close()


def test_heads_are_compared_whole(store: Store) -> None:
    head = Head(digest=head_of(1).digest, round=head_of(1).round, samples_total=77, rank=3)
    store.create_state(head, filling(1), CHUNKS)
    store.move_head(head)
    assert store.head() == head
