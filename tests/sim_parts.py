"""What a simulated swarm is made of: names, faults, a disk that forgets."""

from __future__ import annotations

from dataclasses import dataclass, field
from hashlib import blake2b

from demoloco.rounds.rules import Pace, head_of
from demoloco.types import Digest, Head, Manifest, Offer, Round

RUN = Digest(b"R" * 32)
GENESIS = Head(digest=RUN, round=Round(0), samples_total=0)
PACE = Pace(
    quorum=0.66, grace_share=0.5, grace_seconds=2.0, succession_seconds=5.0, max_contributors=64
)
SNAPSHOT_EVERY = 5


def digest(*parts: object) -> Digest:
    return Digest(blake2b(repr(parts).encode(), digest_size=32).digest())


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
    the snapshots."""

    depth: int = 1000
    manifests: dict[Digest, Manifest] = field(default_factory=dict)
    packets: dict[Digest, Round] = field(default_factory=dict)
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
        return (head_of(kept[-1]), kept[-1]) if kept else (GENESIS, None)

    def prune(self) -> None:
        assert self.head is not None
        floor = self.head.round - self.depth
        self.packets = {p: r for p, r in self.packets.items() if r > floor}
        for old in [d for d, m in self.manifests.items() if m.round < floor]:
            if self.manifests[old].round % SNAPSHOT_EVERY:
                self.states.pop(old, None)
