"""What a simulated swarm is made of: names, faults, a disk that forgets."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from hashlib import blake2b

from demoloco.rounds.rules import Pace, head_of
from demoloco.types import Digest, Head, Manifest, Member, Offer, PeerId, Phase, Round

RUN = Digest(b"R" * 32)
GENESIS = Head(digest=RUN, round=Round(0), samples_total=0)
PACE = Pace(quorum=0.66, max_contributors=64)
SNAPSHOT_EVERY = 5


def digest(*parts: object) -> Digest:
    return Digest(blake2b(repr(parts).encode(), digest_size=32).digest())


def newcomer(name: PeerId) -> Member:
    """What a node says of itself first."""
    where = (f"/sim/{name}",)  # without one, leaving is a goodbye
    return Member(peer=name, run=RUN, addresses=where, head=None, phase=Phase.JOINING, sequence=0)


@dataclass
class Faults:
    """What may go wrong: seconds, and shares of all messages. An answer is lost like a message."""

    delay: tuple[float, float] = (0.01, 0.3)
    transfer: tuple[float, float] = (0.0, 0.1)
    loss: float = 0.0
    twice: float = 0.0


@dataclass
class Disk:
    """What survives a crash. Packets and states deeper than `depth` under the head are gone, except
    the snapshots; so are manifests deeper than `log_depth` and own packets than `own_depth`."""

    depth: int = 1000
    log_depth: int = 4096
    own_depth: int = 128
    manifests: dict[Digest, Manifest] = field(default_factory=dict)
    packets: dict[Digest, Round] = field(default_factory=dict)
    mine: dict[Digest, Round] = field(default_factory=dict)  # own packets
    given_up: set[Digest] = field(default_factory=set)  # own packets that could not be owed again
    states: dict[Digest, Digest] = field(default_factory=dict)  # head → fingerprint
    head: Head | None = None
    pending: Offer | None = None
    owed: int = 0  # in the checkpoint

    def chain(self, head: Digest) -> tuple[Manifest, ...]:
        """The manifests up to `head`, oldest first."""
        chain: list[Manifest] = []
        while (manifest := self.manifests.get(head)) is not None:
            chain.append(manifest)
            head = manifest.parent
        return tuple(reversed(chain))

    def snapshot(self) -> tuple[Head, Manifest | None]:
        """The newest that is served."""
        assert self.head is not None
        chain = self.chain(self.head.digest)
        kept = [m for m in chain if m.round % SNAPSHOT_EVERY == 0 and m.digest in self.states]
        if kept or RUN not in self.states:
            last = kept[-1] if kept else self.manifests[self.head.digest]
            return head_of(last), last
        return GENESIS, None

    def bridge(self, at: Digest, other: Disk) -> Digest:
        """Take the log from `at` down to the own one from another; the first that both lack."""
        assert self.head is not None
        own = {RUN, *(manifest.digest for manifest in self.chain(self.head.digest))}
        while at not in own:
            manifest = self.manifests.get(at) or other.manifests.get(at)
            if manifest is None:
                break
            self.manifests[at] = manifest
            at = manifest.parent
        return at

    def gone(
        self, me: PeerId, undo: Iterable[Manifest], redo: Iterable[Manifest]
    ) -> tuple[int, set[str]]:
        """What is owed by the log and not in the model, for own packets that held it are gone; and
        what that is: lost, or found, where one that was given up so is told after all."""
        told = [entry for manifest in redo if (entry := manifest.entry_of(me))]
        untold = [entry for manifest in undo if (entry := manifest.entry_of(me))]
        missing = [entry for entry in untold if entry.packet not in self.mine]
        words = {"found" for entry in told if entry.packet in self.given_up}
        self.given_up |= {entry.packet for entry in missing}
        lost = sum(entry.samples for entry in missing)
        lost += 10**9 * any(entry.packet not in self.mine for entry in told)
        return lost, words | ({"lost"} if lost else set())

    def fork(self, one: Digest, other: Digest) -> tuple[list[Manifest], list[Manifest]] | None:
        """What only one of two chains has, oldest first; None if the log does not tell."""
        mine, theirs = self.chain(one), self.chain(other)
        there = {manifest.digest: at for at, manifest in enumerate(theirs)}
        bases = [mine[0].parent if mine else one, theirs[0].parent if theirs else other]
        for at in range(len(mine), -1, -1):
            base = mine[at - 1].digest if at else bases[0]
            if base in there or base == bases[1]:
                return [*mine[at:]], [*theirs[there.get(base, -1) + 1 :]]
        return None

    def unknown(self, *heads: Digest) -> Round:
        """Where `fork` tells nothing: the newest round that lacks."""
        logs = [log for head in heads if (log := self.chain(head))]
        return Round(max(log[0].round - 1 for log in logs))

    def prune(self) -> None:
        assert self.head is not None
        floor = self.head.round - self.depth
        self.packets = {p: r for p, r in self.packets.items() if r > floor}
        own_floor = self.head.round - self.own_depth
        self.mine = {p: r for p, r in self.mine.items() if r > own_floor}
        for old in [d for d, m in self.manifests.items() if m.round < floor]:
            if self.manifests[old].round % SNAPSHOT_EVERY:
                self.states.pop(old, None)
        log_floor = self.head.round - self.log_depth
        for old in [d for d, m in self.manifests.items() if m.round < log_floor]:
            del self.manifests[old]
            self.states.pop(old, None)
        if log_floor > 0:
            self.states.pop(RUN, None)
