"""The envelopes in which peers call each other, in bytes and back.

Rule: as in `wire.py`, bytes in, a value or PacketError out. What is signed stays sealed here: its
own decoder checks it. Every reply but a genesis stays under MAX_REPLY_BYTES, so that the
transport never has to refuse one.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from demoloco.bounds import (
    VERSION,
    check_version,
    peer_from_raw,
    peer_to_raw,
    to_digest,
    within,
)
from demoloco.errors import PacketError
from demoloco.swarm.gossip.doubts import MAX_SILENT
from demoloco.swarm.gossip.rumours import Batch, Silent
from demoloco.types import Digest, Gift, PeerId
from demoloco.wire import (
    blob_message,
    head_message,
    offer_message,
    parse,
    to_blobs,
    to_head,
    to_offer,
)
from demoloco_proto.v1 import packet_pb2, round_pb2

MAX_REQUEST_BYTES = 1 << 20
MAX_REPLY_BYTES = 900 << 10
MAX_GENESIS_BYTES = 5 << 20  # the limits of its parts, and room for what names them
MAX_RECORDS = 256
MAX_OFFERS = 256
MAX_MANIFESTS = 64
MAX_CHUNK_BYTES = 256 << 10
MAX_OFFSET = 1 << 50
MAX_CLOCK_MS = 1 << 53
MAX_LENDERS = 8
MAX_NAMED = 16  # holders in one answer of a busy peer


@dataclass(frozen=True, slots=True)
class Hello:
    """What one peer tells another when they meet or beat: its run, and news of members."""

    run: Digest | None
    records: tuple[bytes, ...]  # sealed members, not yet checked
    clock_ms: int = 0  # in replies only
    silent: tuple[Silent, ...] = ()  # members that did not answer it
    known: int = 0  # how many others the caller knows


@dataclass(frozen=True, slots=True)
class Chunk:
    """A piece of a blob."""

    offset: int
    data: bytes
    last: bool


# Hello


def encode_hello(hello: Hello) -> bytes:
    message = round_pb2.Hello(
        version=VERSION,
        run=hello.run or b"",
        members=_envelopes(hello.records),
        silent=_silent_messages(hello.silent),
        known=hello.known,
    )
    return message.SerializeToString()


def decode_hello(data: bytes) -> Hello:
    told = parse(round_pb2.Hello, data)
    check_version(told.version)
    records = _sealed(told.members, MAX_RECORDS)
    silent = _to_silent(told.silent)
    return Hello(_run_or_none(told.run), records, silent=silent, known=told.known)


def encode_hello_reply(hello: Hello) -> bytes:
    message = round_pb2.HelloReply(
        version=VERSION,
        run=hello.run or b"",
        members=_envelopes(hello.records),
        clock_ms=hello.clock_ms,
        silent=_silent_messages(hello.silent),
    )
    return message.SerializeToString()


def decode_hello_reply(data: bytes) -> Hello:
    told = parse(round_pb2.HelloReply, data)
    check_version(told.version)
    clock = within("clock_ms", told.clock_ms, 0, MAX_CLOCK_MS)
    records, silent = _sealed(told.members, MAX_RECORDS), _to_silent(told.silent)
    return Hello(_run_or_none(told.run), records, clock, silent)


# Genesis


def encode_genesis_reply(genesis: bytes | None) -> bytes:
    return round_pb2.GenesisReply(genesis=genesis or b"").SerializeToString()


def decode_genesis_reply(data: bytes) -> bytes | None:
    """The genesis as it was sent, or None where the peer has no run yet."""
    return parse(round_pb2.GenesisReply, data).genesis or None


# Offers and manifests


def encode_announcement(run: Digest, batch: Batch) -> bytes:
    message = round_pb2.Announcement(
        run=run,
        offers=[offer_message(offer) for offer in batch.offers],
        heard=[offer_message(offer) for offer in batch.heard],
        holds=batch.holds,
        knows=batch.knows,
        coming=batch.coming,
    )
    return message.SerializeToString()


def decode_announcement(data: bytes) -> tuple[Digest, Batch]:
    told = parse(round_pb2.Announcement, data)
    for name in ("offers", "heard", "holds", "knows"):
        within(f"number of {name}", len(getattr(told, name)), 0, MAX_OFFERS)
    batch = Batch(
        offers=tuple(to_offer(offer) for offer in told.offers),
        heard=tuple(to_offer(offer) for offer in told.heard),
        holds=tuple(told.holds),
        knows=tuple(told.knows),
        coming=told.coming,
    )
    if not batch:
        raise PacketError("an announcement of nothing")
    return to_digest("run", told.run), batch


def encode_publication(run: Digest, sealed: bytes) -> bytes:
    return round_pb2.Publication(run=run, manifest=_envelope(sealed)).SerializeToString()


def decode_publication(data: bytes) -> tuple[Digest, bytes]:
    told = parse(round_pb2.Publication, data)
    return to_digest("run", told.run), told.manifest.SerializeToString()


def encode_manifests_request(run: Digest, head: Digest, count: int) -> bytes:
    return round_pb2.ManifestsRequest(run=run, head=head, count=count).SerializeToString()


def decode_manifests_request(data: bytes) -> tuple[Digest, Digest, int]:
    told = parse(round_pb2.ManifestsRequest, data)
    count = within("count", told.count, 1, MAX_MANIFESTS)
    return to_digest("run", told.run), to_digest("head", told.head), count


def encode_manifests_reply(sealed: Sequence[bytes]) -> bytes:
    """As many of the manifests, from the first on, as fit into a reply."""
    return round_pb2.ManifestsReply(
        manifests=_envelopes(fitting(sealed[:MAX_MANIFESTS]))
    ).SerializeToString()


def decode_manifests_reply(data: bytes) -> tuple[bytes, ...]:
    return _sealed(parse(round_pb2.ManifestsReply, data).manifests, MAX_MANIFESTS)


# Snapshots and blobs


def encode_snapshot_request(run: Digest) -> bytes:
    return round_pb2.SnapshotRequest(run=run).SerializeToString()


def decode_snapshot_request(data: bytes) -> Digest:
    return to_digest("run", parse(round_pb2.SnapshotRequest, data).run)


def encode_gift_request(run: Digest) -> bytes:
    return round_pb2.GiftRequest(run=run).SerializeToString()


def decode_gift_request(data: bytes) -> Digest:
    return to_digest("run", parse(round_pb2.GiftRequest, data).run)


def encode_gift_reply(gift: Gift) -> bytes:
    message = round_pb2.GiftReply(
        head=head_message(gift.head),
        blobs=[blob_message(blob) for blob in gift.blobs],
        lenders=[peer_to_raw(lender) for lender in gift.lenders],
    )
    return message.SerializeToString()


def decode_gift_reply(data: bytes) -> Gift:
    told = parse(round_pb2.GiftReply, data)
    within("number of lenders", len(told.lenders), 1, MAX_LENDERS)
    return Gift(
        head=to_head(told.head),
        blobs=to_blobs(told.blobs),
        lenders=tuple(peer_from_raw(lender) for lender in told.lenders),
    )


def encode_blob_request(run: Digest, blob: Digest, offset: int, length: int = 0) -> bytes:
    """`length` bytes from `offset` on; 0: all to the end."""
    message = round_pb2.BlobRequest(run=run, digest=blob, offset=offset, length=length)
    return message.SerializeToString()


def decode_blob_request(data: bytes) -> tuple[Digest, Digest, int, int]:
    told = parse(round_pb2.BlobRequest, data)
    offset = within("offset", told.offset, 0, MAX_OFFSET)
    length = within("length", told.length, 0, MAX_OFFSET)
    return to_digest("run", told.run), to_digest("blob", told.digest), offset, length


def encode_busy(holders: Sequence[PeerId]) -> bytes:
    """The first of these, as many as one answer may name."""
    named = [peer_to_raw(holder) for holder in holders[:MAX_NAMED]]
    return round_pb2.Busy(holders=named).SerializeToString()


def decode_busy(data: bytes) -> tuple[PeerId, ...]:
    told = parse(round_pb2.Busy, data)
    within("number of holders", len(told.holders), 0, MAX_NAMED)
    return tuple(peer_from_raw(holder) for holder in told.holders)


def encode_chunk(chunk: Chunk) -> bytes:
    message = round_pb2.BlobChunk(offset=chunk.offset, data=chunk.data, last=chunk.last)
    return message.SerializeToString()


def decode_chunk(data: bytes) -> Chunk:
    told = parse(round_pb2.BlobChunk, data)
    within("length of a chunk", len(told.data), 0, MAX_CHUNK_BYTES)
    return Chunk(within("offset", told.offset, 0, MAX_OFFSET), told.data, told.last)


# Shared


def fitting(sealed: Iterable[bytes], limit: int = MAX_REPLY_BYTES) -> list[bytes]:
    """The first of these whose lengths add up to at most `limit`, each counted with its framing."""
    kept: list[bytes] = []
    for one in sealed:
        limit -= len(one) + 8
        if limit < 0:
            break
        kept.append(one)
    return kept


def _silent_messages(silent: Iterable[Silent]) -> list[round_pb2.Silent]:
    return [
        round_pb2.Silent(peer=peer_to_raw(one.peer), sequence=one.sequence, asked_ms=one.asked_ms)
        for one in silent
    ]


def _to_silent(told: Sequence[round_pb2.Silent]) -> tuple[Silent, ...]:
    within("number of silent members", len(told), 0, MAX_SILENT)
    return tuple(Silent(peer_from_raw(one.peer), one.sequence, one.asked_ms) for one in told)


def _run_or_none(run: bytes) -> Digest | None:
    return to_digest("run", run) if run else None


def _envelope(sealed: bytes) -> packet_pb2.Signed:
    return packet_pb2.Signed.FromString(sealed)


def _envelopes(sealed: Iterable[bytes]) -> list[packet_pb2.Signed]:
    return [_envelope(one) for one in sealed]


def _sealed(told: Sequence[packet_pb2.Signed], limit: int) -> tuple[bytes, ...]:
    if len(told) > limit:
        raise PacketError(f"{len(told)} signed messages in one; the limit is {limit}")
    return tuple(signed.SerializeToString() for signed in told)
