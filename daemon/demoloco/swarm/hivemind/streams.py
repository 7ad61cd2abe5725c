"""Streams that peers open at this node: a request, then a blob in frames, then their receipt.

Rule: whoever asks for nothing, takes nothing or never says that it has all is cut after a moment,
and a peer has few streams at a time: nobody holds a place here by being slow.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from contextlib import closing

from demoloco.errors import DemolocoError, PacketError
from demoloco.swarm.hivemind.framing import ACKNOWLEDGED, Kind, read_frame, write_frame
from demoloco.swarm.transport import FRAME_HEADER_BYTES, Busy, Meter, Refused, Service
from demoloco.types import PeerId, short

log = logging.getLogger(__name__)

REQUEST_SECONDS = 10.0
TAKE_SECONDS = 15.0
"""How long a peer may take for 64 KiB of a stream before it is cut."""
MAX_OPEN = 512
"""A whole swarm may ask at once; streams that are served have limits of their own."""
MAX_OPEN_PER_PEER = 16


class Streams:
    """All streams that are open at this node."""

    service: Service

    def __init__(self, meter: Meter) -> None:
        self._meter = meter
        self._serving: dict[asyncio.Task[None], PeerId] = {}

    async def on_stream(
        self, info: object, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        """Serve one stream to its end; libp2p says who opened it."""
        task = asyncio.current_task()
        assert task is not None
        peer = PeerId(info.peer_id.to_base58())  # type: ignore[attr-defined]
        full = len(self._serving) >= MAX_OPEN
        if full or Counter(self._serving.values())[peer] >= MAX_OPEN_PER_PEER:
            writer.close()
            return
        self._serving[task] = peer
        try:
            with closing(writer):
                await self._serve(peer, reader, writer)
        except TimeoutError:
            log.info("stream=cut peer=%s why=it takes too little in too long a time", short(peer))
            writer.transport.abort()  # what it has not taken it shall not take
        except (DemolocoError, OSError, EOFError) as error:
            log.debug("stream=cut peer=%s why=%s", short(peer), error)
        except asyncio.CancelledError:  # asyncio of Python 3.11 logs such an end as an error
            writer.transport.abort()
        finally:
            self._serving.pop(task, None)

    async def end(self) -> None:
        """Cut all of them."""
        tasks = tuple(self._serving)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _serve(
        self, peer: PeerId, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        kind, body = await read_frame(reader, REQUEST_SECONDS)
        if kind is not Kind.REQUEST:
            raise PacketError(f"a stream starts with a frame of kind {kind}")
        self._meter.word_received(len(body) + FRAME_HEADER_BYTES)
        try:
            outgoing = self.service.open_stream(peer, body)
        except Busy as error:
            await self._send(writer, Kind.BUSY, error.body)
            return
        except Refused as error:
            await self._send(writer, Kind.REFUSAL, str(error).encode())
            return
        with closing(outgoing), self._meter.access.up.begin(peer) as passage:
            for frame in outgoing.frames():
                await write_frame(writer, Kind.PIECE, frame, TAKE_SECONDS, passage)
                self._meter.frame_sent(frame)
            await self._send(writer, Kind.END, b"")
            async with asyncio.timeout(2 * TAKE_SECONDS):
                if await reader.readexactly(1) != ACKNOWLEDGED:  # an end before it may cut the rest
                    raise PacketError("a blob was taken and not confirmed")
            passage.arrived()

    async def _send(self, writer: asyncio.StreamWriter, kind: Kind, payload: bytes) -> None:
        await write_frame(writer, kind, payload, TAKE_SECONDS)
        self._meter.word_sent(len(payload) + FRAME_HEADER_BYTES)
