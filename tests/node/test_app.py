"""What of a whole node can be seen without starting one."""

from __future__ import annotations

from contextlib import AsyncExitStack, closing
from pathlib import Path
from typing import Any

import pytest

from demoloco.errors import ConfigError, StoreError
from demoloco.node import app
from demoloco.node.app import Node
from demoloco.node.belonging import Belonging, settle
from demoloco.settings import Settings
from demoloco.store.disk import open_disk_store
from tests.node.scribe import SilentSwarm

PEERS = ("/ip4/203.0.113.7/tcp/24470/p2p/12D3KooWSuUJrNRa4MNzRNzRd4iecF5bomjFjK5bxigJhGgR4s48",)


class FullStore:
    """A disk without room."""

    def noted(self, key: str) -> bytes | None:
        return None

    def note(self, key: str, value: bytes) -> None:
        raise StoreError("no room to write the note")


class Swarm(SilentSwarm):
    async def start(self, *_: object) -> None: ...
    async def stop(self) -> None: ...


async def test_a_full_disk_does_not_keep_a_node_from_coming_up(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """It must come up to prune what it keeps."""
    store: Any = FullStore()
    anything: Any = None
    make: Any = lambda *_: Swarm()  # noqa: E731
    node = Node(Settings(run={}, node={"home": tmp_path}, origins={}), make)
    async with AsyncExitStack() as held:
        await node._start_swarm(store, anything, anything, held)
    assert "addresses not noted" in caplog.text


class Killed(BaseException):
    """Nothing comes after it."""


async def test_the_peers_are_noted_before_anything_else_is_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def die(*_: object) -> None:
        raise Killed

    monkeypatch.setattr(app.Identity, "load_or_create", die)
    settings = Settings(
        run={"task": "own:Task"}, node={"home": tmp_path, "peers": PEERS}, origins={}
    )
    make: Any = pytest.fail
    with pytest.raises(Killed):
        await Node(settings, make).run()
    with closing(open_disk_store(tmp_path)) as store:
        assert settle(store, (), "") == Belonging(PEERS, "own:Task")


async def test_a_home_with_too_long_a_path_is_refused_before_anything_is_in_it(
    tmp_path: Path,
) -> None:
    home = tmp_path / ("x" * 120)
    make: Any = pytest.fail
    node = Node(Settings(run={}, node={"home": home}, origins={}), make)
    with pytest.raises(ConfigError, match="path is too long"):
        await node.run()
    assert not home.exists()
