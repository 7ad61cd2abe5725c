"""Fetching a blob: holder after holder, going on where the last one stopped.

Rule: a holder that lies is not asked for that blob again; one that is away or busy may be asked
once more.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing

from demoloco.errors import PacketError, SwarmError
from demoloco.swarm.calls import decode_chunk, encode_blob_request
from demoloco.swarm.service import BUSY
from demoloco.swarm.standing import Standing
from demoloco.swarm.transfer import DigestMismatch, Suspicion, Transfer
from demoloco.swarm.transport import FRAME_HEADER_BYTES, Refused, Unreachable
from demoloco.types import BlobRef, PeerId, short

log = logging.getLogger(__name__)

MAX_PASSES = 3
PAUSE_SECONDS = 0.3
SLOWEST_BYTES_PER_SECOND = 32 << 10

Frames = Callable[[PeerId, bytes], AsyncGenerator[bytes, None]]


class StartAgain(SwarmError):
    """What was given out is not the blob, or its end cannot be had; fetching anew may succeed."""


class Fetcher:
    """Gets blobs for one node."""

    def __init__(self, standing: Standing, frames: Frames, transfer_seconds: float) -> None:
        self._standing = standing
        self._frames = frames
        self._transfer_seconds = transfer_seconds
        self._suspicion = Suspicion()
        self.packets = 0
        self.packet_bytes = 0

    async def whole(self, blob: BlobRef, holders: Sequence[PeerId], *, packet: bool) -> bytes:
        """Raises: SwarmError when no holder delivered it."""
        for turn in range(len(holders) + 1):
            order = [*holders[turn:], *holders[:turn]]
            try:
                parts = [part async for part in self.parts(blob, order, packet=packet)]
            except StartAgain as error:
                log.info("fetch=again blob=%s why=%s", short(blob.digest), error)
                continue
            self.packets += packet
            return b"".join(parts)
        raise SwarmError(f"no holder delivered blob {short(blob.digest)}: all that came was wrong")

    async def parts(
        self, blob: BlobRef, holders: Sequence[PeerId], *, packet: bool = False
    ) -> AsyncGenerator[bytes, None]:
        """Raises: StartAgain, SwarmError."""
        transfer = Transfer(blob)
        seconds = self._transfer_seconds + blob.size / SLOWEST_BYTES_PER_SECOND
        deadline = self._standing.now() + seconds
        reasons: dict[PeerId, str] = {}
        hopeless = {peer for peer in holders if self._suspicion.lied(peer, blob.digest)}
        for number in range(MAX_PASSES):
            for holder in (peer for peer in holders if peer not in hopeless):
                goes_on = transfer.offset > 0 and transfer.sources != {holder}
                if goes_on and not self._suspicion.may_resume(blob.digest):
                    raise StartAgain(f"{reasons} and nobody else may go on with it")
                try:
                    async with aclosing(self._from(holder, transfer, packet)) as pieces:
                        async for piece in pieces:
                            if self._standing.now() > deadline:
                                raise SwarmError(
                                    f"blob {short(blob.digest)} took over {seconds:.0f} s"
                                )
                            yield piece
                    return
                except PacketError as error:
                    self._distrust(blob, holder, error)
                    hopeless.add(holder)
                    reasons[holder] = str(error)
                    if isinstance(error, DigestMismatch):
                        raise StartAgain(str(error)) from error
                except (Refused, Unreachable) as error:
                    self._standing.failed_calls += 1
                    reasons[holder] = str(error)
                    if isinstance(error, Refused) and str(error) != BUSY:
                        hopeless.add(holder)
            if hopeless.issuperset(holders):
                break
            await asyncio.sleep(PAUSE_SECONDS * 2**number * self._standing.rng.uniform(0.5, 1.5))
        told = "; ".join(f"{short(peer)}: {why}" for peer, why in reasons.items())
        raise SwarmError(f"no holder delivered blob {short(blob.digest)} ({told or 'none left'})")

    async def _from(
        self, holder: PeerId, transfer: Transfer, packet: bool
    ) -> AsyncGenerator[bytes, None]:
        """What this holder adds to the transfer; ends when the blob is complete."""
        request = encode_blob_request(self._standing.own_run, transfer.blob.digest, transfer.offset)
        async with aclosing(self._frames(holder, request)) as frames:
            async for frame in frames:
                if packet:
                    self.packet_bytes += len(frame) + FRAME_HEADER_BYTES
                yield transfer.accept(holder, decode_chunk(frame))
        if not transfer.complete:
            raise PacketError("the stream ended before the blob did")

    def _distrust(self, blob: BlobRef, holder: PeerId, error: PacketError) -> None:
        self._standing.dropped += 1
        sources = error.sources if isinstance(error, DigestMismatch) else frozenset({holder})
        self._suspicion.note(blob.digest, sources)
        log.warning("holder=distrusted peer=%s why=%s", short(holder), error)
