"""A peer may measure its link to a node, and no more than that."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

from demoloco.errors import PacketError
from demoloco.swarm.calls import encode_blob_request
from demoloco.swarm.dial_back import (
    GREETING,
    DialBack,
    DialBacks,
    Outcome,
    decode_dial_back_reply,
    decode_dial_back_request,
    encode_dial_back_reply,
)
from demoloco.swarm.probing import (
    BYTES_A_MINUTE,
    BYTES_AT_ONCE,
    MAX_FILLER_BYTES,
    Probes,
    decode_probe_reply,
    encode_probe_request,
)
from demoloco.swarm.service import CALLS_AT_ONCE, PeerService
from demoloco.swarm.standing import Standing
from demoloco.swarm.tasks import Tasks
from demoloco.swarm.transport import Method, Refused
from demoloco.types import PeerId
from tests.contract.swarm_lab import Shelf
from tests.wire.values import ME, MEMBER
from tests.wire.values import OTHER as SOMEBODY

OTHER = SOMEBODY.peer_id

BIG = encode_probe_request(wanted=MAX_FILLER_BYTES)


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def spent(probes: Probes, peer: PeerId) -> int:
    """How many bytes this peer gets before it is refused."""
    got = 0
    while True:
        try:
            got += decode_probe_reply(probes.answer(peer, BIG), MAX_FILLER_BYTES)
        except Refused:
            return got


def test_a_probe_is_answered_with_as_many_bytes_as_were_wanted() -> None:
    reply = Probes(Clock()).answer(OTHER, encode_probe_request(wanted=1000, sent=7))
    assert decode_probe_reply(reply, 1000) == 1000
    with pytest.raises(PacketError):
        decode_probe_reply(reply, 999)


@pytest.mark.parametrize(
    "body",
    [
        encode_probe_request(wanted=MAX_FILLER_BYTES + 1),
        b"\x12\x81\x80\x10" + bytes(MAX_FILLER_BYTES + 1),
        b"\xff",
    ],
)
def test_a_probe_out_of_bounds_is_refused(body: bytes) -> None:
    with pytest.raises(PacketError):
        Probes(Clock()).answer(OTHER, body)


def test_what_one_peer_may_probe_comes_back_with_time() -> None:
    clock = Clock()
    probes = Probes(clock)
    assert BYTES_AT_ONCE - MAX_FILLER_BYTES - 1e5 < spent(probes, OTHER) <= BYTES_AT_ONCE
    assert spent(probes, OTHER) == 0
    clock.now = 60.0
    assert 0 < spent(probes, OTHER) <= BYTES_A_MINUTE + MAX_FILLER_BYTES


def test_many_names_burn_no_more_than_two() -> None:
    probes = Probes(Clock())
    assert sum(spent(probes, PeerId(f"peer{number}")) for number in range(9)) <= 2 * BYTES_AT_ONCE


# Dialling back

Serve = Callable[[bytes], Awaitable[int]]


@pytest.fixture
async def serve() -> AsyncIterator[Serve]:
    """Listen somewhere and say these words to whoever comes; the port."""
    servers: list[asyncio.Server] = []

    async def start(words: bytes) -> int:
        async def greet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write(words)
            writer.close()

        servers.append(await asyncio.start_server(greet, "127.0.0.1", 0))
        return int(servers[-1].sockets[0].getsockname()[1])

    yield start
    for server in servers:
        server.close()
        await server.wait_closed()


def dial_backs(seen: str | None, clock: Clock | None = None) -> tuple[DialBacks, Tasks]:
    async def observed(peer: PeerId) -> str | None:
        return seen

    tasks = Tasks()
    return DialBacks(observed, tasks, clock or Clock()), tasks


async def outcome(seen: str | None, port: int) -> DialBack:
    back, tasks = dial_backs(seen)
    assert back.ask(OTHER, port) == DialBack("", Outcome.TRYING)
    await tasks.settle(10)
    return back.ask(OTHER, port)


async def test_an_open_port_of_libp2p_is_found_open(serve: Serve) -> None:
    seen = "/ip4/127.0.0.1/tcp/50123"  # the port from which it is connected is not the one tried
    assert await outcome(seen, await serve(GREETING)) == DialBack(seen, Outcome.OPEN)


async def test_who_says_something_else_is_a_stranger(serve: Serve) -> None:
    seen = "/ip4/127.0.0.1/tcp/50123"
    assert (await outcome(seen, await serve(b"SSH-2.0-x\r\n"))).outcome is Outcome.STRANGER
    assert (await outcome(seen, await serve(b"y" * 99))).outcome is Outcome.STRANGER


async def test_a_closed_port_refuses() -> None:
    assert (await outcome("/ip4/127.0.0.1/tcp/50123", 1)).outcome is Outcome.REFUSED


async def test_nobody_is_dialled_whose_address_is_not_seen(serve: Serve) -> None:
    relayed = f"/ip4/127.0.0.1/tcp/1/p2p/{ME.peer_id}/p2p-circuit"
    port = await serve(GREETING)
    assert (await outcome(relayed, port)).outcome is Outcome.RELAYED
    assert (await outcome(None, port)).outcome is Outcome.UNKNOWN


async def test_an_outcome_is_told_once_then_tried_again(serve: Serve) -> None:
    port = await serve(GREETING)
    back, tasks = dial_backs("/ip4/127.0.0.1/tcp/5")
    for _ in range(2):
        assert back.ask(OTHER, port).outcome is Outcome.TRYING
        await tasks.settle(10)
        assert back.ask(OTHER, port).outcome is Outcome.OPEN


async def test_dialling_back_is_rationed() -> None:
    clock = Clock()
    back, tasks = dial_backs(None, clock)
    for port in range(1, 5):
        back.ask(OTHER, port)
        with pytest.raises(Refused, match="another port"):
            back.ask(OTHER, 99)
        await tasks.settle(10)
    with pytest.raises(Refused, match="too many"):
        back.ask(OTHER, 5)
    clock.now = 60.0
    assert back.ask(OTHER, 5).outcome is Outcome.TRYING
    await tasks.settle(10)


@pytest.mark.parametrize("port", [b"", b"\x08\x00", b"\x08\x80\x80\x04", b"\xff"])
def test_a_port_that_is_none_is_refused(port: bytes) -> None:
    with pytest.raises(PacketError):
        decode_dial_back_request(port)


def test_a_reply_is_checked() -> None:
    told = DialBack("/ip4/203.0.113.7/tcp/1", Outcome.OPEN)
    assert decode_dial_back_reply(encode_dial_back_reply(told)) == told
    for wrong in (b"\x12\x04what", b"\x0a\x01\x07\x12\x04open", b"\xff"):
        with pytest.raises(PacketError):
            decode_dial_back_reply(wrong)


# As a node answers them


def service() -> tuple[PeerService, Standing, Shelf]:
    shelf = Shelf()
    here = Standing(
        identity=ME, emit=lambda event: None, library=shelf, rng=random.Random(0), now=Clock()
    )
    return PeerService(here), here, shelf


def test_a_probe_needs_no_run_and_counts_as_one_call() -> None:
    node, here, _ = service()
    body = encode_probe_request(sent=MAX_FILLER_BYTES)
    bytes_as_calls = CALLS_AT_ONCE * 1024
    probed = 0
    while probed + MAX_FILLER_BYTES < BYTES_AT_ONCE - 100_000:
        node.answer(OTHER, Method.PROBE, body)
        probed += MAX_FILLER_BYTES
    assert probed > bytes_as_calls
    with pytest.raises(Refused, match="in the last minute"):
        node.answer(OTHER, Method.PROBE, body)
    assert here.dropped == 0


def test_no_probe_is_answered_while_blobs_go_out() -> None:
    node, here, shelf = service()
    here.run = MEMBER.run
    blob = shelf.put(bytes(1000))
    stream = node.open_stream(OTHER, encode_blob_request(MEMBER.run, blob.digest, 0))
    with pytest.raises(Refused, match="busy: it sends blobs"):
        node.answer(OTHER, Method.PROBE, BIG)
    stream.close()
    assert node.answer(OTHER, Method.PROBE, BIG)


@pytest.mark.parametrize("method", [Method.PROBE, Method.DIAL_BACK])
def test_garbage_is_counted(method: Method) -> None:
    node, here, _ = service()
    with pytest.raises(Refused):
        node.answer(OTHER, method, b"\xff")
    assert here.dropped == 1


def test_a_node_without_a_road_dials_nobody_back() -> None:
    with pytest.raises(Refused, match="dials nobody back"):
        service()[0].answer(OTHER, Method.DIAL_BACK, b"\x08\x01")
