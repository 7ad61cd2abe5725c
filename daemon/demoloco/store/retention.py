"""Which rounds are worth their disk: pure decisions, the same for every adapter.

Rule: they are made from the links of the log and the heads of the kept states alone, and name what
stays; whatever is not named may go.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice

from demoloco.types import Digest, Head

SERVED_SNAPSHOTS = 2  # so that a joiner that began with the older one can end


@dataclass(frozen=True, slots=True)
class Link:
    """One manifest's place in the log: the head it makes, what it builds on, what it names."""

    head: Head
    parent: Digest
    packets: tuple[Digest, ...]


@dataclass(frozen=True, slots=True)
class Retention:
    """What stays: these states, manifests from round `floor` on, packets of the rounds after it."""

    states: frozenset[Digest]
    floor: int


def ancestry(links: Mapping[Digest, Link], tip: Digest) -> Iterator[Digest]:
    """`tip` and what it builds on, towards the genesis, as far as the log tells."""
    seen: set[Digest] = set()
    while tip not in seen:
        yield tip
        seen.add(tip)
        link = links.get(tip)
        if link is None:
            return
        tip = link.parent


def lineage(links: Mapping[Digest, Link], tip: Digest, count: int) -> list[Link]:
    """The links of `tip` and what it builds on, towards the genesis, at most so many."""
    found = (links.get(digest) for digest in islice(ancestry(links, tip), max(count, 0)))
    return [link for link in found if link is not None]


def snapshot_rounds(
    states: Mapping[Digest, Head], chain: Iterable[Digest], snapshot_every: int
) -> list[Head]:
    """The heads on the chain whose states are kept for joiners, newest first."""
    kept = (states[digest] for digest in chain if digest in states)
    return [head for head in kept if head.round % snapshot_every == 0]


def retain(
    head: Head,
    links: Mapping[Digest, Link],
    states: Mapping[Digest, Head],
    depth: int,
    snapshot_every: int,
) -> Retention:
    """Keep the last `depth` rounds, the newest snapshot rounds, and what is ahead of the head."""
    chain = list(ancestry(links, head.digest))
    snapshots = snapshot_rounds(states, chain, snapshot_every)[:SERVED_SNAPSHOTS]
    recent = head.round - depth
    on_chain = frozenset(chain)
    kept = {
        digest
        for digest, state in states.items()
        if state.round > head.round or (state.round > recent and digest in on_chain)
    }
    kept |= {snapshot.digest for snapshot in snapshots} | {head.digest}
    floor = min([recent, *(snapshot.round for snapshot in snapshots)])
    return Retention(frozenset(kept), floor)


def packet_rounds(links: Iterable[Link]) -> dict[Digest, int]:
    """For each packet that the log names, the newest round that does."""
    rounds: dict[Digest, int] = {}
    for link in links:
        for packet in link.packets:
            rounds[packet] = max(link.head.round, rounds.get(packet, 0))
    return rounds


class PacketAges:
    """How old a blob is, in rounds: by the log, else by when housekeeping first met it."""

    def __init__(self) -> None:
        self._met: dict[Digest, int] = {}

    def old(
        self, blobs: Collection[Digest], named: Mapping[Digest, int], head: Head, floor: int
    ) -> set[Digest]:
        """Those of `blobs` that belong to round `floor` or before."""
        self._met = {digest: self._met.get(digest, head.round + 1) for digest in blobs}
        return {digest for digest, met in self._met.items() if named.get(digest, met) <= floor}

    def renew(self, digest: Digest) -> None:
        """Somebody wants this blob again: count its age from now on."""
        self._met.pop(digest, None)
