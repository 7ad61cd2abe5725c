"""Upload slots: how many blobs this node sends at once, and whom it sends elsewhere.

Rule: a thin uplink carries one blob at a time, so that somebody soon has it whole and passes it
on; the more a link carries, the more go side by side. Who takes nothing for a moment holds no slot.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

from demoloco.swarm.port import Link
from demoloco.types import Digest, PeerId

SLOT_RATE = 625_000.0
"""Bytes a second, 5 Mbit/s: so much uplink for each slot; a link of no more than this is thin."""
UNKNOWN_SLOTS = 4
MAX_SLOTS = 16
MAX_OF_ONE = 4
"""Streams of one blob at a time: who gets it sooner passes it on sooner."""
SMALL_BYTES = 16 << 10
SMALL_SLOTS = 4
"""Blobs of no more than SMALL_BYTES have slots of their own and wait behind no large one."""
STALL_SECONDS = 5.0
MAX_STREAMS = 64
SPARE_SECONDS = 4.0
SPARE_COPIES = 4
"""A thin holder is spared for the time in which a link that is not thin sends so many copies."""
MAX_REFERRALS = 4096


def is_thin(rate: float) -> bool:
    """Whether a link of so many bytes a second is to be spared; 0 means that nobody knows."""
    return 0 < rate <= SLOT_RATE


def spare_seconds(size: int) -> float:
    """How long others are asked for a blob of this size before a thin holder gives it again."""
    return max(SPARE_SECONDS, SPARE_COPIES * size / SLOT_RATE)


@dataclass(eq=False, slots=True)
class Upload:
    """One stream that this node serves."""

    peer: PeerId
    blob: Digest
    size: int
    moved: float  # when the peer last asked for more


class Slots:
    """What this node sends now."""

    def __init__(self, link: Callable[[], Link], now: Callable[[], float]) -> None:
        self._link = link
        self._now = now
        self._uploads: set[Upload] = set()
        self._referred: OrderedDict[tuple[PeerId, Digest], float] = OrderedDict()

    @property
    def count(self) -> int:
        """How many large blobs may go at once."""
        up = self._link().up
        return max(1, min(MAX_SLOTS, round(up / SLOT_RATE))) if up > 0 else UNKNOWN_SLOTS

    @property
    def under_way(self) -> int:
        """How many streams are served now."""
        return len(self._uploads)

    def take(self, peer: PeerId, blob: Digest, size: int) -> Upload | None:
        """A slot, or None if none is free for this peer: one has at most half of them."""
        if len(self._uploads) >= MAX_STREAMS:
            return None
        now, small = self._now(), size <= SMALL_BYTES
        moving = [one for one in self._uploads if now - one.moved <= STALL_SECONDS]
        taken = [one.peer for one in moving if (one.size <= SMALL_BYTES) == small]
        count = SMALL_SLOTS if small else self.count
        same = sum(one.blob == blob for one in moving)
        if len(taken) >= count or taken.count(peer) >= max(1, count // 2) or same >= MAX_OF_ONE:
            return None
        upload = Upload(peer, blob, size, now)
        self._uploads.add(upload)
        return upload

    def moved(self, upload: Upload) -> None:
        upload.moved = self._now()

    def free(self, upload: Upload) -> None:
        self._uploads.discard(upload)

    def taking(self, blob: Digest) -> list[PeerId]:
        """Who is being sent this blob."""
        return [one.peer for one in self._uploads if one.blob == blob]

    def spares(self, peer: PeerId, blob: Digest, size: int) -> bool:
        """Whether this peer is to try those first who took the blob from here. Once it has had
        time to, it is served."""
        if not is_thin(self._link().up):
            return False
        now = self._now()
        since = self._referred.setdefault((peer, blob), now)
        if len(self._referred) > MAX_REFERRALS:
            self._referred.popitem(last=False)
        return now - since < spare_seconds(size)
