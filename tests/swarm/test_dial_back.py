"""A peer may ask whether its own port can be reached from a node, and no other one's."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

from demoloco.errors import PacketError
from demoloco.swarm.dial_back import (
    GREETING,
    DialBack,
    DialBacks,
    Outcome,
    decode_dial_back_reply,
    decode_dial_back_request,
    encode_dial_back_reply,
    encode_dial_back_request,
)
from demoloco.swarm.service import PeerService
from demoloco.swarm.standing import Standing
from demoloco.swarm.tasks import Tasks
from demoloco.swarm.transport import Method, Refused
from demoloco.types import PeerId
from tests.contract.swarm_lab import Shelf
from tests.wire.values import ME
from tests.wire.values import OTHER as SOMEBODY

OTHER = SOMEBODY.peer_id


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


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


def test_a_node_without_a_road_dials_nobody_back() -> None:
    here = Standing(
        identity=ME, emit=lambda event: None, library=Shelf(), rng=random.Random(0), now=Clock()
    )
    with pytest.raises(Refused, match="dials nobody back"):
        PeerService(here).answer(OTHER, Method.DIAL_BACK, encode_dial_back_request(1))
