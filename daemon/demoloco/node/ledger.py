"""The run's log and agreed states in this node's store: what was decided becomes durable here.

Rule: a manifest is applied whole or not at all. The state that it leads to gets a file of its own,
so readers of earlier states are never disturbed. Methods block on the disk; the driver calls them
one at a time in its disk thread, except where they say otherwise.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from functools import lru_cache
from itertools import accumulate, islice, takewhile

from demoloco.codec.layout import CHUNK
from demoloco.codec.packet import Sparse
from demoloco.errors import DemolocoError, StoreError
from demoloco.node.packets import Expected, Packet, read_packet
from demoloco.outer.agreed import Coefficients, fingerprint
from demoloco.outer.steps import OuterStep
from demoloco.rounds.chain import KEEP_ROUNDS, MAX_REPLAY, Chain
from demoloco.rounds.rules import head_of
from demoloco.store.port import Store
from demoloco.types import Digest, Head, Manifest, Offer, PeerId, Round, short
from demoloco.wire import decode_manifest, open_packet

MAX_SEALED = 1024
"""Manifests whose signed bytes are kept in memory: more than a chain and an inbox hold."""

STATES_KEPT = 3
"""Rounds under the head whose states are kept; older ones are made again from a snapshot."""

MAX_REMADE = 64
"""States that are made again, one after the other, to reach the one where a fork begins."""

LOG_ROUNDS = 4096
LOG_PACKETS = 131_072
"""Manifests of the head's chain that are kept, by their number and by that of all the packets that
they name (some 160 bytes each): who was away for so long can still tell what became of its own."""

MAX_FORK = 2 * LOG_ROUNDS
"""Manifests that are looked through for where two chains part."""

Fork = tuple[tuple[Manifest, ...], tuple[Manifest, ...]]


class Lacking(DemolocoError):
    """What a manifest starts from, or a packet of it, is not on this disk any longer."""


class DoesNotApply(DemolocoError):
    """A manifest does not start from what is here, or what it names is gone."""


class Ledger:
    """Sealed manifests, packets and agreed states of one run."""

    def __init__(self, store: Store, expected: Expected, step: OuterStep) -> None:
        self._store = store
        self._expected = expected
        self._step = step
        self._sealed: dict[Digest, bytes] = {}
        self._recent: dict[
            Digest, Manifest
        ] = {}  # what `prune` saw last: not read again each round

    @property
    def store(self) -> Store:
        return self._store

    @property
    def expected(self) -> Expected:
        return self._expected

    @property
    def rows(self) -> int:
        """Of an agreed state: 4096 float32 each."""
        return self._step.planes * self._expected.spec.chunks

    # -- manifests ---------------------------------------------------------------------------------
    def remember(self, manifest: Manifest, sealed: bytes) -> None:
        """Keep the signed bytes at hand; not durable. For the loop's thread."""
        self._sealed[manifest.digest] = sealed

    def bound(self, chain: Chain | None) -> None:
        """Of too many signed bytes at hand, drop the oldest that `chain` has no use for."""
        excess = len(self._sealed) - MAX_SEALED
        if excess > 0:
            idle = [d for d in self._sealed if chain is None or not chain.knows(d)]
            for digest in idle[:excess]:
                del self._sealed[digest]

    def sealed(self, digest: Digest) -> bytes | None:
        """The signed bytes, from memory or disk. For any thread."""
        return self._sealed.get(digest) or self._store.manifest(digest)

    def commit(self, manifest: Manifest) -> None:
        """Make the manifest durable."""
        sealed = self.sealed(manifest.digest)
        if sealed is None:
            raise StoreError(f"the bytes of manifest {short(manifest.digest)} are gone")
        packets = [entry.packet for entry in manifest.entries]
        self._store.append(sealed, head_of(manifest), manifest.parent, packets)

    def manifest(self, digest: Digest) -> Manifest | None:
        """A manifest that is at hand or on disk. For any thread."""
        sealed = self.sealed(digest)
        return None if sealed is None else _opened(sealed)

    def chain(self, head: Digest, count: int = KEEP_ROUNDS) -> tuple[Manifest, ...]:
        """Durable manifests up to `head`, oldest first, as far as they are kept."""
        return tuple(map(_opened, reversed(self._store.manifests(head, count))))

    def fork(self, one: Digest, other: Digest) -> Fork | None:
        """What two chains do not have in common, each oldest first; None if the log does not tell.

        For any thread."""
        sides: tuple[list[Manifest], list[Manifest]] = ([], [])
        ends = [one, other]
        for _ in range(MAX_FORK + 1):
            if ends[0] == ends[1]:
                return tuple(reversed(sides[0])), tuple(reversed(sides[1]))
            tips = [self.manifest(end) for end in ends]
            rounds = [tip.round if tip is not None else 0 for tip in tips]
            higher = int(rounds[1] > rounds[0])
            tip = tips[higher]
            if tip is None:
                return None
            sides[higher].append(tip)
            ends[higher] = tip.parent
        return None

    def around(self, then: Digest, now: Digest) -> Fork:
        """What only the chain up to `then` has, and what only the one up to `now` has. Where the
        log no longer tells how the two belong together, the last rounds that it has are since."""
        fork = self.fork(then, now)
        return ((), self.chain(now)) if fork is None else fork

    def unknown(self, *heads: Digest) -> Round:
        """Where `fork` tells nothing: the newest round that the log lacks under one of these."""
        oldest = [links[-1] for head in heads if (links := self._store.lineage(head, MAX_FORK))]
        return Round(max([1, *(link.head.round - 1 for link in oldest)]))

    def own_log(self) -> frozenset[Digest]:
        """What the head builds on, as far as it is kept."""
        head = self._store.head()
        links = self._store.lineage(head.digest, LOG_ROUNDS) if head is not None else ()
        below = {links[-1].parent} if links else set()
        return frozenset({self._expected.run, *(link.head.digest for link in links), *below})

    def join(self, tip: Digest, own: Collection[Digest]) -> Digest | None:
        """Make all that is at hand from `tip` down to `own` durable; the first that is missing."""
        at = tip
        while True:
            for link in self._store.lineage(at, LOG_ROUNDS):
                if link.head.digest in own:
                    return None
                at = link.parent
            if at in own:
                return None
            manifest = self.manifest(at)
            if manifest is None:
                return at
            self.commit(manifest)

    # -- packets -----------------------------------------------------------------------------------
    def packet(self, digest: Digest, offer: Offer | None = None) -> Packet | None:
        """A stored packet, or None; with `offer`, the one that it says. For any thread.

        Raises: PacketError if a blob of this name is here and is not that packet."""
        sealed = self._store.get(digest)
        return None if sealed is None else read_packet(sealed, self._expected, offer)

    def body(self, digest: Digest) -> bytes | None:
        """A stored packet's coefficients as bytes, or None. It was checked when it was stored."""
        sealed = self._store.get(digest)
        return None if sealed is None else open_packet(sealed, _believe)[1]

    def keep_pending(self, packet: Digest) -> None:
        """This is my packet for the open round: a restart finds it."""
        self._store.note("pending", packet)

    def pending(self, me: PeerId) -> tuple[Offer, float] | None:
        """My stored packet for the round after the head, and its norm."""
        digest, head = self._store.noted("pending"), self._store.head()
        packet = None if digest is None else self.packet(Digest(digest))
        if digest is None or packet is None or head is None:
            return None
        header = packet.header
        if header.parent != head.digest or header.contributor != me:
            return None
        sealed = self._store.get(Digest(digest))
        offer = Offer(
            packet=Digest(digest),
            contributor=me,
            round=Round(header.round),
            parent=header.parent,
            samples=header.samples,
            size=len(sealed or b""),
        )
        return offer, packet.norm

    # -- agreed states -----------------------------------------------------------------------------
    def fingerprint(self, head: Digest) -> Digest:
        """Of the agreed state after this manifest.

        Raises: StoreError if it is not kept."""
        snapshot = self._store.snapshot_of(head)
        if snapshot is None:
            raise StoreError(f"the agreed state after {short(head)} is not kept")
        return fingerprint(blob.digest for blob in snapshot.blobs)

    def apply(self, undo: Sequence[Manifest], redo: Sequence[Manifest]) -> tuple[Head, Digest]:
        """Move the agreed state and the head: durable on return.

        Raises: DoesNotApply if a manifest starts from another state; Lacking if the one that it
        starts from is gone and cannot be made again, or a packet is."""
        head = self._store.head()
        if head is None:
            raise StoreError("no agreed state to start from")
        at = undo[-1].parent if undo else head.digest
        self._remake(at)
        for manifest in redo:
            self._apply_one(at, manifest)
            at = manifest.digest
        head = head_of(redo[-1])
        self._store.move_head(head)
        return head, self.fingerprint(head.digest)

    def _remake(self, wanted: Digest) -> None:
        """Make a state that was pruned again, from the nearest one under it that is kept.

        Raises: Lacking if what that takes is gone."""
        above: list[Manifest] = []
        at = wanted
        while self._store.state(at) is None:
            manifest = self.manifest(at)
            if manifest is None or len(above) == MAX_REMADE:
                raise Lacking(f"the agreed state after {short(wanted)} is not kept")
            above.append(manifest)
            at = manifest.parent
        for manifest in reversed(above):
            self._apply_one(manifest.parent, manifest)

    def _apply_one(self, at: Digest, manifest: Manifest) -> None:
        before = self._store.state(at)
        if before is None:
            raise Lacking(f"the agreed state after {short(at)} is not kept")
        if self.fingerprint(at) != manifest.state:
            ours, theirs = short(self.fingerprint(at)), short(manifest.state)
            raise DoesNotApply(f"it starts from state {theirs}, here is {ours}")
        packets = [self._sparse(entry.packet) for entry in manifest.entries]
        weights = [entry.weight for entry in manifest.entries]

        def fill(out: Coefficients) -> None:
            self._step.advance(before, packets, weights, out)

        self._store.create_state(head_of(manifest), fill, len(before))

    def _sparse(self, digest: Digest) -> Sparse:
        packet = self.packet(digest)
        if packet is None:
            raise Lacking(f"packet {short(digest)} is gone from the disk")
        return packet.sparse

    def adopt(self, head: Head) -> None:
        """Make a fetched snapshot the node's head."""
        self._store.move_head(head)

    def store_packet(self, sealed: bytes, offer: Offer | None) -> tuple[Digest, float]:
        """Check a fetched packet and keep it; its digest and norm.

        Raises: PacketError."""
        packet = read_packet(sealed, self._expected, offer)
        return self._store.put(sealed), packet.norm

    # -- housekeeping ------------------------------------------------------------------------------
    def prune(self, keep: Sequence[Digest], since: Sequence[Digest], me: PeerId) -> None:
        """Bound the disk. `keep`: states, manifests and blobs that somebody still needs; `since`:
        heads of checkpoints, from which on my own packets and the log are needed.

        What I told in the last rounds stays, too: if a longer partition undoes it, I owe it again.
        And all packets as long as those since cost others less than two snapshots.
        """
        head = self._store.head()
        if head is None:
            return
        self._recent = recent = self._last_rounds(head.digest)
        replayed = (entry.packet for manifest in self._replayed() for entry in manifest.entries)
        needed = dict(islice(recent.items(), KEEP_ROUNDS))
        for then in since:
            before, after = self.fork(then, head.digest) or ((), ())
            needed |= {manifest.digest: manifest for manifest in (*before, *after)}
        entries = (manifest.entry_of(me) for manifest in needed.values())
        mine = [entry.packet for entry in entries if entry is not None]
        log = (*self._log(head.digest), *needed, *mine, *replayed)
        self._store.prune(keep, STATES_KEPT, self._store.snapshot_every, log)

    def _last_rounds(self, at: Digest) -> dict[Digest, Manifest]:
        """Newest first."""
        found: dict[Digest, Manifest] = {}
        while len(found) < MAX_REPLAY:
            manifest = self._recent.get(at) or self.manifest(at)
            if manifest is None:
                break
            found[at] = manifest
            at = manifest.parent
        return found

    def _replayed(self) -> list[Manifest]:
        """The last rounds that a node which is behind may want packet by packet: those that a
        snapshot spares it for as many bytes, and those since, which are fewer or kept anyway."""
        sizes = (sum(entry.size for entry in m.entries) for m in self._recent.values())
        most = 2 * self.rows * CHUNK * 4
        within = takewhile(lambda total: total <= most, accumulate(sizes))
        return [manifest for manifest, _ in zip(self._recent.values(), within, strict=False)]

    def _log(self, head: Digest) -> list[Digest]:
        links = self._store.lineage(head, LOG_ROUNDS)
        named = accumulate(len(link.packets) for link in links)
        within = takewhile(lambda total: total <= LOG_PACKETS, named)
        return [link.head.digest for link, _ in zip(links, within, strict=False)]

    def note_json(self, key: str, value: object) -> None:
        """Durably keep a small value."""
        self._store.note(key, json.dumps(value).encode())

    def noted_json(self, key: str) -> object:
        """What `note_json` kept, or None."""
        data = self._store.noted(key)
        try:
            return None if data is None else json.loads(data)
        except ValueError:
            return None


def _believe(peer: PeerId, message: bytes, signature: bytes) -> bool:
    """What is on this node's disk was checked before it came there."""
    return True


@lru_cache(maxsize=2 * KEEP_ROUNDS)
def _opened(sealed: bytes) -> Manifest:
    return decode_manifest(sealed, _believe)
