"""Fetching a blob: from whoever has it and is free, going on where the last one stopped.

Rule: a holder that lies is not asked for that blob again, one that is slow is asked last for a
while, one that is busy may be asked again, and nobody who is no member at all. A large blob comes
in spans, from many holders at once. Whatever the holders say, a fetch ends at its deadline.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field

from demoloco.errors import PacketError, SwarmError
from demoloco.swarm.blobs.preference import Preference
from demoloco.swarm.blobs.slots import spare_seconds
from demoloco.swarm.blobs.transfer import DigestMismatch, Span, Suspicion, Transfer
from demoloco.swarm.blobs.turns import Turns
from demoloco.swarm.calls import decode_busy, decode_chunk, encode_blob_request
from demoloco.swarm.service import BUSY, LACKS
from demoloco.swarm.standing import Standing
from demoloco.swarm.timing import Timing
from demoloco.swarm.transport import FRAME_HEADER_BYTES, Busy, Fault, Refused, Unreachable
from demoloco.types import BlobRef, PeerId, Round, short

log = logging.getLogger(__name__)

MAX_PASSES = 3
PAUSE_SECONDS = 0.3
PAUSES_SECONDS = 1.0, 3.0
"""The longest pause before a busy holder is asked again, in a small and in a large swarm."""
PAUSE_SECONDS_A_MEMBER = 0.1
WINDOW_BYTES = 64 << 10
"""A holder that sends less in `chunk_seconds` is left for the next one."""
SPAN_BYTES = 1 << 20
"""So much of a large blob is asked for at a time."""
SPLIT_BYTES = 256 << 10
"""A span that lacks so much at the end is shared with a holder that is free."""
MAX_SPANS_AT_ONCE = 8
"""Of one blob."""

Frames = Callable[[PeerId, bytes], AsyncGenerator[bytes, None]]


class StartAgain(SwarmError):
    """What came is not the blob, or its end cannot be had; fetching anew may succeed."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Wanted:
    """A blob, who may have it, and what it is for."""

    blob: BlobRef
    holders: Sequence[PeerId]
    packet: bool = False
    round: Round | None = None  # of a packet: the open round's go first


@dataclass(eq=False, slots=True)
class _Search:
    """Whom one fetch may still ask, and why not the others."""

    wanted: Wanted
    order: dict[PeerId, None]
    deadline: float | None = None  # counts from when the first holder is asked
    spared: float | None = None  # since when thin holders are
    named: set[PeerId] = field(default_factory=set)  # by holders that were busy
    hopeless: set[PeerId] = field(default_factory=set)
    lacking: set[PeerId] = field(default_factory=set)  # until somebody says that they have it now
    reasons: dict[PeerId, str] = field(default_factory=dict)

    def failed(self) -> SwarmError:
        told = "; ".join(f"{short(peer)}: {why}" for peer, why in self.reasons.items())
        name = short(self.wanted.blob.digest)
        return SwarmError(f"no holder delivered blob {name} ({told or 'none left'})")


