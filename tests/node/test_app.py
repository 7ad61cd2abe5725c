"""What of a whole node can be seen without starting one."""

from __future__ import annotations

from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from demoloco.errors import ConfigError, StoreError
from demoloco.node.app import Node
from demoloco.settings import Settings
from tests.node.scribe import SilentSwarm


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


async def test_a_home_with_too_long_a_path_is_refused_before_anything_is_in_it(
    tmp_path: Path,
) -> None:
    home = tmp_path / ("x" * 120)
    make: Any = pytest.fail
    node = Node(Settings(run={}, node={"home": home}, origins={}), make)
    with pytest.raises(ConfigError, match="path is too long"):
        await node.run()
    assert not home.exists()
