"""Everything that is fetched from peers: packets, manifests, snapshots.

Rule: each errand ends in exactly one event, whatever happens. Bytes are checked before they are
kept, and kept before anybody is told.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from demoloco.codec.layout import CHUNK
from demoloco.errors import PacketError, StoreError, SwarmError
from demoloco.node.disk import Disk
from demoloco.node.ledger import Ledger
from demoloco.node.report import Report
from demoloco.outer.agreed import fingerprint
from demoloco.rounds import effects as ef
from demoloco.rounds import events as ev
from demoloco.swarm.port import Swarm
from demoloco.types import BlobRef, Digest, Manifest, PeerId, Snapshot, short

MAX_MANIFESTS = 64
PARALLEL_PARTS = 4


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
        held = await self._disk(self._ledger.packet, errand.packet)
        if held is not None:
            return errand.packet, held.norm
        limit = self._ledger.expected.max_packet_bytes
        if errand.size > limit:
            raise PacketError(f"announced with {errand.size} bytes, the limit is {limit}")
        blob = BlobRef(digest=errand.packet, size=errand.size)
        sealed = await self._swarm.fetch(blob, errand.holders, packet=True)
        return await self._disk(self._ledger.store_packet, sealed, errand.offer)

    async def fetch_manifests(self, errand: ef.FetchManifests) -> None:
        """→ ManifestsFetched | ManifestsFailed."""
        try:
            found = await self._swarm.manifests(errand.holder, errand.head, MAX_MANIFESTS)
        except SwarmError as error:
            self._report.debug("manifests not fetched", head=short(errand.head), why=str(error))
            found = ()
        if not found or found[0][0].digest != errand.head:
            self._post(ev.ManifestsFailed(errand.holder, errand.head))
            return
        for manifest, sealed in found:
            self._ledger.remember(manifest, sealed)
        manifests = tuple(manifest for manifest, _ in found)
        self._post(ev.ManifestsFetched(errand.holder, manifests))

    async def fetch_snapshot(self, errand: ef.FetchSnapshot) -> None:
        """→ SnapshotFetched | SnapshotFailed. Parts come from several holders at once."""
        why = "nobody serves one"
        for holder in errand.holders:
            try:
                snapshot = await self._swarm.snapshot(holder)
                manifest = await self._manifest_of(snapshot, holder)
                await self._parts(snapshot, errand.holders)
            except (SwarmError, StoreError, ValueError) as error:
                why = str(error)
                continue
            name = fingerprint(blob.digest for blob in snapshot.blobs)
            self._post(ev.SnapshotFetched(snapshot.head, name, manifest))
            return
        self._post(ev.SnapshotFailed(why))

    async def _manifest_of(self, snapshot: Snapshot, holder: PeerId) -> Manifest | None:
        """The manifest that led to the snapshot, durable; None for the genesis."""
        if snapshot.head.round == 0:
            return None
        found = await self._swarm.manifests(holder, snapshot.head.digest, 1)
        if not found or found[0][0].digest != snapshot.head.digest:
            raise SwarmError("the holder of a snapshot does not know its manifest")
        manifest, sealed = found[0]
        if manifest.round != snapshot.head.round:
            raise SwarmError("a snapshot of another round than its manifest's")
        self._ledger.remember(manifest, sealed)
        await self._disk(self._ledger.commit, manifest)
        return manifest

    async def _parts(self, snapshot: Snapshot, holders: Sequence[PeerId]) -> None:
        chunks = self._ledger.expected.spec.chunks
        if sum(blob.size for blob in snapshot.blobs) != chunks * CHUNK * 4:
            raise SwarmError("a snapshot of another size than this run's model")
        store = self._ledger.store
        if store.snapshot_of(snapshot.head.digest) is None:
            missing = await self._disk(store.missing_parts, snapshot)
            self._report.line(
                "fetching the agreed state",
                round=snapshot.head.round,
                bytes=sum(part.size for part in missing),
                holders=len(holders),
            )
            slots = asyncio.Semaphore(PARALLEL_PARTS)

            async def get(turn: int, part: BlobRef) -> None:
                at = turn % len(holders)
                async with slots:
                    data = await self._swarm.fetch(part, [*holders[at:], *holders[:at]])
                    await self._disk(store.put_part, snapshot, part, data)

            try:
                async with asyncio.TaskGroup() as group:
                    for turn, part in enumerate(missing):
                        group.create_task(get(turn, part))
            except* (SwarmError, StoreError) as errors:
                raise errors.exceptions[0] from errors
            await self._disk(store.finish_snapshot, snapshot, chunks)
        if store.head() is None:
            await self._disk(self._ledger.adopt, snapshot.head)
