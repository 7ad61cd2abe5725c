"""Where a node listens: a port that was free is asked for again, so that others find it."""

from __future__ import annotations

import re
from collections.abc import Iterable

from demoloco.swarm.hivemind.ports import becomes_free

_TCP_PORT = re.compile(r"/tcp/(\d+)")


async def listen_addresses(wished: Iterable[str], last: Iterable[str]) -> tuple[str, ...]:
    """Put the port of the last start in the place of port 0, if it is free now."""
    ports = {int(match[1]) for one in last if (match := _TCP_PORT.search(one))}
    found = 0
    for port in sorted(ports):
        if await becomes_free("0.0.0.0", port):
            found = port
            break
    return tuple(_TCP_PORT.sub(lambda match: _with(match, found), one) for one in wished)


def _with(match: re.Match[str], port: int) -> str:
    return f"/tcp/{port}" if match[1] == "0" else match[0]
