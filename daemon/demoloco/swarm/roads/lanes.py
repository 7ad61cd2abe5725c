"""The calling end of the direct road: a few connections to one peer.

Rule: the peer's own certificate is the only one that is believed, and streams are spread over the
connections, because under loss each carries only so much. What was sent is counted where it is
given to gRPC, what came where it is taken from it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from typing import Any, NoReturn

import grpc

from demoloco.swarm.links.access import Passage
from demoloco.swarm.roads.certificates import Certificate
from demoloco.swarm.transport import (
    FRAME_HEADER_BYTES,
    MAX_FRAME_BYTES,
    Busy,
    Fault,
    Meter,
    Method,
    Refused,
    Unreachable,
)
from demoloco.types import PeerId
from demoloco_proto.v1 import exchange_pb2, exchange_pb2_grpc
from demoloco_proto.v1.exchange_pb2 import Frame

LANES = 4
MAX_REPLY_BYTES = 8 << 20
WINDOW_BYTES = 4 << 20
"""What may be under way on one stream: 100 Mbit/s over 200 ms is 2.5 MB."""
STREAM_SECONDS = 7200.0
"""The last resort for a stream that still moves; who fetches gives up long before."""
MAX_DETAIL_CHARACTERS = 160

LEAST_WINDOW_BYTES = 64 << 10
LIMITED_WINDOW_SECONDS = 0.2
"""So much comes before a limit holds it up: gRPC takes it off the net unasked."""

_OPTIONS: Sequence[tuple[str, int]] = (
    ("grpc.use_local_subchannel_pool", 1),  # else gRPC makes one connection of them all
    ("grpc.enable_http_proxy", 0),
    ("grpc.enable_retries", 0),
    ("grpc.max_receive_message_length", MAX_REPLY_BYTES),
    ("grpc.keepalive_time_ms", 5_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.http2.bdp_probe", 0),
    ("grpc.initial_reconnect_backoff_ms", 500),
    ("grpc.max_reconnect_backoff_ms", 5_000),
)
_FAULTS = {
    grpc.StatusCode.DEADLINE_EXCEEDED: Fault.TIMEOUT,
    grpc.StatusCode.UNIMPLEMENTED: Fault.PROTOCOL,
}
FAILURES = (grpc.aio.AioRpcError, asyncio.CancelledError, asyncio.InvalidStateError)
"""What gRPC raises; CancelledError also where a channel was closed under a call."""
_DEAD = (grpc.ChannelConnectivity.TRANSIENT_FAILURE, grpc.ChannelConnectivity.SHUTDOWN)


class _Lane:
    """One connection."""

    def __init__(
        self, place: str, credentials: grpc.ChannelCredentials, peer: PeerId, window: int
    ) -> None:
        options = (
            *_OPTIONS,
            ("grpc.http2.lookahead_bytes", window),
            ("grpc.ssl_target_name_override", peer),
        )
        self.channel = grpc.aio.secure_channel(place, credentials, options=options)
        self.stub: Any = exchange_pb2_grpc.ExchangeStub(self.channel)
        self.streams = 0

    async def ready(self) -> None:
        """Raises: Unreachable if nobody with the right certificate answers."""
        state = self.channel.get_state(try_to_connect=True)
        while state is not grpc.ChannelConnectivity.READY:
            if state in _DEAD:
                raise Unreachable(Fault.NO_ROAD)
            await self.channel.wait_for_state_change(state)
            state = self.channel.get_state(try_to_connect=True)


class GrpcLanes:
    """The direct road to one peer; closed when nobody uses it any longer."""

    def __init__(self, own: Certificate, peer: PeerId, pem: bytes, meter: Meter) -> None:
        self._credentials = grpc.ssl_channel_credentials(pem, own.key_pem, own.pem)
        self._peer = peer
        self._meter = meter
        self._lanes: list[_Lane] = []
        self._place = ""
        self._retired = False

    async def dial(self, places: Sequence[str], seconds: float) -> None:
        """Find the first of these places at which the peer answers.

        Raises: Unreachable.
        """
        for place in places:
            lane = self._new(place)
            try:
                async with asyncio.timeout(seconds):
                    await lane.ready()
            except (Unreachable, TimeoutError):
                await lane.channel.close()
                continue
            except BaseException:
                await lane.channel.close()
                raise
            self._place, self._lanes = place, [lane]
            return
        raise Unreachable(Fault.NO_ROAD, f"nothing answers at {', '.join(places) or 'no place'}")

    async def call(self, method: Method, body: bytes, seconds: float) -> bytes:
        """Raises: Unreachable, Refused."""
        request = exchange_pb2.CallRequest(method=method.value, body=body)
        self._meter.call_sent(method, body)
        lane = self._lane()
        lane.streams += 1
        try:
            reply = await lane.stub.Call(request, timeout=seconds)
        except FAILURES as error:
            _raise(error)
        finally:
            lane.streams -= 1
            await self._close_if_retired()
        if reply.WhichOneof("outcome") != "answer":
            raise Refused(reply.refusal)
        self._meter.word_received(len(reply.answer))
        answer: bytes = reply.answer
        return answer

    async def stream(self, body: bytes, frame_seconds: float) -> AsyncGenerator[bytes, None]:
        """Frames, as `Transport.stream`."""
        access = self._meter.access
        async with access.download_slot():
            lane = self._lane()
            lane.streams += 1
            call = lane.stub.Stream(timeout=STREAM_SECONDS)
            try:
                with access.down.begin(self._peer) as passage:
                    async with asyncio.timeout(frame_seconds):
                        await call.write(exchange_pb2.StreamRequest(body=body))
                    self._meter.word_sent(len(body) + FRAME_HEADER_BYTES)
                    while (frame := await self._next(call, frame_seconds, passage)) is not None:
                        yield frame
                    passage.arrived()
                    async with asyncio.timeout(frame_seconds):
                        await call.done_writing()  # so that the holder, too, sees it end well
                        await call.read()
            except TimeoutError:
                raise Unreachable(Fault.TIMEOUT) from None
            except FAILURES as error:
                _raise(error)
            finally:
                call.cancel()
                lane.streams -= 1
                await self._close_if_retired()

    async def retire(self) -> None:
        """Take no more streams; those under way end as they can."""
        self._retired = True
        await self._close_if_retired()

    async def close(self) -> None:
        lanes, self._lanes = self._lanes, []
        for lane in lanes:
            await lane.channel.close()

    async def _next(self, call: Any, seconds: float, passage: Passage) -> bytes | None:
        """The next piece on its way down, counted; None at the end."""
        piece = bytearray()
        while True:
            async with asyncio.timeout(seconds):
                frame = await call.read()
            if frame is grpc.aio.EOF:
                raise Unreachable(Fault.BROKEN, "the stream ended without an end")
            if frame.kind not in (Frame.KIND_PART, Frame.KIND_PIECE):
                self._check_end(frame)
                return None
            piece += frame.payload
            if len(piece) > MAX_FRAME_BYTES:
                raise Unreachable(Fault.PROTOCOL, f"a frame of over {MAX_FRAME_BYTES} bytes")
            await passage.pass_(len(frame.payload))
            if frame.kind == Frame.KIND_PIECE:
                whole = bytes(piece)
                self._meter.frame_received(whole)
                return whole

    def _check_end(self, frame: Frame) -> None:
        """Raises: Refused, Busy where it is no good end."""
        self._meter.word_received(len(frame.payload) + FRAME_HEADER_BYTES)
        if frame.kind == Frame.KIND_BUSY:
            raise Busy(frame.payload)
        if frame.kind != Frame.KIND_END:
            raise Refused(frame.payload.decode(errors="replace"))

    def _lane(self) -> _Lane:
        """The one with the fewest streams; a new one while all are in use and there may be more."""
        if self._retired or not self._lanes:
            raise Unreachable(Fault.BROKEN, "the direct road is closed")
        best = min(self._lanes, key=lambda lane: lane.streams)
        if best.streams and len(self._lanes) < LANES:
            best = self._new(self._place)
            self._lanes.append(best)
        return best

    def _new(self, place: str) -> _Lane:
        limit = self._meter.access.down.gate.rate
        wanted = int(limit * LIMITED_WINDOW_SECONDS) if limit else WINDOW_BYTES
        window = max(LEAST_WINDOW_BYTES, min(WINDOW_BYTES, wanted))
        return _Lane(place, self._credentials, self._peer, window)

    async def _close_if_retired(self) -> None:
        if self._retired and not any(lane.streams for lane in self._lanes):
            await self.close()


def _raise(error: BaseException) -> NoReturn:
    """Raises: Unreachable; CancelledError only where this task itself is cancelled."""
    if isinstance(error, grpc.aio.AioRpcError):
        fault = _FAULTS.get(error.code(), Fault.BROKEN)
        detail = " ".join((error.details() or "").split())
        raise Unreachable(fault, detail[-MAX_DETAIL_CHARACTERS:]) from error
    task = asyncio.current_task()
    if isinstance(error, asyncio.CancelledError) and (task is None or task.cancelling()):
        raise error
    raise Unreachable(Fault.BROKEN, "the direct road was closed") from error
