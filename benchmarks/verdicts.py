"""What must hold at the end of a course, whatever happened in it; read from the nodes' own disks.

Rule: the nodes have ended. A complaint says what is wrong where; no complaint, nothing is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from benchmarks.reckoning import forgotten_samples
from benchmarks.records import Course
from demoloco.rounds.rules import told_by
from demoloco.store.disk import open_disk_store
from demoloco.swarm.identity import Identity
from demoloco.types import Manifest, PeerId
from demoloco.wire import decode_manifest

MAX_ROUNDS = 1_000_000


def complaints(course: Course, homes: Sequence[Path]) -> list[str]:
    """What is wrong with these nodes."""
    disks = [chain_on_disk(home) for home in homes]
    found = apart(disks)
    peers = [Identity.load_or_create(home / "identity.key").peer_id for home in homes]
    found += miscounted(course, disks[0], peers)
    if forgotten := forgotten_samples(course):
        found.append(f"{forgotten} samples were learnt and are neither told nor owed")
    return found


def chain_on_disk(home: Path) -> dict[int, Manifest]:
    """Round → manifest, as far back as the log is kept."""
    store = open_disk_store(home)
    try:
        head = store.head()
        sealed = () if head is None else store.manifests(head.digest, MAX_ROUNDS)
    finally:
        store.close()
    chain = (decode_manifest(one, lambda *_: True) for one in sealed)
    return {manifest.round: manifest for manifest in chain}


def apart(disks: Sequence[Mapping[int, Manifest]]) -> list[str]:
    """Rounds in which these chains differ."""
    common = set.intersection(*(set(chain) for chain in disks))
    if not common:
        return ["the nodes' chains have no round in common"]
    differ = [number for number in sorted(common) if len({c[number].digest for c in disks}) > 1]
    return [f"the nodes' chains differ in rounds {differ}"] if differ else []


def miscounted(course: Course, chain: Mapping[int, Manifest], peers: Sequence[PeerId]) -> list[str]:
    """Nodes whose count of what they told is not what the chain has of them, at their last word."""
    if 1 not in chain:  # what was pruned is not known any longer
        return []
    found = []
    for node, peer in enumerate(peers):
        words = [word for word in course.words if word.node == node and word.head]
        at_last = [word for word in words if _is(chain, word.round, word.head)]
        if not at_last:
            found.append(f"node {node} never said that it is on the chain")
            continue
        word = at_last[-1]
        has = told_by(peer, (chain[number] for number in range(1, word.round + 1)))
        if has != word.told:
            says = f"says that it told {word.told} samples, the chain has {has} of it"
            found.append(f"node {node} {says} in round {word.round}")
    return found


def _is(chain: Mapping[int, Manifest], number: int, head: str) -> bool:
    return number in chain and chain[number].digest.hex() == head
