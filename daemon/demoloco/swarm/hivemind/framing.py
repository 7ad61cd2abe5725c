"""Frames on a byte stream: one byte of kind, four of length, the payload.

Rule: a length is checked before a byte of the payload is read, so nobody can make this node
buffer more than one frame. A stream that stops without an END was cut.
"""

from __future__ import annotations

import asyncio
from enum import IntEnum

from demoloco.errors import PacketError
from demoloco.swarm.links.access import Passage
from demoloco.swarm.transport import FRAME_HEADER_BYTES, MAX_FRAME_BYTES

ACKNOWLEDGED = b"\x06"
SLICE_BYTES = 64 << 10


class Kind(IntEnum):
    """What a frame is."""

    PIECE = 0
    REFUSAL = 1
    END = 2
    REQUEST = 3
    BUSY = 4


async def write_frame(
    writer: asyncio.StreamWriter,
    kind: Kind,
    payload: bytes,
    seconds: float,
    passage: Passage | None = None,
) -> None:
    """A part of a blob goes through its passage.

    Raises: OSError, TimeoutError if the other side takes over `seconds` for 64 KiB."""
    frame = bytes((kind,)) + len(payload).to_bytes(FRAME_HEADER_BYTES - 1) + payload
    step = passage.slice_bytes if passage else SLICE_BYTES
    for start in range(0, len(frame), step):
        piece = frame[start : start + step]
        if passage is not None:
            await passage.pass_(len(piece))
        writer.write(piece)
        async with asyncio.timeout(seconds):
            await writer.drain()


async def read_frame(
    reader: asyncio.StreamReader, seconds: float, passage: Passage | None = None
) -> tuple[Kind, bytes]:
    """What comes is taken as fast as the passage lets it through.

    Raises: PacketError, OSError, EOFError where the stream was cut, TimeoutError if the next
    64 KiB, or what is left of the frame, take over `seconds`."""
    async with asyncio.timeout(seconds):
        header = await reader.readexactly(FRAME_HEADER_BYTES)
        length = int.from_bytes(header[1:])
        if length > MAX_FRAME_BYTES:
            raise PacketError(f"a frame of {length} bytes; the limit is {MAX_FRAME_BYTES}")
        try:
            kind = Kind(header[0])
        except ValueError:
            raise PacketError(f"a frame of kind {header[0]}") from None
    payload = bytearray()
    step = passage.slice_bytes if passage else SLICE_BYTES
    while (left := length - len(payload)) > 0:
        async with asyncio.timeout(seconds):
            payload += await reader.readexactly(min(left, step))
        if passage is not None:
            await passage.pass_(min(left, step))
    return kind, bytes(payload)
