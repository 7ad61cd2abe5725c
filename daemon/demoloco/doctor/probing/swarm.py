"""libp2p's part: how this machine is seen, the peer, the way there and back.

Rule: a p2pd of its own, under a name of its own that nobody keeps; it enters no run, and stops
before this returns.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Callable
from pathlib import Path

from demoloco.doctor.judging.nat import kind_of
from demoloco.doctor.plan import Plan
from demoloco.doctor.probing.home import last_addresses, last_port, probe_home
from demoloco.doctor.probing.link import probe_link
from demoloco.doctor.probing.peer import probe_dial_back, probe_peer
from demoloco.doctor.words import Facts
from demoloco.errors import ConfigError
from demoloco.node.listening import listen_addresses
from demoloco.swarm.addresses import is_loopback, parse_peer, tcp_host_port, with_port
from demoloco.swarm.hivemind.p2pd import LOOPBACK, Reach
from demoloco.swarm.hivemind.ports import check_free
from demoloco.swarm.hivemind.transport import HivemindTransport
from demoloco.swarm.identity import Identity
from demoloco.swarm.links.access import Access
from demoloco.swarm.roads.direct import DirectOffer
from demoloco.swarm.transport import Method, Outgoing, Refused
from demoloco.types import PeerId

MAPPING_SECONDS = 8.0
"""A router that gives ports has given one by then."""
LOOK_SECONDS = 0.5

Tell = Callable[[str, Facts], None]


class _Nobody:
    """What answers here: a doctor has nothing to tell."""

    direct: Callable[[PeerId, DirectOffer], bytes] | None = None

    def answer(self, peer: PeerId, method: Method, body: bytes) -> bytes:
        raise Refused("it is no node, and will be gone in a moment")

    def open_stream(self, peer: PeerId, body: bytes) -> Outgoing:
        raise Refused("it is no node, and will be gone in a moment")


async def probe_swarm(plan: Plan, tell: Tell) -> None:
    """Tells `peer`, `dial_back` and `link` if there is a peer, then `nat`.

    Raises: ConfigError, SwarmError where libp2p does not start.
    """
    home = Path(plan.home)
    listen = [await _free(one) for one in await listen_addresses(plan.listen, last_addresses(home))]
    reach = LOOPBACK if all(map(is_loopback, listen)) else Reach()
    with tempfile.TemporaryDirectory(prefix="demoloco-doctor-") as folder:
        identity = Identity.load_or_create(Path(folder) / "identity")
        transport = HivemindTransport(identity, listen, (), reach, Access())
        await transport.start(_Nobody())
        began = asyncio.get_running_loop().time()
        try:
            if plan.peer:
                await _meet(transport, plan, tell)
            addresses = await _mapped(transport, reach, began + MAPPING_SECONDS)
            tell("nat", {"addresses": list(addresses)})
        finally:
            await transport.stop()


async def _meet(transport: HivemindTransport, plan: Plan, tell: Tell) -> None:
    seed = parse_peer(plan.peer)
    peer = await probe_peer(transport, seed)
    tell("peer", peer)
    if not peer["reached"]:
        tell("dial_back", {"skipped": True})
        tell("link", {"skipped": True})
        return
    tell("dial_back", await probe_dial_back(transport, seed.peer, _port(transport, plan)))
    tell("link", await probe_link(transport, seed.peer))


def _port(transport: HivemindTransport, plan: Plan) -> int:
    """Of the node that runs in the home, else of the p2pd that stands in for one."""
    home = Path(plan.home)
    noted = last_port(home)
    if noted and probe_home(home)["node_pid"]:
        return noted
    places = [tcp_host_port(one) for one in transport.addresses]
    return next((place[1] for place in places if place), 0)


async def _free(address: str) -> str:
    """The same address, with any port if its own is taken, as by the node of the home."""
    try:
        await check_free((address,))
    except ConfigError:
        return with_port(address, 0)
    return address


async def _mapped(transport: HivemindTransport, reach: Reach, until: float) -> tuple[str, ...]:
    """The addresses, as soon as one is public, or when no router will give one any more."""
    while True:
        addresses = await transport.own_addresses()
        public = any(kind_of(one.split("/")[2]) == "public" for one in addresses)
        late = asyncio.get_running_loop().time() >= until
        if public or late or not reach.nat_port_map:
            return addresses
        await asyncio.sleep(LOOK_SECONDS)
