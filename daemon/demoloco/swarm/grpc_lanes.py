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

from demoloco.swarm.certificates import Certificate
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

LANES = 4
MAX_REPLY_BYTES = 8 << 20
WINDOW_BYTES = 4 << 20
"""What may be under way on one stream: 100 Mbit/s over 200 ms is 2.5 MB."""
STREAM_SECONDS = 7200.0
"""The last resort for a stream that still moves; who fetches gives up long before."""
MAX_DETAIL_CHARACTERS = 160

_OPTIONS: Sequence[tuple[str, int]] = (
    ("grpc.use_local_subchannel_pool", 1),  # else gRPC makes one connection of them all
    ("grpc.enable_http_proxy", 0),
    ("grpc.enable_retries", 0),
    ("grpc.max_receive_message_length", MAX_REPLY_BYTES),
    ("grpc.keepalive_time_ms", 5_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.http2.lookahead_bytes", WINDOW_BYTES),
    ("grpc.http2.bdp_probe", 0),
    ("grpc.initial_reconnect_backoff_ms", 500),
    ("grpc.max_reconnect_backoff_ms", 5_000),
)
_FAULTS = {
    grpc.StatusCode.DEADLINE_EXCEEDED: Fault.TIMEOUT,
    grpc.StatusCode.UNIMPLEMENTED: Fault.PROTOCOL,
}
_DEAD = (grpc.ChannelConnectivity.TRANSIENT_FAILURE, grpc.ChannelConnectivity.SHUTDOWN)


class _Lane:
    """One connection."""

    def __init__(self, place: str, credentials: grpc.ChannelCredentials, peer: PeerId) -> None:
        options = (*_OPTIONS, ("grpc.ssl_target_name_override", peer))
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
            lane = _Lane(place, self._credentials, self._peer)
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
        self._meter.sent += len(body)
        try:
            reply = await self._lane().stub.Call(request, timeout=seconds)
        except (grpc.aio.AioRpcError, asyncio.CancelledError) as error:
            _raise(error)
        if reply.WhichOneof("outcome") != "answer":
            raise Refused(reply.refusal)
        self._meter.received += len(reply.answer)
        answer: bytes = reply.answer
        return answer

    async def stream(self, body: bytes, frame_seconds: float) -> AsyncGenerator[bytes, None]:
        """Frames, as `Transport.stream`."""
        lane = self._lane()
        lane.streams += 1
        call = lane.stub.Stream(exchange_pb2.StreamRequest(body=body), timeout=STREAM_SECONDS)
        try:
            self._meter.sent += len(body) + FRAME_HEADER_BYTES
            while (frame := await self._next(call, frame_seconds)) is not None:
                yield frame
            async with asyncio.timeout(frame_seconds):
                await call.read()  # so that the holder, too, sees it end well
        except TimeoutError:
            raise Unreachable(Fault.TIMEOUT) from None
        except (grpc.aio.AioRpcError, asyncio.CancelledError) as error:
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

    async def _next(self, call: Any, seconds: float) -> bytes | None:
        """The next piece on its way down, counted; None at the end."""
        async with asyncio.timeout(seconds):
            frame = await call.read()
        if frame is grpc.aio.EOF:
            raise Unreachable(Fault.BROKEN, "the stream ended without an end")
        payload: bytes = frame.payload
        if len(payload) > MAX_FRAME_BYTES:
            raise Unreachable(Fault.PROTOCOL, f"a frame of {len(payload)} bytes")
        if frame.kind == exchange_pb2.Frame.KIND_PIECE:
            self._meter.frame_received(payload)
            return payload
        self._meter.received += len(payload) + FRAME_HEADER_BYTES
        if frame.kind == exchange_pb2.Frame.KIND_BUSY:
            raise Busy(payload)
        if frame.kind != exchange_pb2.Frame.KIND_END:
            raise Refused(payload.decode(errors="replace"))
        return None

    def _lane(self) -> _Lane:
        """The one with the fewest streams; a new one while all are in use and there may be more."""
        if self._retired or not self._lanes:
            raise Unreachable(Fault.BROKEN, "the direct road is closed")
        best = min(self._lanes, key=lambda lane: lane.streams)
        if best.streams and len(self._lanes) < LANES:
            best = _Lane(self._place, self._credentials, self._peer)
            self._lanes.append(best)
        return best

    async def _close_if_retired(self) -> None:
        if self._retired and not any(lane.streams for lane in self._lanes):
            await self.close()


def _raise(error: grpc.aio.AioRpcError | asyncio.CancelledError) -> NoReturn:
    """Raises: Unreachable; CancelledError only where this task itself is cancelled."""
    if isinstance(error, asyncio.CancelledError):
        task = asyncio.current_task()
        if task is None or task.cancelling():
            raise error
        raise Unreachable(Fault.BROKEN, "the direct road was closed") from error
    fault = _FAULTS.get(error.code(), Fault.BROKEN)
    detail = " ".join((error.details() or "").split())
    raise Unreachable(fault, detail[-MAX_DETAIL_CHARACTERS:]) from error
