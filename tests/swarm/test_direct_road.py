"""The direct road on real sockets of 127.0.0.1: who may come, and what happens when it breaks."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import aclosing, asynccontextmanager
from datetime import UTC, datetime, timedelta
from time import monotonic

import pytest

from demoloco.swarm.identity import Identity
from demoloco.swarm.roads import listener as grpc_listener
from demoloco.swarm.roads.certificates import Certificate, make
from demoloco.swarm.roads.direct import DirectOffer, Trust
from demoloco.swarm.roads.lanes import LANES, GrpcLanes
from demoloco.swarm.roads.listener import GrpcListener
from demoloco.swarm.transport import Busy, Fault, Meter, Method, Refused, Unreachable
from demoloco.types import PeerId

ME, OTHER, STRANGER = Identity.new(), Identity.new(), Identity.new()
PIECE = bytes(64 << 10)
HOST = ("127.0.0.1",)
SECONDS = 5.0
DAY = timedelta(days=1)


class Pieces:
    def __init__(self, count: int) -> None:
        self.left = count
        self.closed = asyncio.Event()

    def frames(self) -> Iterator[bytes]:
        while self.left:
            self.left -= 1
            yield PIECE

    def close(self) -> None:
        self.closed.set()


class Supplier:
    """Answers with who called, and streams as many pieces as were asked for."""

    direct: Callable[[PeerId, DirectOffer], bytes] | None = None

    def __init__(self) -> None:
        self.streams: list[Pieces] = []

    def answer(self, peer: PeerId, method: Method, body: bytes) -> bytes:
        if body == b"no":
            raise Refused("not for you")
        return f"{peer} {method}".encode() + body

    def open_stream(self, peer: PeerId, body: bytes) -> Pieces:
        if body == b"no":
            raise Refused("not for you")
        if body == b"busy":
            raise Busy(b"others")
        self.streams.append(Pieces(int.from_bytes(body)))
        return self.streams[-1]


class Bench:
    """A listener, and whoever calls it."""

    def __init__(self) -> None:
        self.own = make(ME)
        self.trust = Trust()
        self.meter = Meter()
        self.listener = GrpcListener(self.own, self.trust, self.meter)
        self.supplier = Supplier()
        self.callers: list[GrpcLanes] = []

    @property
    def place(self) -> str:
        return f"127.0.0.1:{self.listener.port}"

    def caller(self, own: Certificate, peer: PeerId = ME.peer_id, pem: bytes = b"") -> GrpcLanes:
        self.callers.append(GrpcLanes(own, peer, pem or self.own.pem, Meter()))
        return self.callers[-1]

    async def friend(self, place: str = "") -> GrpcLanes:
        """A trusted caller that has dialled."""
        own = make(OTHER)
        self.trust.take(OTHER.peer_id, own.der)
        lanes = self.caller(own)
        await lanes.dial([place or self.place], SECONDS)
        return lanes

    async def is_refused(self, lanes: GrpcLanes) -> bool:
        with pytest.raises(Unreachable) as found:
            await lanes.dial([self.place], SECONDS)
        return found.value.fault is Fault.NO_ROAD


@pytest.fixture
async def bench() -> AsyncIterator[Bench]:
    bench = Bench()
    await bench.listener.start(bench.supplier, HOST, 0)
    yield bench
    for lanes in bench.callers:
        await lanes.close()
    await bench.listener.stop()


async def all_of(lanes: GrpcLanes, pieces: int, seconds: float = SECONDS) -> int:
    async with aclosing(lanes.stream(pieces.to_bytes(4), seconds)) as frames:
        return sum([len(frame) async for frame in frames])


class Cable:
    """A TCP relay that can stop carrying, or break."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._ends: list[asyncio.StreamWriter] = []
        self.carries = asyncio.Event()
        self.carries.set()

    async def join(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        far_reader, far_writer = await asyncio.open_connection("127.0.0.1", self._port)
        self._ends += [writer, far_writer]
        await asyncio.gather(self._carry(reader, far_writer), self._carry(far_reader, writer))

    async def _carry(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        try:
            while data := await source.read(1 << 16):
                await self.carries.wait()
                sink.write(data)
                await sink.drain()
        except OSError:
            pass
        finally:
            sink.close()

    def break_off(self) -> None:
        for end in self._ends:
            end.transport.abort()


@asynccontextmanager
async def a_cable(port: int) -> AsyncIterator[tuple[Cable, str]]:
    cable = Cable(port)
    server = await asyncio.start_server(cable.join, "127.0.0.1", 0)
    try:
        yield cable, f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()
        cable.carries.set()
        cable.break_off()
        await asyncio.sleep(0)


# Who may come


async def test_a_trusted_peer_is_known_by_its_certificate(bench: Bench) -> None:
    lanes = await bench.friend()
    assert await lanes.call(Method.HELLO, b"!", SECONDS) == f"{OTHER.peer_id} hello!".encode()


async def test_a_strangers_certificate_ends_the_connection(bench: Bench) -> None:
    assert await bench.is_refused(bench.caller(make(STRANGER)))
    assert bench.listener.handshakes > 0
    await (await bench.friend()).call(Method.HELLO, b"", SECONDS)  # others come in as before


async def test_a_certificate_in_a_trusted_peers_name_that_is_another_is_refused(
    bench: Bench,
) -> None:
    await bench.friend()
    assert await bench.is_refused(bench.caller(make(OTHER)))


async def test_an_expired_certificate_is_refused_by_either_side(
    monkeypatch: pytest.MonkeyPatch, bench: Bench
) -> None:
    now = datetime.now(UTC)
    old = make(OTHER, begins=now - 2 * DAY, ends=now - DAY)
    monkeypatch.setattr("demoloco.swarm.roads.certificates.check", lambda der, peer: old.pem)
    bench.trust.take(OTHER.peer_id, old.der)  # as if the check had been forgotten
    assert await bench.is_refused(bench.caller(old))


async def test_a_listener_with_another_certificate_than_it_gave_is_not_believed(
    bench: Bench,
) -> None:
    own = make(OTHER)
    bench.trust.take(OTHER.peer_id, own.der)
    assert await bench.is_refused(bench.caller(own, pem=make(ME).pem))
    assert await bench.is_refused(bench.caller(own, STRANGER.peer_id, make(STRANGER).pem))
    assert await bench.is_refused(bench.caller(own, STRANGER.peer_id))  # right key, wrong name


async def test_a_peer_that_is_no_longer_trusted_is_refused_on_the_connection_it_has(
    bench: Bench,
) -> None:
    lanes = await bench.friend()
    await lanes.call(Method.HELLO, b"", SECONDS)
    bench.trust.drop(OTHER.peer_id)
    with pytest.raises(Unreachable, match="trusted"):
        await lanes.call(Method.HELLO, b"", SECONDS)
    with pytest.raises(Unreachable, match="trusted"):
        await all_of(lanes, 1)
    assert bench.listener.refused == 2


async def test_a_peers_new_certificate_replaces_the_old_one(bench: Bench) -> None:
    before = await bench.friend()
    after = await bench.friend()
    await after.call(Method.HELLO, b"", SECONDS)
    with pytest.raises(Unreachable, match="trusted"):
        await before.call(Method.HELLO, b"", SECONDS)


async def test_hundreds_of_peers_may_be_trusted_at_once(bench: Bench) -> None:
    for _ in range(256):
        one = Identity.new()
        bench.trust.take(one.peer_id, make(one).der)
    lanes = await bench.friend()
    await lanes.call(Method.HELLO, b"", SECONDS)


# What it carries


async def test_a_blob_comes_whole_and_is_counted_at_both_ends(bench: Bench) -> None:
    lanes = await bench.friend()
    assert await all_of(lanes, 40) == 40 * len(PIECE)
    mine, theirs = lanes._meter, bench.meter
    assert mine.blobs_received == theirs.blobs_sent == 40 * (len(PIECE) + 5)
    assert (mine.sent, mine.received) == (theirs.received, theirs.sent)
    assert bench.supplier.streams[0].closed.is_set()


@pytest.mark.parametrize("limited", ["up", "down"])
async def test_a_limit_holds_up_what_the_direct_road_carries(bench: Bench, limited: str) -> None:
    lanes = await bench.friend()
    access = bench.meter.access if limited == "up" else lanes._meter.access
    lane = access.up if limited == "up" else access.down
    lane.gate.rate = 2e6
    began = monotonic()
    assert await all_of(lanes, 8) == 8 * len(PIECE)
    assert monotonic() - began > 0.6 * 8 * len(PIECE) / 2e6  # less the burst
    assert lanes._meter.blobs_received == bench.meter.blobs_sent == 8 * (len(PIECE) + 5)


async def test_streams_at_once_take_connections_of_their_own(bench: Bench) -> None:
    lanes = await bench.friend()
    before = bench.listener.handshakes
    streams = [lanes.stream((4).to_bytes(4), SECONDS) for _ in range(LANES + 2)]
    for stream in streams:
        await anext(stream)
    assert bench.listener.handshakes - before == LANES - 1
    for stream in streams:
        await stream.aclose()
    assert await all_of(lanes, 4) == 4 * len(PIECE)


async def test_a_refusal_and_its_text_reach_the_caller(bench: Bench) -> None:
    lanes = await bench.friend()
    with pytest.raises(Refused, match="not for you"):
        await lanes.call(Method.HELLO, b"no", SECONDS)
    with pytest.raises(Refused, match="not for you"):
        async with aclosing(lanes.stream(b"no", SECONDS)) as frames:
            await anext(frames)


async def test_a_busy_peer_says_who_else_has_it(bench: Bench) -> None:
    lanes = await bench.friend()
    with pytest.raises(Busy) as found:
        async with aclosing(lanes.stream(b"busy", SECONDS)) as frames:
            await anext(frames)
    assert found.value.body == b"others"


async def test_certificates_are_not_exchanged_on_the_road_that_they_open(bench: Bench) -> None:
    lanes = await bench.friend()
    with pytest.raises(Refused, match="libp2p"):
        await lanes.call(Method.DIRECT, b"", SECONDS)


async def test_a_stream_that_is_given_up_ends_at_the_holder_too(bench: Bench) -> None:
    lanes = await bench.friend()
    async with aclosing(lanes.stream((1 << 20).to_bytes(4), SECONDS)) as frames:
        await anext(frames)
    async with asyncio.timeout(SECONDS):
        await bench.supplier.streams[0].closed.wait()


async def test_a_peer_that_takes_nothing_is_cut(
    monkeypatch: pytest.MonkeyPatch, bench: Bench
) -> None:
    monkeypatch.setattr(grpc_listener, "TAKE_SECONDS", 0.3)
    lanes = await bench.friend()
    async with aclosing(lanes.stream((1 << 20).to_bytes(4), SECONDS)) as frames:
        await anext(frames)
        async with asyncio.timeout(SECONDS):
            await bench.supplier.streams[0].closed.wait()
        with pytest.raises(Unreachable):
            async for _ in frames:
                pass


# How it breaks


async def test_a_peer_that_dies_in_the_middle_of_a_stream_is_noticed_at_once(
    bench: Bench,
) -> None:
    async with a_cable(bench.listener.port) as (cable, place):
        lanes = await bench.friend(place)
        async with aclosing(lanes.stream((1 << 20).to_bytes(4), 60.0)) as frames:
            await anext(frames)
            cable.break_off()
            async with asyncio.timeout(SECONDS):
                with pytest.raises(Unreachable) as found:
                    async for _ in frames:
                        pass
    assert found.value.fault is Fault.BROKEN


async def test_a_silent_connection_ends_a_stream_after_the_time_for_a_frame(
    bench: Bench,
) -> None:
    async with a_cable(bench.listener.port) as (cable, place):
        lanes = await bench.friend(place)
        async with aclosing(lanes.stream((1 << 20).to_bytes(4), 0.5)) as frames:
            await anext(frames)
            cable.carries.clear()
            with pytest.raises(Unreachable) as found:
                async for _ in frames:
                    pass
    assert found.value.fault is Fault.TIMEOUT


async def test_lanes_that_are_closed_under_a_stream_end_it_as_broken(bench: Bench) -> None:
    lanes = await bench.friend()
    async with aclosing(lanes.stream((1 << 20).to_bytes(4), SECONDS)) as frames:
        await anext(frames)
        await lanes.close()
        with pytest.raises(Unreachable):
            async for _ in frames:
                pass


async def test_lanes_that_retire_let_their_streams_end(bench: Bench) -> None:
    lanes = await bench.friend()
    async with aclosing(lanes.stream((40).to_bytes(4), SECONDS)) as frames:
        await anext(frames)
        await lanes.retire()
        assert len([frame async for frame in frames]) == 39
    with pytest.raises(Unreachable, match="closed"):
        await all_of(lanes, 1)


async def test_a_port_that_is_taken_makes_room_for_another(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    other = GrpcListener(make(OTHER), Trust(), Meter())
    with socket.socket() as taken, caplog.at_level(logging.WARNING):
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        await other.start(Supplier(), HOST, port)
    try:
        assert other.port not in (0, port)
        assert "direct=moved" in caplog.text
    finally:
        await other.stop()


async def test_where_nobody_listens_there_is_no_road(bench: Bench) -> None:
    lanes = bench.caller(make(OTHER))
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        place = f"127.0.0.1:{nobody.getsockname()[1]}"
        with pytest.raises(Unreachable, match=f"nothing answers at {place}"):
            await lanes.dial([place], SECONDS)
