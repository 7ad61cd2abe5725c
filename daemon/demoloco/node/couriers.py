"""Everything that is fetched from peers: packets, manifests, snapshots.

Rule: each errand ends in exactly one event, whatever happens. Bytes are checked before they are
kept, and kept before anybody is told.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass

from demoloco.codec.gift import max_bytes as gift_limit
from demoloco.codec.layout import CHUNK
from demoloco.errors import PacketError, StoreError, SwarmError
from demoloco.node import gifts
from demoloco.node.descent import MAX_COUNT, Descent
from demoloco.node.disk import Disk
from demoloco.node.ledger import LOG_PACKETS, Ledger
from demoloco.node.report import Report
from demoloco.outer.agreed import fingerprint
from demoloco.rounds import effects as ef
from demoloco.rounds import events as ev
from demoloco.rounds.rules import head_of, heavier
from demoloco.swarm.port import Swarm
from demoloco.types import BlobRef, Digest, Gift, Head, Manifest, PeerId, Round, Snapshot, short
from demoloco.wire import decode_genesis

MAX_GIVERS = 3
GIFT_SECONDS = 30.0
"""So long, or as long as the state took, a joiner waits for its gift when it has the state."""
PROGRESS_SECONDS = 5.0
BEGUN_SECONDS = 3600.0
"""So long the joiner goes on with a snapshot that it began, though there are newer ones."""

LOOK_AROUND_SECONDS = 0.3

Ahead = Callable[[], Sequence[PeerId]]
"""Members that have an agreed state now."""

Log = Sequence[tuple[Manifest, bytes]]
"""Manifests with their signed bytes, linked, newest first."""


@dataclass(frozen=True, slots=True)
class _Begun:
    """A snapshot some parts of which are here."""

    snapshot: Snapshot
    manifest: Manifest | None
    since: float


class Couriers:
    """Carries out errands in tasks of the driver."""

    def __init__(
        self,
        swarm: Swarm,
        ledger: Ledger,
        disk: Disk,
        report: Report,
        post: Callable[[ev.Event], None],
    ) -> None:
        self._swarm = swarm
        self._ledger = ledger
        self._disk = disk
        self._report = report
        self._post = post
        self._given = gifts.Given(ledger.store)
        self._descent = Descent()
        self._begun: _Begun | None = None
        self._turn = 0  # whose snapshot is tried first: not twice that of one who may lie

    async def fetch_packet(self, errand: ef.Fetch) -> None:
        """→ PacketFetched | PacketRefused | FetchFailed."""
        try:
            digest, norm = await self._packet(errand)
        except PacketError as error:
            self._report.count("packets_refused")
            self._report.warn("packet refused", packet=short(errand.packet), why=str(error))
            self._post(ev.PacketRefused(errand.packet))
        except (SwarmError, StoreError) as error:
            self._report.count("fetches_failed")
            self._report.debug("packet not fetched", packet=short(errand.packet), why=str(error))
            self._post(ev.FetchFailed(errand.packet))
        else:
            self._post(ev.PacketFetched(digest, norm))

    async def _packet(self, errand: ef.Fetch) -> tuple[Digest, float]:
        held = await self._disk(self._ledger.packet, errand.packet, errand.offer)
        if held is not None:
            return errand.packet, held.norm
        limit = self._ledger.expected.max_packet_bytes
        if errand.size > limit:
            raise PacketError(f"announced with {errand.size} bytes, the limit is {limit}")
        blob = BlobRef(digest=errand.packet, size=errand.size)
        offer = errand.offer
        sealed = await self._swarm.fetch(blob, errand.holders, packet=True, round=offer.round)
        kept = await self._disk(self._ledger.store_packet, sealed, offer)
        self._swarm.pass_on(offer)
        return kept

    async def fetch_manifests(self, errand: ef.FetchManifests) -> None:
        """→ ManifestsFetched | ManifestsFailed."""
        try:
            found = await self._swarm.manifests(
                errand.holder, errand.head, self._descent.count(errand.head)
            )
        except SwarmError as error:
            self._report.debug("manifests not fetched", head=short(errand.head), why=str(error))
            found = ()
        if not found or found[0][0].digest != errand.head:
            self._post(ev.ManifestsFailed(errand.holder, errand.head))
            return
        for manifest, sealed in found:
            self._ledger.remember(manifest, sealed)
        manifests = tuple(manifest for manifest, _ in found)
        self._descent.found(errand.head, manifests[-1].parent)
        self._post(ev.ManifestsFetched(errand.holder, manifests))

    async def fetch_snapshot(self, errand: ef.FetchSnapshot, ahead: Ahead | None = None) -> None:
        """→ SnapshotFetched | SnapshotFailed. Parts come from several holders at once. A joiner
        looks around first (`ahead`): whom it met first tells it of the others.

        One of which some parts came goes on, as long as each try brings more of it: the newest
        would begin anew, and who has a thin link might never end."""
        event: ev.Event
        holders = errand.holders
        if ahead is not None and self._ledger.store.head() is None:
            await asyncio.sleep(LOOK_AROUND_SECONDS)
            holders = tuple(ahead()) or holders
        try:
            event = await self._snapshot(holders)
        except (SwarmError, StoreError, ValueError) as error:
            event = ev.SnapshotFailed(str(error))
        self._post(event)

    async def _snapshot(self, holders: Sequence[PeerId]) -> ev.SnapshotFetched:
        """Raises: SwarmError, StoreError, ValueError."""
        failed: Exception = SwarmError("nobody serves one")
        begun = self._worth_ending() if holders else None
        first, self._turn = self._turn % max(1, len(holders)), self._turn + 1
        sources: list[PeerId | _Begun] = [*holders[first:], *holders[:first]]
        for source in sources if begun is None else [begun, *sources]:
            try:
                if not isinstance(source, _Begun):
                    return await self._bring(await self._begin(source, holders), holders)
                return await self._bring(source, holders)
            except (SwarmError, StoreError, ValueError) as error:
                if self._begun is not None:
                    raise
                failed = error
        raise failed

    async def _begin(self, holder: PeerId, holders: Sequence[PeerId]) -> _Begun:
        snapshot = await self._swarm.snapshot(holder)
        manifest = await self._manifest_of(snapshot, holder, holders)
        return _Begun(snapshot, manifest, _now())

    def _worth_ending(self) -> _Begun | None:
        """What was begun, if it still leads ahead."""
        head = self._ledger.store.head()
        begun, self._begun = self._begun, None
        if begun is None or _now() - begun.since > BEGUN_SECONDS:
            return None
        return begun if head is None or heavier(begun.snapshot.head, head) else None

    async def _bring(self, begun: _Begun, holders: Sequence[PeerId]) -> ev.SnapshotFetched:
        """All that lacks; if that fails, it stays begun only where it came closer to its end.

        Raises: SwarmError, StoreError."""
        snapshot, store = begun.snapshot, self._ledger.store
        self._check_size(snapshot)
        before = await self._disk(store.missing_parts, snapshot)
        self._begun = None
        try:
            await self._state(snapshot, holders, store.head() is None)
        except (SwarmError, StoreError):
            if len(await self._disk(store.missing_parts, snapshot)) < len(before):
                self._begun = begun
            raise
        name = fingerprint(blob.digest for blob in snapshot.blobs)
        return ev.SnapshotFetched(snapshot.head, name, begun.manifest)

    async def _state(self, snapshot: Snapshot, holders: Sequence[PeerId], joining: bool) -> None:
        """The parts of the state, and beside them a gift, which may take a while longer: it comes
        from one member, whose uplink is left to it where others have the state."""
        if not joining:
            await self._parts(snapshot, holders)
            return
        now = asyncio.get_running_loop().time
        began = now()
        givers = self._swarm.fastest(holders)
        gift = asyncio.create_task(self._ask_for_gift(givers, snapshot.head))
        try:
            try:
                await self._parts(snapshot, givers[1:] or givers)
            except SwarmError:  # the others have it no longer, or are gone
                await self._parts(snapshot, givers)
            async with asyncio.timeout(max(GIFT_SECONDS, now() - began)):
                await gift
        except TimeoutError:
            self._report.line("no gift to start with", why="it takes too long")
        finally:
            gift.cancel()
            await asyncio.gather(gift, return_exceptions=True)

    async def _ask_for_gift(self, givers: Sequence[PeerId], head: Head) -> None:
        """What a joiner may start with; without one it starts from the agreed state."""
        why = "nobody was asked"
        for holder in givers[:MAX_GIVERS]:
            try:
                gift = await self._swarm.gift(holder)
                size = self._gift_size(gift, head)
                await gifts.fetch(gift, holder, self._given.path, self._swarm, self._disk)
                await self._disk(self._given.keep, gift)
            except (SwarmError, StoreError, OSError) as error:
                why = str(error)
                continue
            facts = {"round": gift.head.round, "bytes": size, "lenders": len(gift.lenders)}
            self._report.line("fetched a gift", of=short(holder), **facts)
            return
        self._report.line("no gift to start with", why=why)

    def _gift_size(self, gift: Gift, head: Head) -> int:
        if gift.head.round < head.round:
            raise SwarmError(f"its gift is of round {gift.head.round}, older than the snapshot")
        size = sum(blob.size for blob in gift.blobs)
        if size > gift_limit(self._ledger.expected.spec.chunks):
            raise SwarmError(f"a gift of {size} bytes is too large for this run's model")
        return size

    async def _manifest_of(
        self, snapshot: Snapshot, holder: PeerId, holders: Sequence[PeerId]
    ) -> Manifest | None:
        """The manifest that led to the snapshot, durable; None for the genesis."""
        if snapshot.head.round == 0:
            self._check_genesis(snapshot)
            return None
        found = await self._swarm.manifests(holder, snapshot.head.digest, MAX_COUNT)
        newest = found[0][0]
        if head_of(newest) != snapshot.head:
            raise SwarmError("a snapshot's head is not that of its manifest")
        await self._keep(found)
        if self._ledger.store.head() is not None:  # a joiner has told nothing
            await self._bridge(newest.digest, (holder, *holders))
        return newest

    async def _bridge(self, at: Digest, holders: Sequence[PeerId]) -> None:
        """Join the log up to `at` with mine: it tells what I told on the way here and there. Where
        nobody's log reaches so far, the state is good without, and the machine says what lacks."""
        own = await self._disk(self._ledger.own_log)
        packets = 0
        missing = await self._disk(self._ledger.join, at, own)
        while missing is not None and packets <= LOG_PACKETS:
            found = await self._log_of(missing, holders)
            if not found:
                return
            await self._keep(found)
            packets += sum(len(manifest.entries) for manifest, _ in found)
            missing = await self._disk(self._ledger.join, found[-1][0].digest, own)

    async def _log_of(self, at: Digest, holders: Sequence[PeerId]) -> Log:
        for holder in dict.fromkeys(holders):
            with suppress(SwarmError):
                return await self._swarm.manifests(holder, at, MAX_COUNT)
        return ()

    async def _keep(self, found: Log) -> None:
        for manifest, sealed in found:
            self._ledger.remember(manifest, sealed)
            await self._disk(self._ledger.commit, manifest)

    def _check_genesis(self, snapshot: Snapshot) -> None:
        run = self._ledger.expected.run
        if snapshot.head != Head(digest=run, round=Round(0), samples_total=0):
            raise SwarmError("a snapshot of round 0 that is not of this run's genesis")
        born = self._ledger.store.get(run)
        if born is not None and decode_genesis(born).snapshot != snapshot.blobs:
            raise SwarmError("a snapshot of round 0 that is not the genesis's")

    def _check_size(self, snapshot: Snapshot) -> None:
        size = self._ledger.rows * CHUNK * 4
        if sum(blob.size for blob in snapshot.blobs) != size:
            raise SwarmError("a snapshot of another size than this run's model")

    async def _parts(self, snapshot: Snapshot, holders: Sequence[PeerId]) -> None:
        store = self._ledger.store
        missing = await self._disk(store.missing_parts, snapshot)
        self._report.line(
            "fetching the agreed state",
            round=snapshot.head.round,
            bytes=sum(part.size for part in missing),
            holders=len(holders),
        )
        slots = asyncio.Semaphore(gifts.PARALLEL_PARTS)
        arrived = _Progress(self._report, sum(part.size for part in missing), len(holders))

        async def get(turn: int, part: BlobRef) -> None:
            at = turn % len(holders)
            async with slots:
                data = await self._swarm.fetch(part, [*holders[at:], *holders[:at]])
                # What has come is kept, also if another part fails just now.
                await asyncio.shield(self._disk(store.put_part, snapshot, part, data))
                arrived.tell(part.size)

        try:
            async with asyncio.TaskGroup() as group:
                for turn, part in enumerate(missing):
                    group.create_task(get(turn, part))
        except* (SwarmError, StoreError) as errors:
            raise errors.exceptions[0] from errors
        await self._disk(store.finish_snapshot, snapshot, self._ledger.rows)
        if store.head() is None:
            await self._disk(self._ledger.adopt, snapshot.head)


def _now() -> float:
    return asyncio.get_running_loop().time()


class _Progress:
    """Tells the operator how a state comes in."""

    def __init__(self, report: Report, size: int, holders: int) -> None:
        self._report = report
        self._size = size
        self._holders = holders
        self._now = asyncio.get_running_loop().time
        self._began = self._told = self._now()
        self._came = 0

    def tell(self, length: int) -> None:
        """So many bytes more are kept."""
        self._came += length
        now = self._now()
        if now - self._told < PROGRESS_SECONDS and self._came < self._size:
            return
        self._told = now
        rate = round(self._came / max(now - self._began, 1e-3))
        facts = {"of": self._size, "bytes_a_second": rate, "holders": self._holders}
        self._report.line("agreed state", bytes=self._came, **facts)
