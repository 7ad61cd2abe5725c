"""Streams that others opened here, at the end."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from demoloco.swarm.hivemind.streams import Streams
from demoloco.swarm.transport import Meter


async def test_streams_that_are_cut_at_the_end_leave_no_error_behind(tmp_path: Path) -> None:
    """As where a node leaves while others fetch from it."""
    errors: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: errors.append(context))
    streams, opened = Streams(Meter()), asyncio.Event()

    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        opened.set()
        peer = SimpleNamespace(to_base58=lambda: "ann")
        await streams.on_stream(SimpleNamespace(peer_id=peer), reader, writer)

    path = str(tmp_path / "socket")
    server = await asyncio.start_unix_server(handler, path=path)
    reader, writer = await asyncio.open_unix_connection(path)
    await opened.wait()
    await streams.end()
    assert await reader.read() == b""
    writer.close()
    server.close()
    await server.wait_closed()
    assert errors == []
