"""Where a node listens: a port that was free is asked for again, so that others find it."""

from __future__ import annotations

import re
import socket
from collections.abc import Iterable

_TCP_PORT = re.compile(r"/tcp/(\d+)")


def listen_addresses(wished: Iterable[str], last: Iterable[str]) -> tuple[str, ...]:
    """Put the port of the last start in the place of port 0, if it is free now."""
    ports = {int(match[1]) for one in last if (match := _TCP_PORT.search(one))}
    port = next((port for port in sorted(ports) if _is_free(port)), 0)
    return tuple(_TCP_PORT.sub(lambda match: _with(match, port), one) for one in wished)


def _with(match: re.Match[str], port: int) -> str:
    return f"/tcp/{port}" if match[1] == "0" else match[0]


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("0.0.0.0", port))
        except OSError:
            return False
    return True
