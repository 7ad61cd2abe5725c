"""The manifests that a node knows, and the way from its head to another.

Rule: a manifest enters only if it fits its parent; what does not is refused with a reason. Memory
is bounded: what lies more than KEEP_ROUNDS under the head is forgotten, what lies far above it
never enters.
"""

from __future__ import annotations

from dataclasses import dataclass

from demoloco.rounds.rules import fault_of, head_of
from demoloco.types import Digest, Head, Manifest, PeerId

KEEP_ROUNDS = 128
MAX_KNOWN = 4 * KEEP_ROUNDS


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

    def learn_applied(self, manifest: Manifest) -> None:
        """Remember a manifest of the chain under the head, oldest first, without checks: it was
        applied here."""
        self._known[manifest.digest] = manifest
        self._applied[manifest.digest] = head_of(manifest)

    def knows(self, digest: Digest) -> bool:
        return digest in self._known or digest in self._applied

    def get(self, digest: Digest) -> Manifest | None:
        return self._known.get(digest)

    def heads(self) -> tuple[Head, ...]:
        """The known manifests that are not applied, as heads."""
        return tuple(head_of(m) for d, m in self._known.items() if d not in self._applied)

    def contributors(self, digest: Digest) -> tuple[PeerId, ...]:
        """Who contributed to this manifest; to the genesis, its creator."""
        manifest = self._known.get(digest)
        if manifest is None:
            return (self._creator,)
        return tuple(entry.contributor for entry in manifest.entries)

    def beside(self) -> tuple[Manifest, ...]:
        """Known manifests at or above the head's round that are not applied."""
        return tuple(
            manifest
            for manifest in self._known.values()
            if manifest.digest not in self._applied and manifest.round >= self.head.round
        )

    def remember(self, manifest: Manifest) -> None:
        """Keep a manifest that is vouched for by a snapshot, whatever its parent."""
        self._known[manifest.digest] = manifest

    def add(self, manifest: Manifest) -> str | None:
        """Take a manifest in; the reason if it is refused. Where its parent is unknown it enters
        unchecked and is checked when a path leads through it."""
        if self.knows(manifest.digest):
            return None
        fault = self._fault(manifest)
        if fault is None:
            self._known[manifest.digest] = manifest
            self._bound()
        return fault

    def path_to(self, target: Digest) -> Path | Digest:
        """The way from the head to `target`, or the digest of the first manifest that is missing on
        it.

        Raises: ValueError with the fault of a manifest on the way, which then is forgotten.
        """
        redo: list[Manifest] = []
        at = target
        while at not in self._applied:
            manifest = self._known.get(at)
            if manifest is None:
                return at
            redo.append(manifest)
            at = manifest.parent
        redo.reverse()
        self._check(redo)
        return Path(self._above(at), tuple(redo))

    def move(self, path: Path, head: Head) -> None:
        """The path is applied: its end is the head."""
        for manifest in path.undo:
            del self._applied[manifest.digest]
        for manifest in path.redo:
            self._applied[manifest.digest] = head_of(manifest)
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

    def _check(self, redo: list[Manifest]) -> None:
        for manifest in redo:
            if (fault := self._fault(manifest)) is not None:
                del self._known[manifest.digest]
                raise ValueError(fault)

    def _fault(self, manifest: Manifest) -> str | None:
        parent = self._applied.get(manifest.parent)
        if parent is None:
            known = self._known.get(manifest.parent)
            if known is None:
                return None
            parent = head_of(known)
        return fault_of(manifest, parent, self.contributors(manifest.parent))

    def _bound(self) -> None:
        """Too many manifests beside the chain: the lightest go first."""
        if len(self._known) > MAX_KNOWN:
            loose = [m for m in self._known.values() if m.digest not in self._applied]
            del self._known[min(loose, key=lambda m: m.samples_total).digest]

    def _forget(self) -> None:
        floor = self.head.round - KEEP_ROUNDS
        self._known = {d: m for d, m in self._known.items() if m.round >= floor}
        self._applied = {d: h for d, h in self._applied.items() if h.round >= floor}