@dataclass(slots=True)
class _Pass:
    """For one span: in each pass every holder is asked once."""

    number: int = 0
    vain: int = 0  # passes in which nobody was only busy
    asked: set[PeerId] = field(default_factory=set)
    busy: set[PeerId] = field(default_factory=set)

    def again(self) -> None:
        self.number += 1
        self.vain += not self.busy
        self.asked.clear()
        self.busy.clear()


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

    def __init__(self, standing: Standing, frames: Frames, timing: Timing, turns: Turns) -> None:
        self._standing = standing
        self._frames = frames
        self._timing = timing
        self._turns = turns
        self._preference = Preference(standing)
        self._suspicion = Suspicion()
        self.packets = 0
        self.packet_bytes = 0

    def fastest(self, peers: Sequence[PeerId]) -> tuple[PeerId, ...]:
        """The same peers, the best to ask first."""
        return tuple(self._preference.ordered(peers, (), blind=False))

    async def whole(self, wanted: Wanted) -> bytes:
        """Raises: SwarmError when no holder delivered it."""
        blob, holders = wanted.blob, wanted.holders
        early = await self._early(wanted)
        for turn in range(len({*holders, *self._standing.holders.of(blob.digest)}) + 1):
            order = [*holders[turn:], *holders[:turn]]  # not always first who could not finish
            try:
                data = await self._once(wanted, order, early)
            except StartAgain as error:
                early = None
                log.info("fetch=again blob=%s why=%s", short(blob.digest), error)
                continue
            self.packets += wanted.packet
            return data
        raise SwarmError(f"no holder delivered blob {short(blob.digest)}: all that came was wrong")

    async def _early(self, wanted: Wanted) -> Transfer | None:
        """What came of a packet before it was asked for, if any of it did."""
        blob = wanted.blob
        if not wanted.packet or not self._suspicion.may_resume(blob.digest):
            return None
        early = await self._standing.arriving.rest(blob)
        self.packet_bytes += early.came if early is not None else 0
        return early

    async def _once(self, wanted: Wanted, order: Sequence[PeerId], early: Transfer | None) -> bytes:
        """Raises: StartAgain, SwarmError."""
        blob = wanted.blob
        search = _Search(wanted, dict.fromkeys(order))
        whole = wanted.packet or not self._suspicion.may_resume(blob.digest)
        transfer = early or Transfer(blob, blob.size if whole else SPAN_BYTES)
        left = iter(transfer.spans)
        try:
            async with asyncio.TaskGroup() as group:
                for _ in transfer.spans[:MAX_SPANS_AT_ONCE]:
                    group.create_task(self._bring(left, transfer, search))
        except* SwarmError as errors:
            raise errors.exceptions[0] from None
        try:
            return transfer.finish()
        except DigestMismatch as error:
            self._distrust(blob, error.sources, error)
            raise StartAgain(str(error)) from error

    async def _bring(self, left: Iterator[Span], transfer: Transfer, search: _Search) -> None:
        """One span after the other; then take from those that lack most what others can bring
        sooner. Raises: StartAgain, SwarmError."""
        for span in left:
            await self._fill(span, transfer, search)
        while (slowest := max(transfer.spans, key=lambda span: span.lacks)).lacks >= SPLIT_BYTES:
            if (slow := slowest.holder) is not None and self._can_help(slow, search):
                await self._fill(transfer.split(slowest), transfer, search, frozenset({slow}))
            else:
                await self._standing.holders.news(transfer.blob.digest, PAUSE_SECONDS)

    def _can_help(self, slow: PeerId, search: _Search) -> bool:
        """Whether another holder is free for half of what one still has to send; a thin one helps
        only thin ones."""
        prefer = self._preference
        other = self._next(search, _Pass(asked={slow}))
        if other is None or not prefer.is_free(other):
            return False
        return not prefer.is_thin(other) or prefer.is_thin(slow)

    async def _fill(
        self,
        span: Span,
        transfer: Transfer,
        search: _Search,
        later: frozenset[PeerId] = frozenset(),
    ) -> None:
        """Get all of this span, from whoever is free, from some only after the others.

        Raises: StartAgain, SwarmError."""
        passed = _Pass(asked=set(later))
        while span.lacks:
            if self._next(search, passed) is None:
                await self._pause(search, passed)
                continue
            async with self._turns.turn(lambda: self._rank(search.wanted)):
                holder = self._next(search, passed)  # others may be free by now
                if holder is not None:
                    passed.asked.add(holder)
                    await self._ask(holder, span, transfer, (search, passed))

    # Whom to ask

    def _rank(self, wanted: Wanted) -> tuple[int, ...]:
        """Packets before parts of states, those of the open round first, of these the rarest."""
        if not wanted.packet:
            return (1,)
        record, round_ = self._standing.record, wanted.round
        head = record.head if record is not None else None
        away = abs(round_ - head.round - 1) if head is not None and round_ is not None else 0
        return (0, away, len(self._standing.holders.of(wanted.blob.digest)))

    def _left(self, search: _Search) -> list[PeerId]:
        """Who is a member and may have the blob; to wait for one that is away would hold up the
        node, and one that comes back is asked again."""
        blob = search.wanted.blob.digest
        known = self._standing.holders.of(blob)
        search.lacking.difference_update(known)
        out = search.hopeless | search.lacking | {self._standing.identity.peer_id}
        left = []
        for peer in dict.fromkeys((*search.order, *search.named, *known)):
            if peer not in self._standing.roster:
                search.reasons.setdefault(peer, "it is no member now")
            elif peer not in out and not self._suspicion.lied(peer, blob):
                left.append(peer)
        return left

    def _next(self, search: _Search, passed: _Pass) -> PeerId | None:
        left = [peer for peer in self._left(search) if peer not in passed.asked]
        known = {*search.named, *self._standing.holders.of(search.wanted.blob.digest)}
        for best in self._preference.ordered(left, known, blind=search.wanted.packet):
            if self._preference.is_full(best):
                passed.busy.add(best)
            else:
                return None if self._spares(best, search, passed) else best
        return None

    def _spares(self, holder: PeerId, search: _Search, passed: _Pass) -> bool:
        """A thin holder is not asked while one that is not thin is only busy, for some time."""
        thin = self._preference.is_thin
        if not thin(holder) or all(thin(other) for other in passed.busy):
            return False
        now = self._standing.now()
        search.spared = now if search.spared is None else search.spared
        return now - search.spared < spare_seconds(search.wanted.blob.size)

    async def _pause(self, search: _Search, passed: _Pass) -> None:
        """All were asked: wait until one may be free, or another has the blob.

        Raises: SwarmError where there is no hope."""
        passed.again()
        if passed.vain >= MAX_PASSES or not self._left(search):
            raise search.failed()
        least, most = PAUSES_SECONDS
        longest = min(most, max(least, PAUSE_SECONDS_A_MEMBER * len(self._standing.roster)))
        pause = min(longest, PAUSE_SECONDS * 2.0 ** (passed.number - 1))
        pause *= self._standing.rng.uniform(0.5, 1.5)
        self._check_time(search, pause)
        await self._standing.holders.news(search.wanted.blob.digest, pause)

    def _check_time(self, search: _Search, ahead: float = 0.0) -> None:
        """Raises: SwarmError after the deadline."""
        blob = search.wanted.blob
        slowest = blob.size / WINDOW_BYTES * self._timing.chunk_seconds
        seconds = self._timing.transfer_seconds + slowest
        now = self._standing.now()
        if search.deadline is None:
            search.deadline = now + seconds
        if now + ahead > search.deadline:
            raise SwarmError(f"blob {short(blob.digest)} took over {seconds:.0f} s")

    # Asking one

    async def _ask(
        self, holder: PeerId, span: Span, transfer: Transfer, state: tuple[_Search, _Pass]
    ) -> None:
        """Raises: StartAgain, SwarmError at the deadline."""
        search, passed = state
        self._check_may_go_on(holder, span, search)
        try:
            await self._from(holder, span, transfer, search)
        except Busy as error:
            passed.busy.add(holder)
            self._on_busy(holder, error, search)
        except (PacketError, Refused, Unreachable) as error:
            if str(error) == BUSY:
                passed.busy.add(holder)
            self._learn(holder, error, search)

    async def _from(self, holder: PeerId, span: Span, transfer: Transfer, search: _Search) -> None:
        """What this holder adds to the span; returns when it is complete."""
        now, blob, packet = self._standing.now, transfer.blob, search.wanted.packet
        rest = span.asks(holder)
        length = rest if len(transfer.spans) > 1 or span.end < blob.size else 0
        request = encode_blob_request(self._standing.own_run, blob.digest, span.offset, length)
        window = _Window(self._timing.chunk_seconds, now)
        began, start = now(), span.offset
        self._preference.begins(holder)
        try:
            async with aclosing(self._frames(holder, request)) as frames:
                async for frame in frames:
                    if packet:
                        self.packet_bytes += len(frame) + FRAME_HEADER_BYTES
                    came = transfer.accept(span, decode_chunk(frame))
                    self._turns.came(came)
                    self._check_time(search)
                    if span.lacks:
                        window.came(came)
                    elif span.end < span.asked:
                        break  # somebody else brings the rest
        finally:
            self._preference.ended(holder, span.offset - start, now() - began)
        if span.lacks:
            raise PacketError("the stream ended before the blob did")

    def _check_may_go_on(self, holder: PeerId, span: Span, search: _Search) -> None:
        goes_on = bool(span.sources) and span.sources != {holder}
        if goes_on and not self._suspicion.may_resume(search.wanted.blob.digest):
            raise StartAgain(f"{search.failed()} and nobody else may go on with it")

    # What an answer means

    def _on_busy(self, holder: PeerId, error: Busy, search: _Search) -> None:
        """Others may have it, if they are members: each is asked once more for being named."""
        search.reasons[holder] = str(error)
        self._preference.was_busy(holder)
        try:
            named = decode_busy(error.body)
        except PacketError as wrong:
            self._standing.drop(holder, f"holders that it named: {wrong}")
            return
        members = {peer for peer in named if peer in self._standing.roster} - {holder}
        search.named |= members
        search.lacking -= members

    def _learn(self, holder: PeerId, error: SwarmError | PacketError, search: _Search) -> None:
        """What the holder's failure means for this fetch and the next."""
        blob = search.wanted.blob
        search.reasons[holder] = str(error)
        if isinstance(error, PacketError):
            self._distrust(blob, frozenset({holder}), error)
            search.hopeless.add(holder)
            return
        self._standing.failed_calls += 1
        if isinstance(error, Refused):
            if str(error).startswith(LACKS):
                self._standing.holders.forget(holder, blob.digest)
                search.lacking.add(holder)
            elif str(error) != BUSY:
                search.hopeless.add(holder)
        if isinstance(error, Unreachable) and error.fault in (Fault.SLOW, Fault.TIMEOUT):
            if self._preference.was_slow(holder):
                told = "holder=slow peer=%s why=%s; others are asked first"
                log.warning(told, short(holder), error)
            if error.fault is Fault.SLOW:
                search.hopeless.add(holder)

    def _distrust(self, blob: BlobRef, sources: frozenset[PeerId], error: PacketError) -> None:
        self._standing.dropped += 1  # it has a line of its own
        self._suspicion.note(blob.digest, sources)
        who = ",".join(short(peer) for peer in sorted(sources))
        log.warning("holder=distrusted peer=%s why=%s", who, error)
