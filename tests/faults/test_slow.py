"""Peers that send or take one byte after the other: they are left for others, and hold no place."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hivemind.p2p import PeerID

from demoloco.errors import SwarmError
from demoloco.swarm.blobs.fetching import WINDOW_BYTES
from demoloco.swarm.calls import Chunk, decode_blob_request, encode_blob_request, encode_chunk
from demoloco.swarm.hivemind import streams as hivemind_streams
from demoloco.swarm.hivemind.framing import Kind, read_frame, write_frame
from demoloco.swarm.hivemind.streams import MAX_OPEN_PER_PEER
from demoloco.swarm.hivemind.transport import BLOBS
from demoloco.swarm.port import MemberSeen
from demoloco.swarm.timing import Timing
from tests.contract.swarm_lab import (
    HIVEMIND_WARNINGS,
    TIMING,
    HivemindLab,
    MemoryLab,
    Node,
    a_run,
    two,
    until,
)
from tests.faults.virtual_time import in_virtual_time

pytestmark = HIVEMIND_WARNINGS

BLOB = bytes(range(256)) * 2048  # 512 KiB
PATIENCE = Timing().chunk_seconds


def trickles(node: Node, holder: Node, pause: float, length: int) -> list[int]:
    """From now on this holder sends so few bytes at a time; the offsets at which it was asked."""
    transport, asked = node.swarm._transport, []
    honest: Callable[..., Any] = transport.stream

    async def stream(peer: Any, body: bytes, seconds: float) -> AsyncGenerator[bytes, None]:
        if peer != holder.peer:
            async for frame in honest(peer, body, seconds):
                yield frame
            return
        offset = decode_blob_request(body)[2]
        asked.append(offset)
        while offset < len(BLOB):
            await asyncio.sleep(pause)
            end = min(offset + length, len(BLOB))
            yield encode_chunk(Chunk(offset, BLOB[offset:end], end == len(BLOB)))
            offset = end

    transport.stream = stream
    return asked


async def three(lab: MemoryLab) -> tuple[Node, Node, Node]:
    nodes = [lab.node(timing=Timing())]
    await nodes[0].start(a_run(nodes[0]))
    for _ in range(2):
        nodes.append(lab.node(nodes[0].address, timing=Timing()))
        await nodes[-1].start(a_run(nodes[0]))
    for node in nodes:
        while len(node.swarm._standing.roster) < 2:  # noqa: ASYNC110
            await asyncio.sleep(0.5)
    return nodes[0], nodes[1], nodes[2]


def test_a_holder_that_sends_a_byte_a_second_is_left_for_the_next(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def story() -> tuple[list[int], float, float]:
        lab = MemoryLab(tmp_path)
        slow, quick, node = await three(lab)
        blob = quick.shelf.put(BLOB)
        asked = trickles(node, slow, pause=1.0, length=1)
        now = asyncio.get_running_loop().time
        took = []
        for _ in range(2):
            began = now()
            assert await node.swarm.fetch(blob, [slow.peer, quick.peer]) == BLOB
            took.append(now() - began)
        await lab.close()
        return asked, *took

    asked, first, second = in_virtual_time(story())
    assert PATIENCE < first < PATIENCE + 3.0
    assert second < 1.0
    assert asked == [0]  # the second time it was not even asked
    (line,) = [line for line in caplog.messages if "holder=slow" in line]
    assert "it sends too slowly" in line


def test_what_a_slow_holder_sent_is_kept(tmp_path: Path) -> None:
    async def story() -> list[int]:
        lab = MemoryLab(tmp_path)
        slow, quick, node = await three(lab)
        blob = quick.shelf.put(BLOB)
        trickles(node, slow, pause=1.0, length=100)
        assert await node.swarm.fetch(blob, [slow.peer, quick.peer]) == BLOB
        await lab.close()
        return quick.shelf.reads

    assert 1000 < in_virtual_time(story())[0] < 2000


def test_a_holder_on_a_thin_line_may_take_its_time(tmp_path: Path) -> None:
    async def story() -> float:
        lab = MemoryLab(tmp_path)
        slow, _, node = await three(lab)
        blob = slow.shelf.put(BLOB)
        trickles(node, slow, pause=1.0, length=WINDOW_BYTES // int(PATIENCE) + 500)
        now = asyncio.get_running_loop().time
        began = now()
        assert await node.swarm.fetch(blob, [slow.peer]) == BLOB
        await lab.close()
        return now() - began

    assert in_virtual_time(story()) > 2 * Timing().transfer_seconds - 30


def test_a_fetch_from_slow_holders_alone_ends(tmp_path: Path) -> None:
    async def story() -> float:
        lab = MemoryLab(tmp_path)
        slow, quick, node = await three(lab)
        blob = slow.shelf.put(BLOB)
        trickles(node, slow, pause=5.0, length=1)
        now = asyncio.get_running_loop().time
        began = now()
        with pytest.raises(SwarmError, match=r"sends too slowly.*does not hold blob"):
            await node.swarm.fetch(blob, [slow.peer, quick.peer])
        await lab.close()
        return now() - began

    assert in_virtual_time(story()) < 2 * PATIENCE


def test_a_holder_that_is_lost_meanwhile_holds_nobody_up(tmp_path: Path) -> None:
    """A node that is cut off must soon know that nobody is there, or it does not go on alone."""

    async def story() -> list[float]:
        lab = MemoryLab(tmp_path)
        one, other, node = await three(lab)
        blob = one.shelf.put(BLOB)
        other.shelf.put(BLOB)
        lab.network.partition([node.peer], [one.peer, other.peer])
        now = asyncio.get_running_loop().time
        took = []
        for _ in range(3):
            began = now()
            with pytest.raises(SwarmError, match="it is no member now"):
                await node.swarm.fetch(blob, [one.peer, other.peer])
            took.append(now() - began)
        lab.network.heal()
        while len(node.swarm._standing.roster) < 2:  # noqa: ASYNC110
            await asyncio.sleep(0.5)
        assert await node.swarm.fetch(blob, [one.peer, other.peer]) == BLOB
        await lab.close()
        return took

    first, *rest = in_virtual_time(story())
    assert first < PATIENCE + 2.0  # one vain wait, in which they are lost
    assert max(rest) < 1.0


# Over libp2p

HASTY = replace(TIMING, chunk_seconds=0.7)


@pytest.fixture
async def lab(tmp_path: Path) -> AsyncIterator[HivemindLab]:
    lab = HivemindLab(tmp_path)
    lab.timing = HASTY
    yield lab
    await lab.close()


async def test_a_frame_that_comes_byte_by_byte_is_cut(lab: HivemindLab) -> None:
    async def dribble(info, reader, writer) -> None:
        await read_frame(reader, 5.0)
        writer.write(bytes((Kind.PIECE,)) + (100_000).to_bytes(4))
        while not writer.is_closing():
            writer.write(b"x")
            await asyncio.sleep(0.05)

    first = lab.node()
    first.swarm.transport._on_stream = dribble
    await first.start(a_run(first))
    second = lab.node(first.address)
    await second.start(a_run(first))
    await second.hears(MemberSeen, lambda e: e.member.peer == first.peer)
    blob = first.shelf.put(BLOB)
    began = asyncio.get_running_loop().time()
    with pytest.raises(SwarmError, match="no answer in time"):
        await second.swarm.fetch(blob, [first.peer])
    assert asyncio.get_running_loop().time() - began < 12.0  # three passes


async def raw_stream(node: Node, to: Node) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    p2p = node.swarm.transport._up
    _, reader, writer = await p2p.call_binary_stream_handler(PeerID.from_base58(to.peer), BLOBS)
    return reader, writer


async def test_a_reader_that_takes_a_byte_at_a_time_holds_no_place(
    lab: HivemindLab, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(hivemind_streams, "TAKE_SECONDS", 0.7)
    caplog.set_level(logging.INFO)
    first, second = await two(lab)
    large, small = first.shelf.put(bytes(64 << 20)), first.shelf.put(BLOB)
    reader, writer = await raw_stream(second, first)
    request = encode_blob_request(a_run(first), large.digest, 0)
    await write_frame(writer, Kind.REQUEST, request, 5.0)
    await reader.readexactly(1)
    serving = first.swarm.transport._streams._serving
    assert len(serving) == 1
    assert await second.swarm.fetch(small, [first.peer]) == BLOB
    await until(lambda: not serving)
    assert first.shelf.reads[-1] == -1  # and the blob is closed
    assert [line for line in caplog.messages if line.startswith("stream=cut")]
    writer.close()


async def test_a_reader_that_never_says_that_it_has_all_holds_no_place(
    lab: HivemindLab, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hivemind_streams, "TAKE_SECONDS", 0.3)
    first, second = await two(lab)
    blob = first.shelf.put(b"short")
    _, writer = await raw_stream(second, first)
    request = encode_blob_request(a_run(first), blob.digest, 0)
    await write_frame(writer, Kind.REQUEST, request, 5.0)
    await until(lambda: first.shelf.reads == [0])
    await until(lambda: first.shelf.reads == [0, -1])
    writer.close()


async def test_streams_that_ask_for_nothing_are_few_and_short(
    lab: HivemindLab, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hivemind_streams, "REQUEST_SECONDS", 60.0)
    first, second = await two(lab)
    third = lab.node(first.address)
    await third.start(a_run(first))
    await third.hears(MemberSeen, lambda e: e.member.peer == first.peer)
    opened = [await raw_stream(second, first) for _ in range(3 * MAX_OPEN_PER_PEER)]
    serving = first.swarm.transport._streams._serving
    await until(lambda: sum(reader.at_eof() for reader, _ in opened) == 2 * MAX_OPEN_PER_PEER)
    assert len(serving) == MAX_OPEN_PER_PEER
    blob = first.shelf.put(BLOB)
    assert await third.swarm.fetch(blob, [first.peer]) == BLOB
    for _, writer in opened:
        writer.close()
    await until(lambda: not serving)
