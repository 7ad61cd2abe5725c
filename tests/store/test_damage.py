"""What was damaged on disk is missing, never wrong, and the start says so."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
from blake3 import blake3

from demoloco.errors import ConfigError, StoreError
from demoloco.store.disk import DiskStore, open_disk_store
from demoloco.types import Digest
from tests.store.rounds import (
    CHUNKS,
    content,
    filling,
    head_of,
    manifest_of,
    packet_of,
    play,
    play_round,
    snapshot_for,
)


def flip(path: Path) -> None:
    """Change one bit in the middle."""
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def halve(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def empty(path: Path) -> None:
    path.write_bytes(b"")


def lengthen(path: Path) -> None:
    path.write_bytes(path.read_bytes() + b"\0")


DAMAGE: list[Callable[[Path], None]] = [flip, halve, empty, lengthen, Path.unlink]


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A home after four rounds with a fetch under way."""
    home = tmp_path_factory.mktemp("damage") / "base"
    with closing(open_disk_store(home)) as store:
        play(store, 4)
        store.note("run", b"one")
        snapshot = snapshot_for(50)
        store.put_part(snapshot, snapshot.blobs[0], content(50))
    return home


@pytest.fixture
def home(base: Path, tmp_path: Path) -> Path:
    return shutil.copytree(base, tmp_path / "home")


def state_file(home: Path, round_: int) -> Path:
    return next((home / "states").glob(f"{round_:08d}-*.f32"))


def assert_right_or_missing(store: DiskStore) -> None:
    for round_ in range(5):
        digest = head_of(round_).digest
        state = store.state(digest)
        assert state is None or state.tobytes() == content(round_)
        assert store.manifest(digest) in (None, manifest_of(round_))
        assert store.get(Digest(blake3(packet_of(round_)).digest())) in (None, packet_of(round_))
    assert store.noted("run") in (None, b"one")
    assert store.is_noted("run") or store.noted("run") is None
    assert store.missing_parts(snapshot_for(50)) in ((), snapshot_for(50).blobs)
    head = store.head()
    assert head is None or store.state(head.digest) is not None


@pytest.mark.parametrize("damage", DAMAGE, ids=lambda damage: damage.__name__)
def test_damage_to_any_file_is_never_handed_out(
    base: Path, tmp_path: Path, damage: Callable[[Path], None]
) -> None:
    files = sorted(path.relative_to(base) for path in base.rglob("*") if path.is_file())
    assert len(files) > 15
    for number, file in enumerate(files):
        if file.name in ("format", "lock"):
            continue
        home = shutil.copytree(base, tmp_path / str(number))
        damage(home / file)
        with closing(open_disk_store(home)) as store:
            assert_right_or_missing(store)
            play_round(store, 5)
            assert store.head() == head_of(5)
        with closing(open_disk_store(home)) as store:
            assert_right_or_missing(store)
            assert store.head() == head_of(5)


@pytest.mark.parametrize("damage", DAMAGE, ids=lambda damage: damage.__name__)
def test_a_damaged_head_falls_back_to_the_newest_whole_state(
    home: Path, damage: Callable[[Path], None], caplog: pytest.LogCaptureFixture
) -> None:
    damage(state_file(home, 4))
    with closing(open_disk_store(home)) as store:
        assert store.head() == head_of(3)
        assert store.state(head_of(4).digest) is None
        assert store.manifest(head_of(4).digest) == manifest_of(4)
    assert "head lost round=4 action=go on from round 3" in caplog.text


