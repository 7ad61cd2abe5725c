"""The envelopes of calls between peers: the same value out, or a PacketError."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from demoloco import wire
from demoloco.bounds import peer_to_raw
from demoloco.errors import PacketError
from demoloco.swarm import calls
from demoloco.swarm.gossip.rumours import Batch, Silent
from demoloco.types import Gift, Head, Round
from demoloco_proto.v1 import packet_pb2, round_pb2
from tests.wire.values import DRAFT, GENESIS, ME, MEMBER, OFFER, name

RUN = name("run")
MANIFEST = wire.seal("manifest", ME.sign, wire.encode_manifest(DRAFT))
RECORD = wire.seal("member", ME.sign, wire.encode_member(MEMBER))
CROWD = Batch(offers=(OFFER,) * 257)
SILENT = Silent(ME.peer_id, 1_800_000_000_000, 2500)
CHUNK = calls.Chunk(512, b"data", True)
GIFT = Gift(
    head=Head(digest=name("head"), round=Round(3), samples_total=9),
    blobs=GENESIS.snapshot,
    lenders=(ME.peer_id,),
)


def test_a_hello_and_its_reply_come_back() -> None:
    for run in (None, RUN):
        hello = calls.Hello(run, (RECORD,), silent=(SILENT,), known=7)
        assert calls.decode_hello(calls.encode_hello(hello)) == hello
        reply = calls.Hello(run, (RECORD, RECORD), 1_800_000_000_000, (SILENT,))
        assert calls.decode_hello_reply(calls.encode_hello_reply(reply)) == reply


def test_a_genesis_comes_back_or_none() -> None:
    genesis = wire.encode_genesis(GENESIS)
    assert calls.decode_genesis_reply(calls.encode_genesis_reply(genesis)) == genesis
    assert calls.decode_genesis_reply(calls.encode_genesis_reply(None)) is None


def test_announcements_and_publications_come_back() -> None:
    batch = Batch(offers=(OFFER, OFFER), heard=(OFFER,), holds=(2**64 - 1,), knows=(0, 1))
    assert calls.decode_announcement(calls.encode_announcement(RUN, batch)) == (RUN, batch)
    assert calls.decode_publication(calls.encode_publication(RUN, MANIFEST)) == (RUN, MANIFEST)


def test_requests_and_their_replies_come_back() -> None:
    request = calls.encode_manifests_request(RUN, name("head"), 64)
    assert calls.decode_manifests_request(request) == (RUN, name("head"), 64)
    reply = calls.encode_manifests_reply([MANIFEST, MANIFEST])
    assert calls.decode_manifests_reply(reply) == (MANIFEST, MANIFEST)
    assert calls.decode_snapshot_request(calls.encode_snapshot_request(RUN)) == RUN
    assert calls.decode_gift_request(calls.encode_gift_request(RUN)) == RUN
    assert calls.decode_gift_reply(calls.encode_gift_reply(GIFT)) == GIFT
    blob = calls.encode_blob_request(RUN, name("blob"), 512)
    assert calls.decode_blob_request(blob) == (RUN, name("blob"), 512, 0)
    part = calls.encode_blob_request(RUN, name("blob"), 512, 64)
    assert calls.decode_blob_request(part) == (RUN, name("blob"), 512, 64)
    assert calls.decode_busy(calls.encode_busy([ME.peer_id] * 17)) == (ME.peer_id,) * 16
    assert calls.decode_busy(b"") == ()
    assert calls.decode_chunk(calls.encode_chunk(CHUNK)) == CHUNK


def test_a_reply_takes_as_many_manifests_as_fit() -> None:
    large = packet_pb2.Signed(body=bytes(300 << 10), signature=bytes(64)).SerializeToString()
    kept = calls.decode_manifests_reply(calls.encode_manifests_reply([large] * 9))
    assert len(kept) == 2
    assert len(calls.encode_manifests_reply([large] * 9)) <= calls.MAX_REPLY_BYTES


@pytest.mark.parametrize(
    ("decode", "data", "why"),
    [
        (
            calls.decode_hello,
            round_pb2.Hello(version=1, members=[packet_pb2.Signed()] * 257).SerializeToString(),
            "257 signed messages",
        ),
        (calls.decode_hello, round_pb2.Hello(version=1, run=b"x").SerializeToString(), "run has 1"),
        (calls.decode_hello, round_pb2.Hello(version=2).SerializeToString(), "version 2"),
        (
            calls.decode_hello_reply,
            round_pb2.HelloReply(version=3).SerializeToString(),
            "version 3",
        ),
        (
            calls.decode_hello_reply,
            round_pb2.HelloReply(version=1, clock_ms=calls.MAX_CLOCK_MS + 1).SerializeToString(),
            "clock_ms",
        ),
        (calls.decode_announcement, calls.encode_announcement(RUN, Batch()), "of nothing"),
        (
            calls.decode_announcement,
            calls.encode_announcement(RUN, Batch(offers=(OFFER,) * 257)),
            "offers is 257",
        ),
        (calls.decode_manifests_request, calls.encode_manifests_request(RUN, RUN, 0), "count is 0"),
        (
            calls.decode_manifests_request,
            calls.encode_manifests_request(RUN, RUN, 65),
            "count is 65",
        ),
        (
            calls.decode_manifests_reply,
            round_pb2.ManifestsReply(manifests=[packet_pb2.Signed()] * 65).SerializeToString(),
            "65 signed messages",
        ),
        (
            calls.decode_blob_request,
            calls.encode_blob_request(RUN, RUN, calls.MAX_OFFSET + 1),
            "offset is",
        ),
        (
            calls.decode_blob_request,
            calls.encode_blob_request(RUN, RUN, 0, calls.MAX_OFFSET + 1),
            "length is",
        ),
        (
            calls.decode_busy,
            round_pb2.Busy(holders=[peer_to_raw(ME.peer_id)] * 17).SerializeToString(),
            "holders is 17",
        ),
        (
            calls.decode_chunk,
            calls.encode_chunk(calls.Chunk(0, bytes(calls.MAX_CHUNK_BYTES + 1), False)),
            "length of a chunk",
        ),
        (
            calls.decode_chunk,
            calls.encode_chunk(calls.Chunk(calls.MAX_OFFSET + 1, b"x", False)),
            "offset is",
        ),
        (
            calls.decode_gift_reply,
            calls.encode_gift_reply(replace(GIFT, lenders=GIFT.lenders * 9)),
            "number of lenders is 9",
        ),
        (
            calls.decode_gift_reply,
            calls.encode_gift_reply(replace(GIFT, lenders=())),
            "number of lenders is 0",
        ),
        (
            calls.decode_gift_reply,
            calls.encode_gift_reply(replace(GIFT, blobs=())),
            "number of parts is 0",
        ),
    ],
)
def test_one_over_a_bound_is_refused(
    decode: Callable[[bytes], object], data: bytes, why: str
) -> None:
    with pytest.raises(PacketError, match=why):
        decode(data)


VALUES = calls.Hello | calls.Chunk | Gift
DECODERS: tuple[Callable[[bytes], object], ...] = (
    calls.decode_hello,
    calls.decode_hello_reply,
    calls.decode_genesis_reply,
    calls.decode_announcement,
    calls.decode_publication,
    calls.decode_manifests_request,
    calls.decode_manifests_reply,
    calls.decode_snapshot_request,
    calls.decode_gift_request,
    calls.decode_gift_reply,
    calls.decode_blob_request,
    calls.decode_busy,
    calls.decode_chunk,
)


@settings(max_examples=300, deadline=None)
@given(data=st.binary(max_size=200), decode=st.sampled_from(DECODERS))
def test_any_bytes_are_a_value_or_a_packet_error(
    data: bytes, decode: Callable[[bytes], object]
) -> None:
    value: object = PacketError
    with contextlib.suppress(PacketError):
        value = decode(data)
    assert value is PacketError or value is None or isinstance(value, tuple | bytes | VALUES)
