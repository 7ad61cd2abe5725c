"""The protocol's decisions as pure functions; each returns its reason, one text for log, status and
test.

Rule: no state here, no clock; times are seconds on the caller's clock.
"""

from __future__ import annotations

import math
import statistics
import struct
from collections.abc import Collection, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b

from demoloco.rounds.tempo import Tempo
from demoloco.types import Digest, Entry, Head, Manifest, Offer, PeerId, Round, short

MAX_NORM_RATIO = 10.0
"""A packet counts for at most this many times the contributors' median norm."""

MIN_WEIGHT = 2.0**-126
"""A packet counts for something, however little: without a weight the manifest would be none."""

MAX_NAMED = 8
"""Of more members than these a reason says only how many they are."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Pace:
    """The run's settings that decide how a round closes; see RunConfig for units."""

    quorum: float
    max_contributors: int
    ramp_rounds: int = 1


def heavier(one: Head, other: Head) -> bool:
    """Does the chain that ends in `one` win over the chain that ends in `other`?

    More samples, then the lower rank of the last proposer, then the lower digest."""
    if one.samples_total != other.samples_total:
        return one.samples_total > other.samples_total
    return (one.rank, one.digest) < (other.rank, other.digest)


def succession(parent: Digest, contributors: Iterable[PeerId]) -> tuple[PeerId, ...]:
    """The order in which the contributors of `parent` may propose its child: a lottery that nobody
    can steer late."""
    return tuple(sorted(contributors, key=lambda peer: lot(parent, peer)))


def lot(parent: Digest, peer: PeerId) -> bytes:
    """The peer's place in the lottery of this parent's child; the lowest comes first."""
    return blake2b(parent + peer.encode(), digest_size=16).digest()


def line(
    parent: Digest, contributors: Collection[PeerId], others: Collection[PeerId]
) -> tuple[PeerId, ...]:
    """All who may propose the child of `parent`, first in turn first; who did not contribute to the
    parent comes after all who did."""
    late = {*others} - {*contributors}
    return (*succession(parent, contributors), *succession(parent, late))


def rank_of(
    peer: PeerId, parent: Digest, contributors: Collection[PeerId], live: Collection[PeerId]
) -> int:
    """The peer's rank in the line, whoever of it is there."""
    return line(parent, contributors, {*live, peer}).index(peer)


def before(
    peer: PeerId, parent: Digest, contributors: Collection[PeerId], live: Collection[PeerId]
) -> tuple[PeerId, ...]:
    """The live peers that may propose before this one."""
    whole = line(parent, contributors, {*live, peer})
    return tuple(other for other in whole[: whole.index(peer)] if other in live)


@dataclass(frozen=True, slots=True)
class Arrivals:
    """When what came in, for the open round: seconds; None = not yet."""

    opened: float
    first: float | None
    quorum: float | None


def quorum_of(expected: int, pace: Pace) -> int:
    """How many of the expected contributors make a quorum: at least one."""
    return max(1, math.ceil(pace.quorum * expected - 1e-9))


def closes_at(
    expected: Collection[PeerId],
    present: Collection[PeerId],
    arrivals: Arrivals,
    most: int,
    tempo: Tempo,
) -> tuple[float | None, str]:
    """When the round may close with what is in now, and why; None = not before something else
    happens.

    At once when all expected contributors are in, or `most` packets; after a quorum when the grace
    is over; without one when patience is over.
    """
    if not present:
        return None, f"no packet yet of {len(expected)}"
    missing = sorted(peer for peer in expected if peer not in present)
    if not missing:
        return -math.inf, f"all {len(present)} are in"
    if len(present) >= most:
        return -math.inf, f"{len(present)} are in, which is the most that a round takes"
    waiting = f"{len(present)} in, waiting for {_named(missing)}"
    if arrivals.quorum is not None:
        grace = tempo.grace(arrivals.quorum - arrivals.opened, expected)
        return arrivals.quorum + grace, f"{waiting}, {grace:.1f} s grace after the quorum"
    first = arrivals.first if arrivals.first is not None else arrivals.opened
    patience = tempo.patience(first - arrivals.opened)
    return first + patience, f"{waiting}, no quorum, {patience:.1f} s patience"


def _named(peers: Sequence[PeerId]) -> str:
    names = ", ".join(short(peer) for peer in peers[:MAX_NAMED])
    return f"{names} and {len(peers) - MAX_NAMED} more" if len(peers) > MAX_NAMED else names


