"""One process per home; the others are told which one it is."""

from __future__ import annotations

import errno
import fcntl
import os
import subprocess
import sys
from pathlib import Path

import pytest

from demoloco.errors import ConfigError
from demoloco.store.disk import open_disk_store
from demoloco.store.lock import lock_home
from tests.store.rounds import head_of, play

HOLD = """
import sys
from pathlib import Path
from demoloco.store.disk import open_disk_store
store = open_disk_store(Path(sys.argv[1]), version="9.8")
print("held", flush=True)
sys.stdin.read()
"""


def test_a_home_in_use_is_refused_with_the_holder_and_the_fix(tmp_path: Path) -> None:
    store = open_disk_store(tmp_path, version="1.2")
    play(store, 1)
    with pytest.raises(
        ConfigError,
        match=rf"in use by process {os.getpid()} \(version 1\.2\); stop that node or choose",
    ):
        open_disk_store(tmp_path)
    assert store.head() == head_of(1)
    store.close()
    open_disk_store(tmp_path).close()


def test_a_killed_holder_leaves_the_home_free(tmp_path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, tmp_path],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
    ) as holder:
        try:
            assert holder.stdout is not None
            assert holder.stdout.readline() == "held\n"
            with pytest.raises(ConfigError, match=rf"process {holder.pid} \(version 9\.8\)"):
                open_disk_store(tmp_path)
        finally:
            holder.kill()
    store = open_disk_store(tmp_path)
    store.close()


def test_a_lock_without_a_name_is_told_as_such(tmp_path: Path) -> None:
    lock = lock_home(tmp_path, "")
    with pytest.raises(ConfigError, match=rf"in use by process {os.getpid()}; stop"):
        lock_home(tmp_path, "1")
    os.truncate(tmp_path / "lock", 0)
    with pytest.raises(ConfigError, match="another process that is just starting"):
        lock_home(tmp_path, "1")
    lock.release()
    lock.release()


def test_a_file_system_without_locks_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(descriptor: int, operation: int) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", refuse)
    with pytest.raises(ConfigError, match="choose a --home on a local disk"):
        open_disk_store(tmp_path)


def test_a_start_that_fails_frees_the_home(tmp_path: Path) -> None:
    (tmp_path / "format").write_text("99")
    for _ in range(2):
        with pytest.raises(ConfigError, match="format '99'"):
            open_disk_store(tmp_path)
