"""Reassembly of a blob, frames, and whom not to ask again."""

from __future__ import annotations

import asyncio

import pytest

from demoloco.errors import PacketError
from demoloco.swarm.blobs import transfer as transfer_module
from demoloco.swarm.blobs.transfer import DigestMismatch, Span, Suspicion, Transfer
from demoloco.swarm.calls import Chunk
from demoloco.swarm.hivemind.faults import fault_of
from demoloco.swarm.hivemind.framing import Kind, read_frame
from demoloco.swarm.transport import MAX_FRAME_BYTES, Fault, Refused
from demoloco.types import BlobRef, PeerId
from demoloco.wire import digest_of

ANN, BOB = PeerId("ann"), PeerId("bob")
BLOB = BlobRef(digest=digest_of(b"abcdef"), size=6)


def take(transfer: Transfer, span: Span, holder: PeerId, chunk: Chunk) -> int:
    span.asks(holder)
    return transfer.accept(span, chunk)


def test_two_holders_make_one_blob() -> None:
    transfer = Transfer(BLOB, 6)
    (span,) = transfer.spans
    assert take(transfer, span, ANN, Chunk(0, b"abc", False)) == 3
    assert span.lacks == 3
    assert take(transfer, span, BOB, Chunk(3, b"def", True)) == 3
    assert not span.lacks
    assert transfer.sources == {ANN, BOB}
    assert transfer.finish() == b"abcdef"


def test_spans_come_in_any_order() -> None:
    transfer = Transfer(BLOB, 4)
    first, second = transfer.spans
    take(transfer, second, BOB, Chunk(4, b"ef", True))
    take(transfer, first, ANN, Chunk(0, b"ab", False))
    take(transfer, first, ANN, Chunk(2, b"cd", True))
    assert transfer.finish() == b"abcdef"


@pytest.mark.parametrize(
    ("chunk", "why"),
    [
        (Chunk(1, b"b", False), "offset 1 came at 0"),
        (Chunk(0, b"abcdefg", True), "more than the 6 bytes"),
        (Chunk(0, b"abc", True), "ends at 3, not at 6"),
        (Chunk(0, b"abcdef", False), "ends at 6"),
        (Chunk(0, b"", False), "empty"),
    ],
)
def test_a_chunk_that_breaks_the_rules_is_refused(chunk: Chunk, why: str) -> None:
    transfer = Transfer(BLOB, 6)
    with pytest.raises(PacketError, match=why):
        take(transfer, transfer.spans[0], ANN, chunk)
    assert transfer.spans[0].lacks == 6


def test_a_holder_brings_no_more_than_the_span_that_it_was_asked_for() -> None:
    transfer = Transfer(BLOB, 4)
    with pytest.raises(PacketError, match="more than the 4 bytes that were asked for"):
        take(transfer, transfer.spans[0], ANN, Chunk(0, b"abcdef", True))
    assert transfer.spans[0].offset == 0


def test_a_span_that_was_cut_takes_what_is_left_to_it() -> None:
    transfer = Transfer(BLOB, 6)
    (first,) = transfer.spans
    first.asks(ANN)
    second = transfer.split(first)
    assert (first.lacks, second.lacks) == (3, 3)
    assert transfer.accept(first, Chunk(0, b"abcd", False)) == 3
    assert not first.lacks
    take(transfer, second, BOB, Chunk(3, b"def", True))
    assert transfer.finish() == b"abcdef"
    assert transfer.sources == {ANN, BOB}


def test_nothing_comes_after_the_last_chunk() -> None:
    transfer = Transfer(BLOB, 6)
    take(transfer, transfer.spans[0], ANN, Chunk(0, b"abcdef", True))
    with pytest.raises(PacketError, match="after the last"):
        take(transfer, transfer.spans[0], ANN, Chunk(6, b"g", True))


def test_a_mismatch_names_everybody_who_brought_bytes() -> None:
    transfer = Transfer(BLOB, 3)
    take(transfer, transfer.spans[0], ANN, Chunk(0, b"abX", True))
    take(transfer, transfer.spans[1], BOB, Chunk(3, b"def", True))
    with pytest.raises(DigestMismatch) as raised:
        transfer.finish()
    assert raised.value.sources == {ANN, BOB}


def test_one_source_is_the_liar_and_of_two_nobody_knows() -> None:
    suspicion = Suspicion()
    suspicion.note(BLOB.digest, frozenset({ANN}))
    assert suspicion.lied(ANN, BLOB.digest)
    assert not suspicion.lied(ANN, digest_of(b"other"))
    assert suspicion.may_resume(BLOB.digest)
    suspicion.note(BLOB.digest, frozenset({ANN, BOB}))
    assert not suspicion.lied(BOB, BLOB.digest)
    assert not suspicion.may_resume(BLOB.digest)


def test_suspicion_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transfer_module, "MAX_SUSPICIONS", 1)
    suspicion = Suspicion()
    suspicion.note(BLOB.digest, frozenset({ANN}))
    suspicion.note(BLOB.digest, frozenset({BOB}))
    assert not suspicion.lied(ANN, BLOB.digest)
    assert suspicion.lied(BOB, BLOB.digest)


def reader_of(data: bytes) -> asyncio.StreamReader:
    reader = asyncio.StreamReader()
    reader.feed_data(data)
    reader.feed_eof()
    return reader


async def test_a_frame_of_the_limit_is_read_and_one_over_is_not() -> None:
    length = MAX_FRAME_BYTES.to_bytes(4)
    kind, payload = await read_frame(reader_of(b"\0" + length + bytes(MAX_FRAME_BYTES)), 5.0)
    assert (kind, len(payload)) == (Kind.PIECE, MAX_FRAME_BYTES)
    over = (MAX_FRAME_BYTES + 1).to_bytes(4)
    with pytest.raises(PacketError, match="the limit is"):
        await read_frame(reader_of(b"\0" + over + bytes(MAX_FRAME_BYTES + 1)), 5.0)
    with pytest.raises(PacketError, match="kind 9"):
        await read_frame(reader_of(b"\x09" + bytes(4)), 5.0)
    with pytest.raises(EOFError):
        await read_frame(reader_of(b"\0\0\0\0\x02x"), 5.0)


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("failed to dial: dial tcp4 127.0.0.1:1: connect: connection refused", Fault.REFUSED),
        ("dial tcp: i/o timeout; connect: connection refused", Fault.TIMEOUT),
        ("context deadline exceeded", Fault.TIMEOUT),
        ("failed to dial QmX: dial backoff", Fault.BACKOFF),
        ("protocols not supported: [x]", Fault.PROTOCOL),
        ("routing: not found", Fault.UNKNOWN),
        ("stream reset", Fault.BROKEN),
    ],
)
def test_the_texts_of_libp2p_are_understood(text: str, fault: Fault) -> None:
    assert fault_of(text).fault is fault


def test_the_peer_that_answers_instead_is_named() -> None:
    found = fault_of("peer id mismatch: expected 12D3A, but remote key matches 12D3B\n")
    assert found.fault is Fault.OTHER_PEER
    assert "12D3B" in str(found)


def test_a_peers_refusal_is_cut_and_made_printable() -> None:
    text = str(Refused("a\x1b[31m\n" + "b" * 1000))
    assert text.isprintable()
    assert len(text) == 300
