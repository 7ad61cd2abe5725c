"""Whether anybody listens at an address, before libp2p dials a peer that it dialled in vain.

Rule: libp2p waits longer after each vain dial, up to five minutes, and then does not even try; so
it is not asked to dial where nobody listens, and a peer that comes back is reached at once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from demoloco.swarm.addresses import is_direct_tcp, tcp_host_port
from demoloco.swarm.transport import Fault, Unreachable

KNOCK_SECONDS = 5.0


async def knock(addresses: Sequence[str]) -> None:
    """Return if somebody listens at one of these, or if only a dial can tell.

    Raises: Unreachable if nobody does."""
    if not all(map(is_direct_tcp, addresses)):
        return
    faults = await asyncio.gather(*map(_knock_at, addresses))
    if all(fault is not None for fault in faults):
        raise Unreachable(Fault.REFUSED if Fault.REFUSED in faults else Fault.TIMEOUT)


async def _knock_at(address: str) -> Fault | None:
    """None if somebody listens there."""
    place = tcp_host_port(address)
    assert place is not None
    try:
        async with asyncio.timeout(KNOCK_SECONDS):
            _, writer = await asyncio.open_connection(*place)
    except ConnectionRefusedError:
        return Fault.REFUSED
    except (OSError, TimeoutError):
        return Fault.TIMEOUT
    writer.transport.abort()
    return None
