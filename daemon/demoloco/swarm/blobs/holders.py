"""Who holds which blob, as far as this node knows: by announcements, and by what it gave away.

Rule: a hint for whoever looks for a blob, never a proof; bounded, the oldest is forgotten.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from contextlib import suppress

from demoloco.types import Digest, PeerId

MAX_BLOBS = 4096
MAX_HOLDERS = 64
"""Of one blob: so many are enough to get it from."""


class Holders:
    """A book of blobs and their holders."""

    def __init__(self) -> None:
        self._of: OrderedDict[Digest, dict[PeerId, None]] = OrderedDict()
        self._awaited: dict[Digest, set[asyncio.Event]] = {}

    def note(self, peer: PeerId, blob: Digest) -> None:
        """This peer has all of it."""
        holders = self._of.setdefault(blob, {})
        self._of.move_to_end(blob)
        if peer in holders:
            return
        holders[peer] = None
        if len(holders) > MAX_HOLDERS:
            del holders[next(iter(holders))]
        if len(self._of) > MAX_BLOBS:
            self._of.popitem(last=False)
        for event in self._awaited.get(blob, ()):
            event.set()

    def look_again(self) -> None:
        """A holder that could serve no more may serve again: wake whoever waits for any blob."""
        for waiting in self._awaited.values():
            for event in waiting:
                event.set()

    def forget(self, peer: PeerId, blob: Digest) -> None:
        """It says itself that it does not have it."""
        self._of.get(blob, {}).pop(peer, None)

    def of(self, blob: Digest) -> tuple[PeerId, ...]:
        return tuple(self._of.get(blob, ()))

    def __len__(self) -> int:
        return len(self._of)

    async def news(self, blob: Digest, seconds: float) -> None:
        """Return when another holder of this blob is known or one is free again, at the latest
        after `seconds`."""
        event = asyncio.Event()
        waiting = self._awaited.setdefault(blob, set())
        waiting.add(event)
        try:
            with suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await event.wait()
        finally:
            waiting.discard(event)
            if not waiting:
                self._awaited.pop(blob, None)
