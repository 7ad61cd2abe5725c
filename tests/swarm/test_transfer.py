"""Reassembly of a blob, frames, and whom not to ask again."""

from __future__ import annotations

import asyncio

import pytest

from demoloco.errors import PacketError
from demoloco.swarm import transfer as transfer_module
from demoloco.swarm.calls import Chunk
from demoloco.swarm.faults import fault_of
from demoloco.swarm.framing import Kind, read_frame
from demoloco.swarm.transfer import DigestMismatch, Suspicion, Transfer
from demoloco.swarm.transport import MAX_FRAME_BYTES, Fault, Refused
from demoloco.types import BlobRef, PeerId
from demoloco.wire import digest_of

ANN, BOB = PeerId("ann"), PeerId("bob")
BLOB = BlobRef(digest=digest_of(b"abcdef"), size=6)


def test_two_holders_make_one_blob() -> None:
    transfer = Transfer(BLOB)
    assert transfer.accept(ANN, Chunk(0, b"abc", False)) == b"abc"
    assert not transfer.complete
    assert transfer.accept(BOB, Chunk(3, b"def", True)) == b"def"
    assert transfer.complete
    assert transfer.sources == {ANN, BOB}


@pytest.mark.parametrize(
    ("chunk", "why"),
    [
        (Chunk(1, b"b", False), "offset 1 came at 0"),
        (Chunk(0, b"abcdefg", True), "more than the 6 bytes"),
        (Chunk(0, b"abc", True), "ends at 3, not at 6"),
        (Chunk(0, b"abcdef", False), "ends at 6"),
        (Chunk(0, b"", False), "empty"),
        (Chunk(0, b"ABCDEF", True), "are not blob"),
    ],
)
def test_a_chunk_that_breaks_the_rules_is_refused(chunk: Chunk, why: str) -> None:
    transfer = Transfer(BLOB)
    with pytest.raises(PacketError, match=why):
        transfer.accept(ANN, chunk)
    assert not transfer.complete


def test_nothing_comes_after_the_last_chunk() -> None:
    transfer = Transfer(BLOB)
    transfer.accept(ANN, Chunk(0, b"abcdef", True))
    with pytest.raises(PacketError, match="after the last"):
        transfer.accept(ANN, Chunk(6, b"g", True))


def test_a_mismatch_names_everybody_who_brought_bytes() -> None:
    transfer = Transfer(BLOB)
    transfer.accept(ANN, Chunk(0, b"abX", False))
    with pytest.raises(DigestMismatch) as raised:
        transfer.accept(BOB, Chunk(3, b"def", True))
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