def entries_of(
    offers: Sequence[Offer],
    norms: Mapping[Digest, float],
    shares: Mapping[PeerId, float] | None = None,
) -> tuple[Entry, ...]:
    """The packets of a manifest in their order, with their effective weights.

    Weight: the packet's samples, scaled down where its norm is beyond MAX_NORM_RATIO times the
    median (packets of nothing set no measure) and to its contributor's share (`ramp`; without one:
    whole), as a share of the sum of them all. In order of contributor.
    """
    taken = sorted(offers, key=lambda offer: offer.contributor)
    measured = [norms[offer.packet] for offer in taken if norms[offer.packet] > 0]
    limit = MAX_NORM_RATIO * statistics.median(measured or [0.0])
    ramped = shares or {}
    counted = [
        offer.samples * _clip(norms[offer.packet], limit) * ramped.get(offer.contributor, 1.0)
        for offer in taken
    ]
    total = math.fsum(counted)
    return tuple(
        Entry(
            packet=offer.packet,
            contributor=offer.contributor,
            samples=offer.samples,
            weight=max(MIN_WEIGHT, float32(samples / total)),
            size=offer.size,
        )
        for offer, samples in zip(taken, counted, strict=True)
    )


def ramp(
    contributors: Iterable[PeerId], first: Mapping[PeerId, int], round: int, ramp_rounds: int
) -> dict[PeerId, float]:
    """The share, up to 1, with which each contributor's samples count in this round.

    `first`: the round of each one's first contribution, as far as the chain tells; who has none
    is new in this round.
    """
    return {
        peer: min(1.0, (1 + round - first.get(peer, round)) / ramp_rounds) for peer in contributors
    }


def _clip(norm: float, limit: float) -> float:
    return min(1.0, limit / norm) if norm > 0 else 1.0


def float32(value: float) -> float:
    """The nearest value that float32 holds."""
    return float(struct.unpack("<f", struct.pack("<f", value))[0])


def fault_of(manifest: Manifest, parent: Head, contributors: Collection[PeerId]) -> str | None:
    """What is wrong with this manifest as a child of `parent`, or None. Its agreed state is checked
    on applying."""
    if manifest.round != parent.round + 1:
        return f"round {manifest.round} cannot follow round {parent.round}"
    told = sum(entry.samples for entry in manifest.entries)
    if manifest.samples_total != parent.samples_total + told:
        there = f"{parent.samples_total} + {told}"
        return f"claims {manifest.samples_total} samples in all, {there} are there"
    order = succession(parent.digest, contributors)
    claimed = order[manifest.rank] if manifest.rank < len(order) else None
    if claimed is not None and claimed != manifest.proposer:
        return f"rank {manifest.rank} is {short(claimed)}'s, not {short(manifest.proposer)}'s"
    if claimed is None and manifest.proposer in order:
        return f"rank {manifest.rank} is not that of {short(manifest.proposer)}, a contributor"
    return None


def offers_of(manifest: Manifest) -> tuple[Offer, ...]:
    """What the manifest says of its packets, as their headers must say it."""
    return tuple(
        Offer(
            packet=entry.packet,
            contributor=entry.contributor,
            round=manifest.round,
            parent=manifest.parent,
            samples=entry.samples,
            size=entry.size,
        )
        for entry in manifest.entries
    )


def told_by(peer: PeerId, manifests: Iterable[Manifest]) -> int:
    """How many samples of this peer the manifests have."""
    entries = (manifest.entry_of(peer) for manifest in manifests)
    return sum(entry.samples for entry in entries if entry is not None)


def missing_bytes(manifests: Iterable[Manifest], held: Container[Digest]) -> int:
    """What it costs to fetch the packets of these rounds that are not held."""
    entries = (entry for manifest in manifests for entry in manifest.entries)
    return sum(entry.size for entry in entries if entry.packet not in held)


def genesis_head(run: Digest) -> Head:
    """The head of a chain that has no manifest yet."""
    return Head(digest=run, round=Round(0), samples_total=0)


def head_of(manifest: Manifest) -> Head:
    """The head that a chain has when it ends in this manifest."""
    return Head(
        digest=manifest.digest,
        round=manifest.round,
        samples_total=manifest.samples_total,
        rank=manifest.rank,
    )
