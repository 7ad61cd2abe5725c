"""Whether the ports to listen on are free.

Rule: ask before libp2p is started, because it shares a port with whoever else allows it and says
that all is well.
"""

from __future__ import annotations

import asyncio
import errno
import socket

from demoloco.errors import ConfigError
from demoloco.swarm.addresses import tcp_host_port

PATIENCE_SECONDS = 1.0
"""A node that was killed leaves its port to its p2pd for a moment."""
PAUSE_SECONDS = 0.1


async def check_free(listen: tuple[str, ...]) -> None:
    """Raises: ConfigError if a port is taken, or an address is not this machine's."""
    for address in listen:
        host_port = tcp_host_port(address)
        if host_port is not None and host_port[1] != 0:
            await _check(address, *host_port)


async def becomes_free(host: str, port: int) -> bool:
    """Whether a node could listen there, now or in a moment."""
    return await _failure(host, port) is None


async def _check(address: str, host: str, port: int) -> None:
    failure = await _failure(host, port)
    if failure is None:
        return
    if failure.errno == errno.EADDRINUSE:
        why = f"port {port} is in use; stop the process that has it, or listen on another port"
    elif failure.errno == errno.EACCES:
        why = f"port {port} is reserved for root; listen on one above 1023"
    else:
        why = f"{failure.strerror}; listen on /ip4/0.0.0.0/tcp/{port} for all addresses"
    raise ConfigError(f"cannot listen on {address}: {why}")


async def _failure(host: str, port: int) -> OSError | None:
    """Why nobody can listen there; one that uses the port has a moment to go."""
    deadline = asyncio.get_running_loop().time() + PATIENCE_SECONDS
    while (failure := _try_bind(host, port)) is not None:
        if failure.errno != errno.EADDRINUSE or asyncio.get_running_loop().time() >= deadline:
            break
        await asyncio.sleep(PAUSE_SECONDS)
    return failure


def _try_bind(host: str, port: int) -> OSError | None:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        # A port in TIME_WAIT is free; one that somebody listens on is not.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            return error
    return None
