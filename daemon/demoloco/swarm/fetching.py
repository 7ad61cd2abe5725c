"""Fetching a blob: holder after holder, going on where the last one stopped.

Rule: a holder that lies is not asked for that blob again, one that is slow is asked last for a
while; one that is busy may be asked once more, and nobody who is no member at all.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field

from demoloco.errors import PacketError, SwarmError
from demoloco.swarm.calls import decode_chunk, encode_blob_request
from demoloco.swarm.roster import Roster
from demoloco.swarm.service import BUSY
from demoloco.swarm.standing import Standing
from demoloco.swarm.timing import Timing
from demoloco.swarm.transfer import DigestMismatch, Suspicion, Transfer
from demoloco.swarm.transport import FRAME_HEADER_BYTES, Fault, Refused, Unreachable
from demoloco.types import BlobRef, PeerId, short

log = logging.getLogger(__name__)

MAX_PASSES = 3
PAUSE_SECONDS = 0.3
WINDOW_BYTES = 64 << 10
"""A holder that sends less in `chunk_seconds` is left for the next one."""
LAST_SECONDS = 120.0
"""So long a slow holder is asked after all others."""

Frames = Callable[[PeerId, bytes], AsyncGenerator[bytes, None]]


class StartAgain(SwarmError):
    """What was given out is not the blob, or its end cannot be had; fetching anew may succeed."""


@dataclass
class _Search:
    """Whom one fetch may still ask, and why not the others."""

    holders: list[PeerId]
    hopeless: set[PeerId] = field(default_factory=set)
    reasons: dict[PeerId, str] = field(default_factory=dict)

    def left(self, members: Roster) -> Iterator[PeerId]:
        """One after the other, as long as each is still a member when its turn comes: to wait for
        one that is away would hold up the node, and one that comes back is asked again."""
        for peer in self.holders:
            if peer in self.hopeless:
                continue
            if peer in members:
                yield peer
            else:
                self.reasons.setdefault(peer, "it is no member now")

    @property
    def told(self) -> str:
        told = "; ".join(f"{short(peer)}: {why}" for peer, why in self.reasons.items())
        return told or "none left"


class _Window:
    """Watches that a holder sends enough from its first piece on."""

    def __init__(self, seconds: float, now: Callable[[], float]) -> None:
        self._seconds = seconds
        self._now = now
        self._since: float | None = None
        self._bytes = 0

    def came(self, length: int) -> None:
        """Raises: Unreachable if it was too little for the time."""
        now = self._now()
        self._since = now if self._since is None else self._since
        self._bytes += length
        if now - self._since <= self._seconds:
            return
        if self._bytes < WINDOW_BYTES:
            raise Unreachable(Fault.SLOW, f"{self._bytes} bytes in {now - self._since:.0f} s")
        self._since, self._bytes = now, 0


class Fetcher:
    """Gets blobs for one node."""

    def __init__(self, standing: Standing, frames: Frames, timing: Timing) -> None:
        self._standing = standing
        self._frames = frames
        self._timing = timing
        self._suspicion = Suspicion()
        self._slow: dict[PeerId, float] = {}  # until when it is asked last
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
        transfer, search = Transfer(blob), _Search(self._ordered(holders))
        search.hopeless = {peer for peer in holders if self._suspicion.lied(peer, blob.digest)}
        slowest = blob.size / WINDOW_BYTES * self._timing.chunk_seconds
        seconds = self._timing.transfer_seconds + slowest
        deadline = self._standing.now() + seconds
        for number in range(MAX_PASSES):
            for holder in search.left(self._standing.roster):
                self._check_may_go_on(transfer, holder, search)
                try:
                    async with aclosing(self._from(holder, transfer, packet)) as pieces:
                        async for piece in pieces:
                            if self._standing.now() > deadline:
                                raise SwarmError(
                                    f"blob {short(blob.digest)} took over {seconds:.0f} s"
                                )
                            yield piece
                    return
                except (PacketError, Refused, Unreachable) as error:
                    self._learn(blob, holder, error, search)
            if not any(search.left(self._standing.roster)):
                break
            await asyncio.sleep(PAUSE_SECONDS * 2**number * self._standing.rng.uniform(0.5, 1.5))
        raise SwarmError(f"no holder delivered blob {short(blob.digest)} ({search.told})")

    def _ordered(self, holders: Sequence[PeerId]) -> list[PeerId]:
        """Those that were slow a moment ago come last."""
        now = self._standing.now()
        self._slow = {peer: until for peer, until in self._slow.items() if until > now}
        return sorted(holders, key=lambda peer: peer in self._slow)

    def _check_may_go_on(self, transfer: Transfer, holder: PeerId, search: _Search) -> None:
        goes_on = transfer.offset > 0 and transfer.sources != {holder}
        if goes_on and not self._suspicion.may_resume(transfer.blob.digest):
            raise StartAgain(f"{search.told} and nobody else may go on with it")

    def _learn(
        self, blob: BlobRef, holder: PeerId, error: SwarmError | PacketError, search: _Search
    ) -> None:
        """What the holder's failure means for this fetch and the next. Raises: StartAgain."""
        search.reasons[holder] = str(error)
        if isinstance(error, PacketError):
            self._distrust(blob, holder, error)
            search.hopeless.add(holder)
            if isinstance(error, DigestMismatch):
                raise StartAgain(str(error)) from error
            return
        self._standing.failed_calls += 1
        if isinstance(error, Refused) and str(error) != BUSY:
            search.hopeless.add(holder)
        if isinstance(error, Unreachable) and error.fault in (Fault.SLOW, Fault.TIMEOUT):
            if holder not in self._slow:
                told = "holder=slow peer=%s why=%s; others are asked first"
                log.warning(told, short(holder), error)
            self._slow[holder] = self._standing.now() + LAST_SECONDS
            if error.fault is Fault.SLOW:
                search.hopeless.add(holder)

    async def _from(
        self, holder: PeerId, transfer: Transfer, packet: bool
    ) -> AsyncGenerator[bytes, None]:
        """What this holder adds to the transfer; ends when the blob is complete."""
        request = encode_blob_request(self._standing.own_run, transfer.blob.digest, transfer.offset)
        window = _Window(self._timing.chunk_seconds, self._standing.now)
        async with aclosing(self._frames(holder, request)) as frames:
            async for frame in frames:
                if packet:
                    self.packet_bytes += len(frame) + FRAME_HEADER_BYTES
                piece = transfer.accept(holder, decode_chunk(frame))
                yield piece  # it counts in the transfer, so it is given out whatever follows
                if not transfer.complete:
                    window.came(len(piece))
        if not transfer.complete:
            raise PacketError("the stream ended before the blob did")

    def _distrust(self, blob: BlobRef, holder: PeerId, error: PacketError) -> None:
        self._standing.dropped += 1  # it has a line of its own
        sources = error.sources if isinstance(error, DigestMismatch) else frozenset({holder})
        self._suspicion.note(blob.digest, sources)
        log.warning("holder=distrusted peer=%s why=%s", short(holder), error)
