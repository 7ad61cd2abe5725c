"""Whether the addresses to listen on can be had now."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from demoloco.doctor.probing.home import last_port
from demoloco.doctor.words import Facts
from demoloco.errors import ConfigError
from demoloco.swarm.addresses import tcp_host_port
from demoloco.swarm.hivemind.ports import becomes_free, check_free


async def probe_ports(home: Path, listen: Sequence[str]) -> Facts:
    last = last_port(home)
    return {
        "listen": [await _one(address) for address in listen],
        "last_port": last,
        "last_port_free": await becomes_free("0.0.0.0", last) if last else None,
    }


async def _one(address: str) -> Facts:
    place = tcp_host_port(address)
    try:
        await check_free((address,))
    except ConfigError as error:
        return {"address": address, "port": place and place[1], "error": str(error)}
    return {"address": address, "port": place and place[1], "error": ""}
