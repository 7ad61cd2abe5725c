"""Talking to one peer: call it, dialling first where the connection is gone, and count what fails.

Rule: a call is repeated once at most, and only when it never reached the peer.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Iterable
from contextlib import aclosing

from demoloco.errors import PacketError, SwarmError
from demoloco.swarm.standing import Standing
from demoloco.swarm.tasks import Tasks
from demoloco.swarm.timing import Timing
from demoloco.swarm.transport import Fault, Method, Refused, Transport, Unreachable
from demoloco.types import PeerId, short

log = logging.getLogger(__name__)

REDIAL = (Fault.BROKEN, Fault.UNKNOWN)


class Lines:
    """This node's lines to its peers."""

    def __init__(
        self, standing: Standing, transport: Transport, timing: Timing, tasks: Tasks
    ) -> None:
        self._standing = standing
        self._transport = transport
        self._timing = timing
        self._tasks = tasks

    async def connect(self, peer: PeerId, seconds: float | None = None) -> None:
        addresses = self._standing.known.get(peer, ())
        if not addresses:
            raise Unreachable(Fault.UNKNOWN)
        limit = self._timing.connect_seconds
        await self._transport.connect(peer, addresses, min(limit, seconds or limit))

    async def call(
        self, peer: PeerId, method: Method, body: bytes, seconds: float | None = None
    ) -> bytes:
        """Call, dialling first where the connection is gone; failures are counted."""
        limit = self._timing.call_seconds
        limit = min(limit, seconds or limit)
        try:
            try:
                return await self._transport.call(peer, method, body, limit)
            except Unreachable as error:
                if error.fault not in REDIAL:
                    raise
            await self.connect(peer, seconds)
            return await self._transport.call(peer, method, body, limit)
        except (Refused, Unreachable):
            self._standing.failed_calls += 1
            raise

    async def frames(self, peer: PeerId, body: bytes) -> AsyncGenerator[bytes, None]:
        """A stream of the peer, dialling first where the connection is gone."""
        seconds = self._timing.chunk_seconds
        begun = False
        try:
            async with aclosing(self._transport.stream(peer, body, seconds)) as frames:
                async for frame in frames:
                    begun = True
                    yield frame
            return
        except Unreachable as error:
            if begun or error.fault not in REDIAL:
                raise
        await self.connect(peer)
        async with aclosing(self._transport.stream(peer, body, seconds)) as frames:
            async for frame in frames:
                yield frame

    async def tell(self, peers: Iterable[PeerId], method: Method, body: bytes) -> None:
        """All of these at once; the slow ones are left to the background after a moment."""
        tasks = [self._tasks.spawn(self._tell(peer, method, body)) for peer in peers]
        if tasks:
            await asyncio.wait(tasks, timeout=self._timing.settle_seconds)

    async def _tell(self, peer: PeerId, method: Method, body: bytes) -> None:
        try:
            await self.call(peer, method, body)
        except (Refused, Unreachable) as error:
            log.info("told=failed method=%s peer=%s why=%s", method, short(peer), error)

    def distrust(self, peer: PeerId, error: PacketError) -> SwarmError:
        self._standing.dropped += 1
        log.warning("reply=dropped peer=%s why=%s", short(peer), error)
        return SwarmError(f"{short(peer)} answered wrongly: {error}")
