"""This node's access to the net, as every road uses it: what it carries, and what it may carry.

Rule: whatever road a byte takes, it passes here: blobs through a passage, words by `note`. One
Access is shared by all roads of a node.

    with access.up.begin(peer) as passage:  # with the first byte; down: when it is asked for
        await passage.pass_(len(piece))     # before a piece is written; down: after it was read
        passage.arrived()                   # once the other side has all; down: when all is here
"""

from __future__ import annotations

import asyncio
import math
import time
from collections import OrderedDict
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, nullcontext
from functools import partial
from typing import Self

from demoloco.swarm.links import link
from demoloco.swarm.links.congestion import begins_slowly
from demoloco.swarm.links.limits import Gate
from demoloco.swarm.links.link import Far, Lesson, RoundTrips, Way
from demoloco.swarm.links.pacing import Pacer
from demoloco.swarm.port import Link
from demoloco.types import PeerId

DOWNLOADS_AT_ONCE = 4
"""Of a node whose download is limited: what waits for its tokens waits at the far end."""
COLD_SECONDS = 1.0
"""After a pause of so long a connection begins slowly again."""
MAX_PEERS = 512

Claims = Callable[[PeerId], Link]


class Passage:
    """One blob on its way through the access."""

    def __init__(
        self, begin: Callable[[], link.Passage], gate: Gate, ended: Callable[[], None]
    ) -> None:
        self._begin = begin
        self._passage: link.Passage | None = None
        self._gate = gate
        self._ended = ended

    def begin(self) -> Self:
        """The time counts from now on."""
        self._passage = self._begin()
        return self

    @property
    def slice_bytes(self) -> int:
        """No piece should be longer."""
        return self._gate.slice_bytes

    async def pass_(self, size: int, *, paced: bool = True) -> None:
        """Wait for this node's own limit, and for its pace, then count the bytes."""
        held = await self._gate.pass_(size, paced=paced)
        if self._passage is not None:
            self._passage.carried(size, held)

    def came(self, size: int) -> None:
        """So much came unasked: it does not wait. With the first of it the time begins to count:
        nobody knows when that was sent."""
        self._gate.note(size)
        if self._passage is None:
            self.begin()
        else:
            self._passage.carried(size)

    def arrived(self) -> None:
        """Nothing of it is under way any longer."""
        if self._passage is not None:
            self._passage.end(whole=True)
        self._ended()

    def end(self) -> None:
        """No more of it comes, whether it arrived or not."""
        if self._passage is not None:
            self._passage.end(whole=False)  # unless it arrived

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *why: object) -> None:
        self.end()


class Lane:
    """One direction of the access."""

    def __init__(
        self,
        way: Way,
        gate: Gate,
        ask: Callable[[PeerId], tuple[float, float]],
        now: Callable[[], float],
        *,
        cold_starts: bool,
        pacer: Pacer | None = None,
    ) -> None:
        self._way = way
        self.gate = gate
        self._ask = ask
        self._now = now
        self._pacer = pacer
        self._cold_starts = cold_starts
        self._warm: OrderedDict[PeerId, float] = OrderedDict()  # when a blob last ended
        way.tell = self._hear

    @property
    def rate(self) -> float:
        """Bytes a second that it carries, the limit if that is less or all that is known; 0 = not
        known."""
        known = [rate for rate in (self._way.rate, self.gate.rate) if rate]
        return min(known, default=0.0)

    def begin(self, peer: PeerId) -> Passage:
        passage = self._to(peer, asked=True).begin()
        self._set_pace()
        return passage

    def unasked(self, peer: PeerId) -> Passage:
        """A blob that this peer may send by itself."""
        return self._to(peer, asked=False)

    def _to(self, peer: PeerId, *, asked: bool) -> Passage:
        def begin() -> link.Passage:
            idle = self._now() - self._warm.get(peer, -math.inf)
            cold = self._cold_starts and idle > COLD_SECONDS
            return self._way.begin(Far(peer, *self._ask(peer), cold, asked))

        return Passage(begin, self.gate, partial(self._ended, peer))

    def _ended(self, peer: PeerId) -> None:
        self._warm[peer] = self._now()
        self._warm.move_to_end(peer)
        if len(self._warm) > MAX_PEERS:
            self._warm.popitem(last=False)

    def _hear(self, lesson: Lesson) -> None:
        if self._pacer is not None:
            self._pacer.hear(lesson)
            self._set_pace()

    def _set_pace(self) -> None:
        if self._pacer is not None:
            self.gate.pace = self._pacer.pace(self._way.rate, self._way.claims)

    def note(self, size: int) -> None:
        """Words went this way."""
        self.gate.note(size)


class Access:
    """Both directions. Limits in bytes a second; 0 = none."""

    def __init__(
        self,
        max_upload: float = 0.0,
        max_download: float = 0.0,
        now: Callable[[], float] = time.monotonic,
        *,
        paced: bool = True,
        cold_starts: bool | None = None,  # None: as this machine's TCP has it
    ) -> None:
        self.round_trips = RoundTrips()
        self.claims: Claims = _silent
        """What a peer says that its link carries; set by who knows the members."""
        pacer = Pacer() if paced else None
        cold = begins_slowly() if cold_starts is None else cold_starts
        lane = partial(Lane, now=now, cold_starts=cold)
        gates = Gate(max_upload, now=now), Gate(max_download, now=now)
        self.up = lane(Way(now, upward=True), gates[0], self._as_receiver, pacer=pacer)
        self.down = lane(Way(now, upward=False), gates[1], self._as_sender)
        self._slots = asyncio.Semaphore(DOWNLOADS_AT_ONCE)

    @property
    def link(self) -> Link:
        return Link(up=self.up.rate, down=self.down.rate)

    def download_slot(self) -> AbstractAsyncContextManager[None]:
        """Held while a blob is fetched."""
        return self._slots if self.down.gate.rate else nullcontext()

    def _as_receiver(self, peer: PeerId) -> tuple[float, float]:
        return self.round_trips.of(peer), self.claims(peer).down

    def _as_sender(self, peer: PeerId) -> tuple[float, float]:
        return self.round_trips.of(peer), self.claims(peer).up


def _silent(peer: PeerId) -> Link:
    return Link()
