"""What a node does for its operator: tell its status, keep telling it, give a model, leave.

Rule: translate, call the node, translate. Nothing is decided here, and no caller can hurt the node:
whatever goes wrong in a call ends in that call.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import quote

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc

from demoloco.control.exports import ExportStep, ExportWish
from demoloco.control.socket import owned_socket, owner_only
from demoloco.control.translate import interval_of, to_export_reply, to_reply, wish_of
from demoloco.errors import ConfigError, RequestError
from demoloco.node.feed import Feed, Status
from demoloco_proto.v1 import control_pb2, control_pb2_grpc

SERVICE = "demoloco_proto.v1.NodeControl"
MAX_REQUEST_BYTES = 64 * 1024
_OPTIONS = [
    ("grpc.so_reuseport", 0),
    ("grpc.max_receive_message_length", MAX_REQUEST_BYTES),
]
_log = logging.getLogger("demoloco.control")


class Operated(Protocol):
    """A node as its operator sees it."""

    @property
    def feed(self) -> Feed: ...

    def status(self) -> Status: ...

    def request_leave(self, now: bool) -> None:
        """Begin to leave and return at once; `now` = do not contribute first."""

    def export(self, wish: ExportWish) -> AsyncGenerator[ExportStep, None]:
        """Give a model away; whoever stops to listen ends it.

        Raises: RequestError."""
        ...


class ControlServer:
    """Answers on the home's control socket between `start` and `stop`."""

    def __init__(self, node: Operated, home: Path) -> None:
        self._node = node
        self._home = home
        self._server: grpc.aio.Server | None = None
        self._health = health.aio.HealthServicer()
        self._held = AsyncExitStack()

    async def start(self) -> Path:
        """Listen, and return where.

        Raises: ConfigError if the socket can't be had: a node runs here, or the home is no good.
        """
        path = self._held.enter_context(owned_socket(self._home))
        server = grpc.aio.server(options=_OPTIONS)
        control_pb2_grpc.add_NodeControlServicer_to_server(_Calls(self._node), server)
        health_pb2_grpc.add_HealthServicer_to_server(self._health, server)
        await self._health.set(SERVICE, health_pb2.HealthCheckResponse.SERVING)
        try:
            with owner_only():
                server.add_insecure_port(f"unix:{quote(str(path))}")
        except RuntimeError as error:
            await self._held.aclose()
            raise ConfigError(
                f"can't listen on {path}: {error}; choose a home on a local disk with --home DIR"
            ) from error
        await server.start()
        self._server = server
        return path

    async def stop(self, grace_seconds: float = 1.0) -> None:
        """Say so to everybody who listens, end, and take the socket away."""
        self._node.feed.close()
        if self._server is not None:
            await self._health.enter_graceful_shutdown()
            await self._server.stop(grace_seconds)
            self._server = None
        await self._held.aclose()


class _Calls(control_pb2_grpc.NodeControlServicer):
    def __init__(self, node: Operated) -> None:
        self._node = node

    async def Status(
        self, request: control_pb2.StatusRequest, context: Any
    ) -> control_pb2.StatusReply:
        async with _wall(context):
            return to_reply(self._node.status())

    async def Watch(
        self, request: control_pb2.WatchRequest, context: Any
    ) -> AsyncIterator[control_pb2.StatusReply]:
        async with _wall(context):
            interval = interval_of(request)
            with self._node.feed.subscribe() as news:
                yield to_reply(self._node.status())
                while (status := await news.next(interval)) is not None:
                    yield to_reply(status)

    async def Leave(
        self, request: control_pb2.LeaveRequest, context: Any
    ) -> control_pb2.LeaveReply:
        async with _wall(context):
            self._node.request_leave(request.now)
            return control_pb2.LeaveReply()

    async def Export(
        self, request: control_pb2.ExportRequest, context: Any
    ) -> AsyncIterator[control_pb2.ExportReply]:
        async with _wall(context), aclosing(self._node.export(wish_of(request))) as steps:
            async for step in steps:
                yield to_export_reply(step)


@asynccontextmanager
async def _wall(context: Any) -> AsyncIterator[None]:
    """Turn an error into a gRPC status: the caller's with its fix, ours with where to look."""
    try:
        yield
    except RequestError as error:
        await context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))
    except Exception as error:
        _log.exception("an operator's call failed")
        await context.abort(
            grpc.StatusCode.INTERNAL,
            f"the node failed to answer ({type(error).__name__}); its log has the traceback",
        )
