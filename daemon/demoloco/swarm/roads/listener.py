"""The listening end of the direct road: gRPC over mutual TLS, in the node's loop.

Rule: who calls is known from the TLS certificate alone, and looked up anew at each call: one who
is no longer trusted is refused on the connection that it still has. Who takes too little is cut.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import closing
from time import monotonic
from typing import Any

import grpc

from demoloco.errors import DemolocoError, SwarmError
from demoloco.swarm.hivemind.streams import REQUEST_SECONDS, TAKE_SECONDS
from demoloco.swarm.links.access import Passage
from demoloco.swarm.roads.certificates import Certificate
from demoloco.swarm.roads.direct import Trust
from demoloco.swarm.transport import (
    FRAME_HEADER_BYTES,
    Busy,
    Meter,
    Method,
    Outgoing,
    Refused,
    Service,
)
from demoloco.types import PeerId, short
from demoloco_proto.v1 import exchange_pb2, exchange_pb2_grpc
from demoloco_proto.v1.exchange_pb2 import Frame

log = logging.getLogger(__name__)

MAX_REQUEST_BYTES = (1 << 20) + 1024
QUICK_SECONDS = 0.25
"""Who takes 64 KiB in less gets whole pieces of 256 KiB, which costs less work."""
MAX_CALLS = 512
MAX_CALLS_PER_CONNECTION = 32
MAX_STREAMS_PER_PEER = 16
"""Those of which nothing is taken count too; those that are served have limits of their own."""
OPTIONS: Sequence[tuple[str, int]] = (
    ("grpc.so_reuseport", 0),
    ("grpc.max_receive_message_length", MAX_REQUEST_BYTES),
    ("grpc.max_concurrent_streams", MAX_CALLS_PER_CONNECTION),
    ("grpc.max_connection_age_ms", 3_600_000),  # whoever takes nothing holds nothing for ever
    ("grpc.max_connection_age_grace_ms", 3_600_000),
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.http2.min_ping_interval_without_data_ms", 1_000),
    ("grpc.http2.min_recv_ping_interval_without_data_ms", 1_000),
    ("grpc.http2.max_ping_strikes", 0),
    ("grpc.http2.write_buffer_size", 256 << 10),
    ("grpc.http2.lookahead_bytes", 1 << 20),  # else a piece of a packet waits for room
)


class GrpcListener:
    """Answers trusted peers between `start` and `stop`."""

    def __init__(self, own: Certificate, trust: Trust, meter: Meter) -> None:
        self._own = own
        self._trust = trust
        self._meter = meter
        self._shown = -1  # the version of the trust that TLS has
        self._server: grpc.aio.Server | None = None
        self.port = 0
        self.handshakes = 0
        """Connections that began; those that did not prove who they are ended there."""
        self.refused = 0
        """Calls on connections whose peer is no longer trusted."""

    async def start(self, service: Service, hosts: Sequence[str], port: int) -> None:
        """Listen on these hosts at this port; 0, or one that is taken, becomes a free one.

        Raises: SwarmError if there is none.
        """
        server = grpc.aio.server(options=OPTIONS, maximum_concurrent_rpcs=MAX_CALLS)
        calls = _Calls(self, service, self._meter)
        exchange_pb2_grpc.add_ExchangeServicer_to_server(calls, server)
        self.port = self._bind(server, hosts, port)
        await server.start()
        self._server = server

    async def stop(self) -> None:
        """End at once; what is under way is cut."""
        if self._server is not None:
            server, self._server = self._server, None
            await server.stop(0)

    def caller(self, context: Any) -> PeerId | None:
        """Who calls, or None if it is nobody who may."""
        found = context.auth_context().get("x509_pem_cert", ())
        peer = self._trust.who(found[0]) if found else None
        self.refused += peer is None
        return peer

    def _bind(self, server: grpc.aio.Server, hosts: Sequence[str], port: int) -> int:
        credentials = grpc.dynamic_ssl_server_credentials(
            self._configuration(),
            self._news,  # type: ignore[arg-type]  # None means no change
            require_client_authentication=True,
        )
        first, *others = hosts
        try:
            taken = server.add_secure_port(f"{first}:{port}", credentials)
        except RuntimeError as error:
            if port == 0:
                raise SwarmError(f"nothing can listen on {first}: {error}") from error
            log.warning("direct=moved port=%d why=it is in use; another takes its place", port)
            return self._bind(server, hosts, 0)
        for host in others:
            try:
                server.add_secure_port(f"{host}:{taken}", credentials)
            except RuntimeError as error:
                log.warning("direct=partial host=%s port=%d why=%s", host, taken, error)
        return taken

    def _configuration(self) -> grpc.ServerCertificateConfiguration:
        self._shown = self._trust.version
        roots = self._trust.roots or self._own.pem  # gRPC wants some; nobody else has this key
        return grpc.ssl_server_certificate_configuration(
            [(self._own.key_pem, self._own.pem)], root_certificates=roots
        )

    def _news(self) -> grpc.ServerCertificateConfiguration | None:
        """Asked by gRPC, in a thread of its own, at each new connection."""
        self.handshakes += 1
        return self._configuration() if self._shown != self._trust.version else None


class _Calls(exchange_pb2_grpc.ExchangeServicer):
    def __init__(self, listener: GrpcListener, service: Service, meter: Meter) -> None:
        self._listener = listener
        self._service = service
        self._meter = meter
        self._streams: Counter[PeerId] = Counter()

    async def Call(self, request: exchange_pb2.CallRequest, context: Any) -> exchange_pb2.CallReply:
        peer = await self._known(context)
        self._meter.call_received(request.method, request.body)
        try:
            method = Method(request.method)
            if method is Method.DIRECT:
                raise Refused("certificates are exchanged over libp2p")
            answer = self._service.answer(peer, method, request.body)
        except ValueError:
            return exchange_pb2.CallReply(refusal=f"no call {request.method[:40]!r} is known")
        except Refused as error:
            return exchange_pb2.CallReply(refusal=str(error))
        self._meter.word_sent(len(answer))
        return exchange_pb2.CallReply(answer=answer)

    async def Stream(  # type: ignore[override]  # it writes, so that a write has a deadline
        self, requests: AsyncIterator[exchange_pb2.StreamRequest], context: Any
    ) -> None:
        peer = await self._known(context)
        self._streams[peer] += 1
        try:
            async with asyncio.timeout(REQUEST_SECONDS):
                request = await context.read()
            if request is not grpc.aio.EOF:
                self._meter.word_received(len(request.body) + FRAME_HEADER_BYTES)
                await self._serve(peer, request.body, context)
        except TimeoutError:
            await context.abort(grpc.StatusCode.DEADLINE_EXCEEDED, "nothing was asked for")
        finally:
            self._streams[peer] -= 1
            if not self._streams[peer]:
                del self._streams[peer]

    async def _serve(self, peer: PeerId, body: bytes, context: Any) -> None:
        try:
            if self._streams[peer] > MAX_STREAMS_PER_PEER:
                raise Busy
            outgoing = self._service.open_stream(peer, body)
        except Busy as error:
            await self._last(context, Frame.KIND_BUSY, error.body)
            return
        except Refused as error:
            await self._last(context, Frame.KIND_REFUSAL, str(error).encode())
            return
        with closing(outgoing), self._meter.access.up.begin(peer) as passage:
            try:
                await self._send(context, outgoing, passage)
            except (DemolocoError, OSError) as error:
                log.warning("stream=cut peer=%s why=%s", short(peer), error)
                said = b"this node cannot read what was asked for"
                await self._last(context, Frame.KIND_REFUSAL, said)
                return
            await self._last(context, Frame.KIND_END, b"")
            async with asyncio.timeout(2 * TAKE_SECONDS):
                await context.read()  # its end: all has come
            passage.arrived()

    async def _send(self, context: Any, outgoing: Outgoing, passage: Passage) -> None:
        """All pieces, each in parts that a thin link takes in time."""
        limited, quick = bool(self._meter.access.up.gate.speed), False
        for piece in outgoing.frames():
            step = len(piece) if quick and not limited else passage.slice_bytes
            for start in range(0, len(piece), step):
                part = piece[start : start + step]
                kind = Frame.KIND_PIECE if start + step >= len(piece) else Frame.KIND_PART
                await passage.pass_(len(part))
                began = monotonic()
                await self._write(context, Frame(kind=kind, payload=part), outgoing)
                quick = monotonic() - began < QUICK_SECONDS
            self._meter.frame_sent(piece)

    async def _write(self, context: Any, frame: Frame, outgoing: Outgoing) -> None:
        """Give the peer a frame; if it does not take it in time, the stream is over."""
        writing = asyncio.ensure_future(context.write(frame))
        try:
            async with asyncio.timeout(TAKE_SECONDS):
                await asyncio.shield(writing)
        except TimeoutError:
            log.info("stream=cut why=its peer takes too little in too long a time")
            outgoing.close()
            await writing  # gRPC cannot end a stream before what was written is taken
            await context.abort(grpc.StatusCode.DEADLINE_EXCEEDED, "taken too slowly")
        finally:
            writing.cancel()

    async def _last(self, context: Any, kind: Frame.Kind.ValueType, said: bytes) -> None:
        async with asyncio.timeout(TAKE_SECONDS):
            await context.write(Frame(kind=kind, payload=said))
        self._meter.word_sent(len(said) + FRAME_HEADER_BYTES)

    async def _known(self, context: Any) -> PeerId:
        peer = self._listener.caller(context)
        if peer is None:
            await context.abort(grpc.StatusCode.UNAUTHENTICATED, "no peer that is trusted here")
            raise AssertionError  # abort has raised
        return peer
