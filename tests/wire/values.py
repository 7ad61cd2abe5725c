"""One value of each kind that travels, made by a fixed key."""

from __future__ import annotations

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from demoloco.swarm.identity import Identity
from demoloco.types import (
    BlobRef,
    Digest,
    Draft,
    Entry,
    Genesis,
    Head,
    Member,
    Offer,
    PacketHeader,
    PeerId,
    Phase,
    Round,
    Snapshot,
)
from demoloco.wire import digest_of


def identity(number: int = 1) -> Identity:
    return Identity(Ed25519PrivateKey.from_private_bytes(bytes([number]) * 32))


def name(text: str) -> Digest:
    return digest_of(text.encode())


ME, OTHER = identity(1), identity(2)
HEADER = PacketHeader(
    run=name("run"),
    round=Round(7),
    parent=name("parent"),
    contributor=ME.peer_id,
    samples=800,
    spec=b"specspec",
    k=64,
)
HEAD = Head(digest=name("head"), round=Round(6), samples_total=9600, rank=1)


def entry(peer: PeerId, packet: str, weight: float = 0.5) -> Entry:
    return Entry(packet=name(packet), contributor=peer, samples=800, weight=weight, size=4711)


DRAFT = Draft(
    run=name("run"),
    round=Round(7),
    parent=name("parent"),
    state=name("state"),
    proposer=ME.peer_id,
    rank=0,
    samples_total=11_200,
    entries=(entry(ME.peer_id, "a"), entry(OTHER.peer_id, "b")),
)
MEMBER = Member(
    peer=ME.peer_id,
    run=name("run"),
    addresses=("/ip4/192.0.2.1/tcp/4001", "/ip4/192.0.2.1/udp/4001/quic-v1"),
    head=HEAD,
    phase=Phase.TRAINING,
    sequence=1_800_000_000_000,
    samples_per_second=12.5,
    version="0.1.0",
)
PART = BlobRef(digest=name("part"), size=16 << 20)
GENESIS = Genesis(
    config=b'{"name":"toy"}',
    layout=b'[["w",[64,64]]]',
    creator=ME.peer_id,
    snapshot=(PART,),
    nonce=bytes(range(16)),
)
SNAPSHOT = Snapshot(head=HEAD, blobs=(PART, BlobRef(digest=name("last"), size=1)))
OFFER = Offer(
    packet=name("a"),
    contributor=ME.peer_id,
    round=Round(7),
    parent=name("parent"),
    samples=800,
    size=4711,
)
