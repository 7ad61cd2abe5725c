"""How many bytes the messages of a swarm have, by the encoders that make the real ones.

Rule: of each kind one is encoded in full; a message's size then follows from how many of its parts
it has. Signatures, digests and peer ids are as long as real ones; a member has two addresses.
"""

from __future__ import annotations

from functools import cache
from hashlib import blake2b

from demoloco.bounds import peer_from_raw
from demoloco.swarm import calls
from demoloco.swarm.gossip.rumours import Batch, Silent
from demoloco.types import Digest, Draft, Entry, Head, Member, Offer, PeerId, Phase, Round
from demoloco.wire import encode_manifest, encode_member, seal

RUN = Digest(b"R" * 32)
HEAD = Head(digest=RUN, round=Round(1000), samples_total=10**8, rank=1)
CLOCK_MS = 1_800_000_000_000
PEER: PeerId = peer_from_raw(b"\x00\x24\x08\x01\x12\x20" + bytes(range(32)))
MEMBER = Member(
    peer=PEER,
    run=RUN,
    addresses=("/ip4/192.0.2.1/tcp/45321", "/ip4/192.168.178.21/tcp/45321"),
    head=HEAD,
    phase=Phase.TRAINING,
    sequence=CLOCK_MS,
    samples_per_second=123.4,
    version="0.1.0",
    direct=("192.0.2.1:45322",),
    up=2.5e6,
    down=12.5e6,
)
OFFER = Offer(packet=RUN, contributor=PEER, round=Round(1000), parent=RUN, samples=800, size=10**6)


def _sign(message: bytes) -> bytes:
    return bytes(64)


@cache
def record() -> bytes:
    """A sealed member."""
    return seal("member", _sign, encode_member(MEMBER))


@cache
def hello(records: int, silent: int) -> int:
    """A hello with so many records and doubts, the caller's own record counted."""
    named = (Silent(PEER, CLOCK_MS),) * silent
    return len(calls.encode_hello(calls.Hello(RUN, (record(),) * records, 0, named, 200)))


@cache
def hello_reply(records: int, silent: int) -> int:
    named = (Silent(PEER, CLOCK_MS),) * silent
    return len(calls.encode_hello_reply(calls.Hello(RUN, (record(),) * records, CLOCK_MS, named)))


@cache
def announcement(offers: int, names: int) -> int:
    """Of so many offers in full and short names; the answer to one is as long, or empty."""
    batch = Batch(offers=(OFFER,) * offers, holds=(2**63,) * names)
    return len(calls.encode_announcement(RUN, batch)) if batch else 0


def of_batch(batch: Batch) -> int:
    return announcement(len(batch.offers) + len(batch.heard), len(batch.holds) + len(batch.knows))


@cache
def manifest(entries: int) -> bytes:
    """Sealed."""
    named = [blake2b(bytes([i]), digest_size=32).digest() for i in range(entries)]
    peers = [peer_from_raw(b"\x00\x24\x08\x01\x12\x20" + one) for one in named]
    draft = Draft(
        run=RUN,
        round=Round(1000),
        parent=RUN,
        state=RUN,
        proposer=PEER,
        rank=1,
        samples_total=10**8,
        entries=tuple(
            Entry(packet=Digest(d), contributor=p, samples=800, weight=0.01, size=10**6)
            for d, p in zip(named, peers, strict=True)
        ),
    )
    return seal("manifest", _sign, encode_manifest(draft))


@cache
def publication(entries: int) -> int:
    return len(calls.encode_publication(RUN, manifest(entries)))


@cache
def manifests_request() -> int:
    return len(calls.encode_manifests_request(RUN, RUN, 64))


def manifests_reply(entries: list[int]) -> int:
    """Of manifests with so many entries each."""
    return sum(len(manifest(n)) + 4 for n in entries)
