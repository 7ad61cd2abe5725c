"""The peer: is it there, what is it, how far away, and does it reach this machine?"""

from __future__ import annotations

import asyncio
import time

from demoloco.doctor.words import Facts
from demoloco.errors import PacketError
from demoloco.swarm import calls
from demoloco.swarm.addresses import PeerAddress
from demoloco.swarm.dial_back import (
    DialBack,
    Outcome,
    decode_dial_back_reply,
    encode_dial_back_request,
)
from demoloco.swarm.genesis import ADVICE
from demoloco.swarm.identity import verify
from demoloco.swarm.transport import Fault, Method, Refused, Transport, Unreachable
from demoloco.types import Digest, PeerId
from demoloco.wire import decode_member

CONNECT_SECONDS = 15.0
CALL_SECONDS = 10.0
HELLOS = 5
DIAL_BACK_SECONDS = 15.0
LOOK_SECONDS = 0.5


async def probe_peer(transport: Transport, seed: PeerAddress) -> Facts:
    """Version, run, round-trip time, and by how much this clock is ahead of the peer's."""
    facts: dict[str, object] = {"address": str(seed), "reached": False, "error": "", "advice": ""}
    try:
        await transport.connect(seed.peer, [seed.address], CONNECT_SECONDS)
        trip, ahead, run = await _hello(transport, seed.peer)
        seen = await transport.observed(seed.peer) or ""
        software = await _software(transport, seed.peer, run) if run else ""
    except Unreachable as error:
        return facts | {"error": str(error), "advice": ADVICE.get(error.fault, "")}
    except (Refused, PacketError) as error:
        return facts | {"error": f"it answers, but not as a node does: {error}"}
    return facts | {
        "reached": True,
        "run": run.hex() if run else "",
        "software": software,
        "rtt_seconds": trip,
        "clock_ahead_seconds": ahead,
        "relayed": "/p2p-circuit" in seen,
    }


async def _hello(transport: Transport, peer: PeerId) -> tuple[float, float, Digest | None]:
    """The shortest of some round trips, and what the clocks said in it."""
    body = calls.encode_hello(calls.Hello(None, ()))
    trips: list[tuple[float, float]] = []
    run: Digest | None = None
    for _ in range(HELLOS):
        asked, began = time.time(), time.monotonic()
        reply = await transport.call(peer, Method.HELLO, body, CALL_SECONDS)
        trip = time.monotonic() - began
        told = calls.decode_hello_reply(reply)
        run = told.run
        trips.append((trip, asked + trip / 2 - told.clock_ms / 1000))
    return *min(trips), run


async def _software(transport: Transport, peer: PeerId, run: Digest) -> str:
    """The version in the peer's own record; "" if it tells none."""
    body = calls.encode_hello(calls.Hello(run, ()))
    told = calls.decode_hello_reply(await transport.call(peer, Method.HELLO, body, CALL_SECONDS))
    members = (decode_member(sealed, verify) for sealed in told.records)
    return next((one.version for one in members if one.peer == peer), "")


async def probe_dial_back(transport: Transport, peer: PeerId, port: int) -> Facts:
    """`outcome` is one of swarm.dial_back's, or `old` where the peer cannot, or `none`."""
    facts = {"port": port, "observed_host": "", "outcome": "none", "error": ""}
    if not port:
        return facts | {"error": "this node listens on no TCP port"}
    try:
        told = await _told(transport, peer, port)
    except Unreachable as error:
        old = error.fault is Fault.PROTOCOL
        return facts | {"outcome": "old" if old else "none", "error": str(error)}
    except (Refused, PacketError) as error:
        return facts | {"error": str(error)}
    host = told.observed.split("/")[2] if told.observed.count("/") > 2 else ""
    late = "it took too long" if told.outcome is Outcome.TRYING else ""
    return facts | {"outcome": told.outcome.value, "observed_host": host, "error": late}


async def _told(transport: Transport, peer: PeerId, port: int) -> DialBack:
    body = encode_dial_back_request(port)
    deadline = asyncio.get_running_loop().time() + DIAL_BACK_SECONDS
    while True:
        reply = await transport.call(peer, Method.DIAL_BACK, body, CALL_SECONDS)
        told = decode_dial_back_reply(reply)
        late = asyncio.get_running_loop().time() > deadline
        if told.outcome is not Outcome.TRYING or late:
            return told
        await asyncio.sleep(LOOK_SECONDS)
