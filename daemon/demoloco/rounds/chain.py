"""The manifests that a node knows, and the way from its head to another.

Rule: a manifest whose parent is known enters only if it fits it; one whose parent is not known is
checked when a way leads through it. Memory is bounded: what lies more than KEEP_ROUNDS under the
head is forgotten, and of too many manifests beside the chain the lightest.
"""

from __future__ import annotations

from dataclasses import dataclass

from demoloco.rounds.rules import fault_of, genesis_head, head_of
from demoloco.types import Digest, Head, Manifest, PeerId, Round

KEEP_ROUNDS = 128
MAX_BESIDE = 3 * KEEP_ROUNDS

MAX_REPLAY = 256
"""A node further behind than this many rounds takes a snapshot, whatever that costs: so many
manifests fit beside the chain."""


@dataclass(frozen=True, slots=True)
class Path:
    """From the head to a target: manifests to take back (newest first), then to apply (oldest
    first)."""

    undo: tuple[Manifest, ...]
    redo: tuple[Manifest, ...]


class Chain:
    """The applied chain and the manifests known beside it."""

    def __init__(self, head: Head, creator: PeerId) -> None:
        self.head = head
        self._creator = creator
        self._applied: dict[Digest, Head] = {head.digest: head}
        self._known: dict[Digest, Manifest] = {}
        self._beside: dict[Digest, Head] = {}  # known and not applied
        self._unchecked: set[Digest] = set()

    def learn_applied(self, manifest: Manifest) -> None:
        """Remember a manifest of the chain under the head, oldest first, without checks: it was
        applied here."""
        if manifest.round == 1:
            self._applied[manifest.parent] = genesis_head(manifest.parent)
        self._known[manifest.digest] = manifest
        self._applied[manifest.digest] = head_of(manifest)

    def knows(self, digest: Digest) -> bool:
        return digest in self._known or digest in self._applied

    def heads(self) -> tuple[Head, ...]:
        """The known manifests that are not applied, as heads."""
        return tuple(self._beside.values())

    def contributors(self, digest: Digest) -> tuple[PeerId, ...]:
        """Who contributed to this manifest; to the genesis, its creator."""
        manifest = self._known.get(digest)
        if manifest is None:
            return (self._creator,)
        return tuple(entry.contributor for entry in manifest.entries)

    def first_rounds(self) -> dict[PeerId, Round]:
        """The round of each contributor's first contribution to the applied chain, as far as it is
        known."""
        first: dict[PeerId, Round] = {}
        for digest in self._applied.keys() & self._known.keys():
            manifest = self._known[digest]
            for entry in manifest.entries:
                known = first.get(entry.contributor, manifest.round)
                first[entry.contributor] = min(known, manifest.round)
        return first

    def last_rounds(self) -> dict[PeerId, Round]:
        """The round of each contributor's newest contribution, likewise."""
        last: dict[PeerId, Round] = {}
        for digest in self._applied.keys() & self._known.keys():
            manifest = self._known[digest]
            for entry in manifest.entries:
                last[entry.contributor] = max(last.get(entry.contributor, Round(0)), manifest.round)
        return last

    def beside(self) -> tuple[Manifest, ...]:
        """Known manifests at or above the head's round that are not applied."""
        return tuple(
            self._known[head.digest]
            for head in self._beside.values()
            if head.round >= self.head.round
        )

    def add(self, manifest: Manifest) -> str | None:
        """Take a manifest in; the reason if it is refused. Where its parent is unknown it enters
        unchecked and is checked when a path leads through it."""
        if self.knows(manifest.digest):
            return None
        if not self.knows(manifest.parent):
            self._unchecked.add(manifest.digest)
        elif (fault := self._fault(manifest)) is not None:
            return fault
        self._known[manifest.digest] = manifest
        self._beside[manifest.digest] = head_of(manifest)
        if len(self._beside) > MAX_BESIDE:
            self._drop(min(self._beside.values(), key=lambda head: head.samples_total).digest)
        return None

    def path_to(self, target: Digest) -> Path | Digest:
        """The way from the head to `target`, or the digest of the first manifest that is missing on
        it.

        Raises: ValueError with the fault of a manifest on the way, which then is forgotten.
        """
        redo = tuple(reversed(self.known_to(target)))
        at = redo[0].parent if redo else target
        if at not in self._applied:
            return at
        for manifest in redo:
            self._check(manifest)
        return Path(self._above(at), redo)

    def known_to(self, target: Digest) -> list[Manifest]:
        """The manifests from `target` towards my chain, newest first, as far as they are known."""
        found: list[Manifest] = []
        at = target
        while at not in self._applied and (manifest := self._known.get(at)) is not None:
            found.append(manifest)
            at = manifest.parent
        return found

    def move(self, path: Path, head: Head) -> None:
        """The path is applied: its end is the head."""
        for manifest in path.undo:
            del self._applied[manifest.digest]
        for manifest in path.redo:
            self.learn_applied(manifest)
        self.head = head
        self._forget()

    def restart(self, head: Head, manifest: Manifest | None) -> None:
        """Begin anew on a snapshot; only what lies above it stays known."""
        self.head = head
        self._applied = {head.digest: head}
        if manifest is not None:
            self._known[manifest.digest] = manifest
        self._forget()

    def _above(self, ancestor: Digest) -> tuple[Manifest, ...]:
        undo: list[Manifest] = []
        at = self.head.digest
        while at != ancestor:
            manifest = self._known[at]
            undo.append(manifest)
            at = manifest.parent
        return tuple(undo)

    def _check(self, manifest: Manifest) -> None:
        if manifest.digest in self._unchecked:
            if (fault := self._fault(manifest)) is not None:
                self._drop(manifest.digest)
                raise ValueError(fault)
            self._unchecked.discard(manifest.digest)

    def _fault(self, manifest: Manifest) -> str | None:
        """Of a manifest whose parent is known."""
        parent = self._applied.get(manifest.parent) or self._beside[manifest.parent]
        return fault_of(manifest, parent, self.contributors(manifest.parent))

    def _drop(self, digest: Digest) -> None:
        del self._known[digest], self._beside[digest]
        self._unchecked.discard(digest)

    def _forget(self) -> None:
        floor = self.head.round - KEEP_ROUNDS
        self._known = {d: m for d, m in self._known.items() if m.round >= floor}
        self._applied = {d: h for d, h in self._applied.items() if h.round >= floor}
        self._beside = {d: head_of(m) for d, m in self._known.items() if d not in self._applied}
        self._unchecked &= self._beside.keys()
