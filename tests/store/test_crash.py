"""After a crash at any step a home is as it was before or as it would have been, never between."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
from blake3 import blake3

from demoloco.store.disk import DiskStore, open_disk_store
from demoloco.types import Digest
from tests.store.rounds import (
    CHUNKS,
    content,
    head_of,
    manifest_of,
    packet_of,
    play,
    play_round,
    snapshot_for,
)

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A home after three rounds."""
    home = tmp_path_factory.mktemp("crash") / "base"
    with closing(open_disk_store(home)) as store:
        play(store, 3)
        store.note("run", b"old")
    return home


def crashed(scene: str, base: Path, out: Path) -> list[tuple[str, Path]]:
    """Each step of a scene with the home that a crash there leaves."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.store.crash", scene, base, out],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    steps = done.stdout.splitlines()
    return [(step, out / str(number)) for number, step in enumerate(steps)]


def assert_three_rounds(store: DiskStore) -> None:
    """Nothing of the rounds before the crash is lost."""
    for round_ in (2, 3):
        state = store.state(head_of(round_).digest)
        assert state is not None
        assert state.tobytes() == content(round_)
    for round_ in (1, 2, 3):
        assert store.manifest(head_of(round_).digest) == manifest_of(round_)
        assert store.get(packet_digest(round_)) == packet_of(round_)


def packet_digest(round_: int) -> Digest:
    return Digest(blake3(packet_of(round_)).digest())


def test_a_round_is_whole_up_to_the_step_of_the_crash(base: Path, tmp_path: Path) -> None:
    reached = set()
    for step, home in crashed("round", base, tmp_path / "out"):
        reached.add(step)
        with closing(open_disk_store(home)) as store:
            state = store.state(head_of(4).digest)
            assert state is None or state.tobytes() == content(4)
            assert store.manifest(head_of(4).digest) in (None, manifest_of(4))
            assert store.get(packet_digest(4)) in (None, packet_of(4))
            head = store.head()
            assert head in (head_of(3), head_of(4))
            if "head durable" in reached:
                assert head == head_of(4)
            if head == head_of(4) or "state durable" in reached:
                assert state is not None
            if "manifest durable" in reached:
                assert store.manifest(head_of(4).digest) == manifest_of(4)
            if "blob durable" in reached:
                assert store.get(packet_digest(4)) == packet_of(4)
            if head == head_of(3):
                assert_three_rounds(store)
            assert list((home / "tmp").iterdir()) == []
            play_round(store, 4)
            assert store.head() == head_of(4)
    assert {"blob written", "manifest renamed", "state filled", "state renamed"} <= reached
    assert {"description durable", "head synced", "head renamed", "head durable"} <= reached


def test_a_fetch_goes_on_where_a_crash_ended_it(base: Path, tmp_path: Path) -> None:
    snapshot = snapshot_for(50)
    reached = set()
    for step, home in crashed("fetch", base, tmp_path / "out"):
        reached.add(step)
        with closing(open_disk_store(home)) as store:
            state = store.state(head_of(50).digest)
            assert state is None or state.tobytes() == content(50)
            assert store.head() in (head_of(3), head_of(50))
            assert store.head() == head_of(50) or "head durable" not in reached
            assert_three_rounds(store)
            missing = store.missing_parts(snapshot)
            if "part synced" in reached:
                assert missing == ()
            for part in missing:
                store.put_part(snapshot, part, content(50))
            store.finish_snapshot(snapshot, CHUNKS)
            store.move_head(head_of(50))
            assert store.snapshot_of(head_of(50).digest) == snapshot
            assert list((home / "incoming").iterdir()) == []
    assert {"fetch durable", "part written", "part synced", "state durable"} <= reached


def test_a_note_is_old_or_new(base: Path, tmp_path: Path) -> None:
    found = []
    for _, home in crashed("note", base, tmp_path / "out"):
        with closing(open_disk_store(home)) as store:
            found.append(store.noted("run"))
    assert found == [b"old"] * 2 + [b"new"] * 2


def test_a_first_start_can_be_repeated(tmp_path: Path) -> None:
    (tmp_path / "base").mkdir()
    homes = crashed("start", tmp_path / "base", tmp_path / "out")
    assert homes
    for _, home in homes:
        with closing(open_disk_store(home)) as store:
            assert store.head() is None
            play(store, 1)
            assert store.head() == head_of(1)


class Trace:
    """What is made durable, in order: ("fsync", inode) and ("named in", inode of the folder)."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.events: list[tuple[str, int]] = []
        self.synced: set[int] = set()
        self._fsync, self._replace = os.fsync, os.replace
        monkeypatch.setattr(os, "fsync", self.fsync)
        monkeypatch.setattr(os, "replace", self.replace)

    def fsync(self, descriptor: int) -> None:
        self._fsync(descriptor)
        inode = os.fstat(descriptor).st_ino
        self.synced.add(inode)
        self.events.append(("fsync", inode))

    def replace(self, source: Path, target: Path) -> None:
        assert source.stat().st_ino in self.synced, "named before its content is durable"
        self._replace(source, target)
        self.events.append(("named in", target.parent.stat().st_ino))

    def assert_names_are_durable(self) -> None:
        folders = [folder for event, folder in self.events if event == "named in"]
        assert folders
        for place, (event, folder) in enumerate(self.events):
            assert event != "named in" or ("fsync", folder) in self.events[place:]


def test_content_is_durable_before_its_name_and_the_name_before_the_return(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trace = Trace(monkeypatch)
    with closing(open_disk_store(tmp_path / "home")) as store:
        snapshot = snapshot_for(50)
        acts: list[Callable[[], object]] = [
            lambda: play_round(store, 0),
            lambda: store.put(b"packet"),
            lambda: store.append(manifest_of(1), head_of(1), head_of(0).digest),
            lambda: store.note("run", b"x"),
            lambda: store.put_part(snapshot, snapshot.blobs[0], content(50)),
            lambda: store.finish_snapshot(snapshot, CHUNKS),
        ]
        for act in acts:
            trace.events.clear()
            act()
            trace.assert_names_are_durable()


def test_a_part_is_durable_when_it_is_put(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trace = Trace(monkeypatch)
    with closing(open_disk_store(tmp_path / "home")) as store:
        snapshot = snapshot_for(50)
        store.put_part(snapshot, snapshot.blobs[0], content(50))
        file = next((tmp_path / "home" / "incoming").iterdir())
        assert trace.events[-1] == ("fsync", file.stat().st_ino)


def test_parts_found_after_a_crash_are_made_durable_before_they_are_a_state(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    snapshot = snapshot_for(50)
    with closing(open_disk_store(tmp_path / "home")) as store:
        store.put_part(snapshot, snapshot.blobs[0], content(50))
    trace = Trace(monkeypatch)
    with closing(open_disk_store(tmp_path / "home")) as store:
        store.finish_snapshot(snapshot, CHUNKS)
    trace.assert_names_are_durable()
