"""What live members owe, fetched anew for a merged model.

Rule: nobody is waited for beyond the operator's patience, and one who gives nothing is named with
the reason. Packets go before these bytes, here and at the giver's.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from demoloco.codec.gift import max_bytes, owed_bytes, read_owed
from demoloco.errors import PacketError, SwarmError
from demoloco.swarm.port import Swarm
from demoloco.types import BlobRef, Digest, Gift, Member, PeerId, Phase

AT_ONCE = 4
"""Members that are fetched from side by side."""

TRIES = 2
"""A gift may give way to a newer one while it is fetched."""

MAX_MEMBERS = 64
"""More than these are left out: each takes a byte of disk for a parameter."""

NO_MODEL = {
    Phase.JOINING: "it is joining, and has no model yet",
    Phase.LEAVING: "it is leaving",
}


@dataclass(frozen=True, slots=True)
class Owed:
    """What a member gave: a file for `codec.gift.read_owed`."""

    gift: Gift
    file: Path


@dataclass
class Gathering:
    """`layout`, `chunks`: of the run's model."""

    swarm: Swarm
    layout: Digest
    chunks: int
    folder: Path
    came: dict[PeerId, Owed] = field(default_factory=dict)
    failed: dict[PeerId, str] = field(default_factory=dict)

    async def gather(
        self, members: Sequence[Member], seconds: float
    ) -> AsyncGenerator[tuple[int, int], None]:
        """Fill `came` and `failed`; tells how many of how many have been heard, as they come."""
        asked = [member.peer for member in members if member.phase not in NO_MODEL]
        for member in members:
            if member.phase in NO_MODEL:
                self.failed[member.peer] = NO_MODEL[member.phase]
        for peer in asked[MAX_MEMBERS:]:
            self.failed[peer] = f"no more than {MAX_MEMBERS} others are merged"
        asked, slots = asked[:MAX_MEMBERS], asyncio.Semaphore(AT_ONCE)
        end = asyncio.get_running_loop().time() + seconds
        pending = {asyncio.create_task(self._ask(peer, slots)) for peer in asked}
        try:
            while pending:
                left = end - asyncio.get_running_loop().time()
                done, pending = await asyncio.wait(
                    pending, timeout=max(0.0, left), return_when=asyncio.FIRST_COMPLETED
                )
                if not done:
                    break
                for task in done:
                    task.result()
                yield len(asked) - len(pending), len(asked)
        finally:
            for task in pending:
                task.cancel()
            await asyncio.gather(*pending, return_exceptions=True)
        for peer in asked:
            if peer not in self.came and peer not in self.failed:
                self.failed[peer] = f"it did not give its model in {seconds:g} s"

    async def _ask(self, peer: PeerId, slots: asyncio.Semaphore) -> None:
        async with slots:
            for _ in range(TRIES):
                try:
                    self.came[peer] = await self._fetch(peer)
                except (SwarmError, PacketError, OSError) as error:
                    self.failed[peer] = str(error)
                else:
                    self.failed.pop(peer, None)
                    return

    async def _fetch(self, peer: PeerId) -> Owed:
        """The parts of its gift that hold what it owes, checked.

        Raises: SwarmError, PacketError, OSError."""
        gift = await self.swarm.gift(peer)
        size = sum(blob.size for blob in gift.blobs)
        if not owed_bytes(self.chunks) <= size <= max_bytes(self.chunks):
            raise PacketError(f"a gift of {size} bytes, which is none for this run's model")
        file = self.folder / str(peer)
        await asyncio.to_thread(file.write_bytes, b"")
        for part in _first(gift.blobs, owed_bytes(self.chunks)):
            data = await self.swarm.fetch(part, [peer])
            await asyncio.to_thread(_append, file, data)
        head, _ = await asyncio.to_thread(read_owed, file, self.layout, self.chunks)
        if head != gift.head.digest:
            raise PacketError("a gift for another agreed state than it says")
        return Owed(gift, file)


def _first(blobs: Sequence[BlobRef], size: int) -> Sequence[BlobRef]:
    """As many as hold the first `size` bytes."""
    ends, end = [], 0
    for blob in blobs:
        if end >= size:
            break
        ends.append(blob)
        end += blob.size
    return ends


def _append(file: Path, data: bytes) -> None:
    with file.open("ab") as opened:
        opened.write(data)