def test_a_head_that_is_gone_falls_back_to_the_newest_whole_state(
    home: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (home / "head").unlink()
    with closing(open_disk_store(home)) as store:
        assert store.head() == head_of(4)
    assert "head lost round=unknown action=go on from round 4" in caplog.text


def test_a_state_that_was_fetched_and_never_was_the_head_is_not_taken_for_one(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with closing(open_disk_store(tmp_path / "home")) as store:
        store.append(manifest_of(4), head_of(4), head_of(3).digest)
        store.create_state(head_of(4), filling(4), CHUNKS)
    with closing(open_disk_store(tmp_path / "home")) as store:
        assert store.head() is None
    assert "head lost" not in caplog.text


def test_a_head_without_any_whole_state_is_none(
    home: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for file in (home / "states").glob("*.f32"):
        flip(file)
    with closing(open_disk_store(home)) as store:
        assert store.head() is None
        assert store.served_snapshot() is None
    assert "action=fetch a snapshot" in caplog.text


def test_a_fall_back_stays_on_the_heads_own_chain(home: Path) -> None:
    with closing(open_disk_store(home)) as store:
        fork = head_of(3, "b")
        store.append(manifest_of(3, "b"), fork, head_of(1).digest)
        store.create_state(fork, lambda array: None, 2)
        store.move_head(fork)
    flip(next((home / "states").glob(f"*{fork.digest.hex()}.f32")))
    with closing(open_disk_store(home)) as store:
        assert store.head() == head_of(0)


def test_a_lost_pointer_is_replaced_by_the_heaviest_state(
    home: Path, caplog: pytest.LogCaptureFixture
) -> None:
    flip(home / "head")
    with closing(open_disk_store(home)) as store:
        assert store.head() == head_of(4)
    assert "head lost round=unknown action=go on from round 4" in caplog.text


def test_damage_to_an_older_state_is_found_when_it_is_wanted(home: Path) -> None:
    flip(state_file(home, 3))
    with closing(open_disk_store(home)) as store:
        assert store.head() == head_of(4)
        assert store.open_blob(snapshot_for(3).blobs[0].digest) is None
        assert store.state_path(head_of(3).digest) is None
        assert store.snapshot_of(head_of(3).digest) is None
        assert not list((home / "states").glob("00000003-*"))


def test_a_damaged_blob_is_removed_and_can_be_put_again(home: Path) -> None:
    digest = Digest(blake3(packet_of(4)).digest())
    flip(home / "blobs" / digest.hex()[:2] / digest.hex())
    with closing(open_disk_store(home)) as store:
        assert store.open_blob(digest) is None
        assert store.get(digest) is None
        store.put(packet_of(4))
        assert store.get(digest) == packet_of(4)


def test_a_blob_that_rots_while_the_node_runs_is_not_handed_out(home: Path) -> None:
    digest = Digest(blake3(packet_of(4)).digest())
    with closing(open_disk_store(home)) as store:
        assert store.get(digest) == packet_of(4)
        flip(home / "blobs" / digest.hex()[:2] / digest.hex())
        assert store.get(digest) is None


def test_a_manifest_that_rots_while_the_node_runs_is_not_handed_out(home: Path) -> None:
    with closing(open_disk_store(home)) as store:
        flip(next((home / "log").glob("00000003-*")))
        assert store.manifests(head_of(4).digest, 9) == [manifest_of(4)]
        assert store.manifest(head_of(3).digest) is None
        store.append(manifest_of(3), head_of(3), head_of(2).digest)
        assert len(store.manifests(head_of(4).digest, 9)) == 4


def test_a_head_whose_state_is_lost_while_the_node_runs_falls_back(home: Path) -> None:
    flip(state_file(home, 3))
    with closing(open_disk_store(home)) as store:
        fork = head_of(4, "b")
        store.append(manifest_of(4, "b"), fork, head_of(3).digest)
        store.create_state(fork, lambda array: None, 2)
        store.move_head(fork)
        next((home / "states").glob(f"*{fork.digest.hex()}.f32")).unlink()
        assert store.state(fork.digest) is None
        assert store.head() == head_of(0)


def test_what_the_disk_cannot_read_is_missing(
    home: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(descriptor: int, length: int, offset: int) -> bytes:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with closing(open_disk_store(home)) as store:
        reader = store.open_blob(Digest(blake3(packet_of(4)).digest()))
        assert reader is not None
        with monkeypatch.context() as broken, reader:
            broken.setattr(os, "pread", fail)
            assert store.get(Digest(blake3(packet_of(3)).digest())) is None
            assert store.state(head_of(3).digest) is None
            with pytest.raises(StoreError, match="Input/output error"):
                reader.read(0, 1)
    assert "unreadable" in caplog.text


def test_a_blob_that_was_cut_short_under_its_reader_is_an_error(home: Path) -> None:
    digest = Digest(blake3(packet_of(4)).digest())
    with closing(open_disk_store(home)) as store:
        reader = store.open_blob(digest)
        assert reader is not None
        os.truncate(home / "blobs" / digest.hex()[:2] / digest.hex(), 5)
        with reader, pytest.raises(StoreError, match=r"ends .* bytes early"):
            reader.read(0, reader.size)


def test_a_blob_that_somebody_deleted_is_missing(home: Path) -> None:
    digest = Digest(blake3(packet_of(4)).digest())
    with closing(open_disk_store(home)) as store:
        assert store.get(digest) == packet_of(4)
        (home / "blobs" / digest.hex()[:2] / digest.hex()).unlink()
        assert store.open_blob(digest) is None
        assert store.get(digest) is None
        store.put(packet_of(4))
        assert store.get(digest) == packet_of(4)


def test_an_old_fetch_is_dropped_when_the_head_has_passed_it(home: Path) -> None:
    with closing(open_disk_store(home)) as store:
        store.create_state(head_of(60), lambda array: None, 2)
        store.move_head(head_of(60))
        store.prune((), 2, 10)
        assert list((home / "incoming").iterdir()) == []


def test_a_fetch_of_the_wrong_length_starts_afresh(home: Path) -> None:
    snapshot = snapshot_for(50)
    os.truncate(next((home / "incoming").iterdir()), 100)
    with closing(open_disk_store(home)) as store:
        assert store.missing_parts(snapshot) == snapshot.blobs
        store.put_part(snapshot, snapshot.blobs[0], content(50))
        store.finish_snapshot(snapshot, 2)
        assert store.snapshot_of(head_of(50).digest) == snapshot


def test_a_damaged_part_of_a_fetch_is_fetched_again(home: Path) -> None:
    snapshot = snapshot_for(50)
    with closing(open_disk_store(home)) as store:
        assert store.missing_parts(snapshot) == ()
    flip(next((home / "incoming").iterdir()))
    with closing(open_disk_store(home)) as store:
        assert store.missing_parts(snapshot) == snapshot.blobs


def test_leftovers_of_a_crash_are_removed(home: Path) -> None:
    (home / "tmp" / "0").write_bytes(b"half a packet")
    (home / "states" / "00000009-ab.f32").write_bytes(b"no description")
    (home / "states" / "00000009-cd.json").write_bytes(b"no state")
    with closing(open_disk_store(home)) as store:
        assert store.head() == head_of(4)
        assert not list((home / "tmp").iterdir())
        assert not list((home / "states").glob("00000009-*"))


def test_a_home_of_another_format_is_refused(home: Path) -> None:
    (home / "format").write_text("2\n")
    with pytest.raises(ConfigError, match="update demoloco-node"):
        open_disk_store(home)
    (home / "format").write_text("1\n")
    with closing(open_disk_store(home)) as store:
        assert store.head() == head_of(4)
