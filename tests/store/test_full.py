"""A disk that has no room, or cannot write: an error that says so, and nothing torn."""

from __future__ import annotations

import errno
import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from demoloco.errors import ConfigError, StoreError
from demoloco.store.disk import DiskStore, open_disk_store
from tests.store.rounds import (
    CHUNKS,
    GENESIS,
    content,
    filling,
    head_of,
    manifest_of,
    play,
    play_round,
    snapshot_for,
)


@contextmanager
def files_of_at_most(size: int) -> Iterator[None]:
    """The kernel refuses to write beyond this size, as a full disk would."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path / "home"


@pytest.fixture
def store(home: Path) -> Iterator[DiskStore]:
    opened = open_disk_store(home)
    play(opened, 3)
    yield opened
    opened.close()


def assert_nothing_torn(store: DiskStore, home: Path) -> None:
    assert list((home / "tmp").iterdir()) == []
    assert store.head() == head_of(3)
    store.close()
    again = open_disk_store(home)
    assert again.head() == head_of(3)
    play_round(again, 4)
    assert again.head() == head_of(4)
    again.close()


def test_no_room_for_a_blob(store: DiskStore, home: Path) -> None:
    with (
        files_of_at_most(5000),
        pytest.raises(StoreError, match=r"100000 bytes needed, \d+ free"),
    ):
        store.put(bytes(100_000))
    assert not [file for file in home.rglob("*") if file.is_file() and file.stat().st_size == 5000]
    assert_nothing_torn(store, home)


def test_no_room_for_a_state_is_found_before_it_is_filled(store: DiskStore, home: Path) -> None:
    filled: list[object] = []
    with (
        files_of_at_most(5000),
        pytest.raises(StoreError, match=rf"round 4: {CHUNKS * 16384} bytes needed, \d+ free"),
    ):
        store.create_state(head_of(4), filled.append, CHUNKS)
    assert filled == []
    assert store.state(head_of(4).digest) is None
    assert_nothing_torn(store, home)


def test_a_state_has_its_room_on_the_disk_before_it_is_filled(home: Path) -> None:
    room: list[int] = []

    def at(step: str) -> None:
        if step == "state reserved":
            room.extend(draft.stat().st_blocks * 512 for draft in (home / "tmp").iterdir())

    store = open_disk_store(home, at=at)
    store.create_state(GENESIS, filling(0), CHUNKS)
    store.close()
    assert len(room) == 1
    assert room[0] >= CHUNKS * 16384


def test_no_room_for_a_snapshot_is_found_with_its_first_part(store: DiskStore, home: Path) -> None:
    snapshot = snapshot_for(50)
    with (
        files_of_at_most(5000),
        pytest.raises(StoreError, match=rf"round 50: {CHUNKS * 16384} bytes needed"),
    ):
        store.put_part(snapshot, snapshot.blobs[0], content(50))
    assert list((home / "incoming").iterdir()) == []
    assert store.missing_parts(snapshot) == snapshot.blobs
    store.put_part(snapshot, snapshot.blobs[0], content(50))
    store.finish_snapshot(snapshot, CHUNKS)
    assert_nothing_torn(store, home)


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT])
def test_a_full_disk_stops_each_small_write(
    store: DiskStore, home: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    def refuse(descriptor: int, data: bytes) -> int:
        raise OSError(code, os.strerror(code))

    with monkeypatch.context() as full:
        full.setattr(os, "write", refuse)
        for act in (
            lambda: store.put(b"new packet"),
            lambda: store.append(manifest_of(4), head_of(4), head_of(3).digest),
            lambda: store.create_state(head_of(4), filling(4), CHUNKS),
            lambda: store.move_head(head_of(2)),
            lambda: store.note("run", b"x"),
        ):
            with pytest.raises(StoreError, match=r"no room to .* bytes needed, \d+ free in"):
                act()
    assert store.manifest(head_of(4).digest) is None
    assert store.state(head_of(4).digest) is None
    assert store.noted("run") is None
    assert_nothing_torn(store, home)


def test_a_write_that_the_kernel_cuts_short_goes_on(
    store: DiskStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = os.write
    with monkeypatch.context() as slow:
        slow.setattr(os, "write", lambda descriptor, data: write(descriptor, data[:7]))
        digest = store.put(b"a packet of more than seven bytes")
    assert store.get(digest) == b"a packet of more than seven bytes"


def test_another_failure_of_the_disk_says_what_was_tried(
    store: DiskStore, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(descriptor: int) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with monkeypatch.context() as broken:
        broken.setattr(os, "fsync", fail)
        with pytest.raises(StoreError, match=r"cannot write the note: .*Input/output error"):
            store.note("run", b"x")
        with pytest.raises(StoreError, match=r"state of round 4: .*Input/output error"):
            store.create_state(head_of(4), filling(4), CHUNKS)
    assert_nothing_torn(store, home)


def test_a_file_system_that_cannot_reserve_is_written_with_zeros(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(descriptor: int, offset: int, length: int) -> None:
        raise OSError(errno.EOPNOTSUPP, os.strerror(errno.EOPNOTSUPP))

    monkeypatch.setattr(os, "posix_fallocate", refuse)
    store = open_disk_store(home)
    snapshot = store.create_state(GENESIS, filling(0), 100)
    path = store.state_path(GENESIS.digest)
    assert path is not None
    assert path.stat().st_size == 100 * 16384 == sum(blob.size for blob in snapshot.blobs)
    store.close()


def test_a_home_that_is_a_file_is_refused(home: Path) -> None:
    home.write_text("mine")
    with pytest.raises(ConfigError, match="not a directory; move that file away or choose"):
        open_disk_store(home)
    with pytest.raises(ConfigError, match="not a directory"):
        open_disk_store(home / "below")


@pytest.mark.parametrize("call", ["mkdir", "open"])
def test_a_home_that_cannot_be_written_is_refused(
    home: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    def refuse(*args: object, **kwargs: object) -> int:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    with monkeypatch.context() as read_only:
        read_only.setattr(os, call, refuse)
        with pytest.raises(ConfigError, match=r"Read-only file system.*choose another --home"):
            open_disk_store(home)


def test_a_new_home_is_its_users_alone(home: Path) -> None:
    store = open_disk_store(home)
    store.close()
    folders = [home, *(path for path in home.iterdir() if path.is_dir())]
    assert {folder.stat().st_mode & 0o777 for folder in folders} == {0o700}
