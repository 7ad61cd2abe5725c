"""How many bytes a second the way to the peer carries, up and down.

Rule: it takes a few seconds and a few MiB at most, whatever the link, and what the peer allows.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from time import monotonic

from demoloco.doctor.words import Facts
from demoloco.errors import DemolocoError
from demoloco.swarm.probing import MAX_FILLER_BYTES, decode_probe_reply, encode_probe_request
from demoloco.swarm.transport import Fault, Method, Refused, Transport, Unreachable
from demoloco.types import PeerId

MAX_BYTES = 4 << 20
SECONDS = 5.0
CALL_SECONDS = 30.0
FIRST_BYTES = 32 << 10
LANES = 4
TRIES = 5
PAUSE_SECONDS = 1.0

Carry = Callable[[int], Awaitable[None]]
"""Bring so many bytes over the link."""


async def probe_link(transport: Transport, peer: PeerId) -> Facts:
    """Bytes a second; None and an `error` where the peer would not."""
    facts: dict[str, object] = {"up": None, "down": None, "error": "", "old": False}

    async def probe(wanted: int, sent: int) -> None:
        body = encode_probe_request(wanted=wanted, sent=sent)
        decode_probe_reply(await transport.call(peer, Method.PROBE, body, CALL_SECONDS), wanted)

    try:
        facts["down"] = await rate_of(lambda size: probe(size, 0))
        facts["up"] = await rate_of(lambda size: probe(0, size))
    except DemolocoError as error:
        facts["error"] = str(error)
        facts["old"] = isinstance(error, Unreachable) and error.fault is Fault.PROTOCOL
    return facts


async def rate_of(carry: Carry) -> float:
    """Bytes a second, over several calls at a time. Raises: SwarmError, PacketError."""
    first = await _first_seconds(carry)
    size = max(FIRST_BYTES // 2, min(MAX_FILLER_BYTES, int(FIRST_BYTES / first)))
    began, left, done = monotonic(), MAX_BYTES - FIRST_BYTES, 0

    async def lane() -> None:
        nonlocal left, done
        while left >= size and monotonic() < began + SECONDS:
            left -= size
            await carry(size)
            done += size

    ends = await asyncio.gather(*(lane() for _ in range(LANES)), return_exceptions=True)
    seconds = max(1e-6, monotonic() - began)
    for end in ends:
        if end is not None and not (done and isinstance(end, DemolocoError)):
            raise end
    return done / seconds


async def _first_seconds(carry: Carry) -> float:
    """How long a small one takes; a peer that is busy is asked again a few times."""
    for left in reversed(range(TRIES)):
        began = monotonic()
        try:
            await carry(FIRST_BYTES)
        except Refused as refused:
            if not left or "last minute" in str(refused):
                raise
            await asyncio.sleep(PAUSE_SECONDS)
        else:
            break
    return max(1e-6, monotonic() - began)
