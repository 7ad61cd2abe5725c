"""Talk to a node of this machine from Python: status, the live stream, export, leave, health.

    with NodeClient() as node:
        print(node.status().round)

Rule: every call has a deadline, and every failure is a ClientError whose text says what to do.
"""

from __future__ import annotations

import os
import socket as sockets
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Self
from urllib.parse import quote

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from demoloco_client.new_file import UnwritableError, new_file
from demoloco_client.paths import default_home, socket_of
from demoloco_proto.v1.control_pb2 import (
    ExportProgress,
    ExportRequest,
    ExportResult,
    LeaveRequest,
    StatusReply,
    StatusRequest,
    WatchRequest,
)
from demoloco_proto.v1.control_pb2_grpc import NodeControlStub

SERVICE = "demoloco_proto.v1.NodeControl"
MAX_SOCKET_PATH_BYTES = 107 if sys.platform == "linux" else 103
_OPTIONS = [("grpc.enable_http_proxy", 0), ("grpc.enable_retries", 0)]


class ClientError(Exception):
    """What was asked of the node did not happen; the text says what to do."""


class NoNodeError(ClientError):
    """No node listens at this socket."""


class NodeGoneError(ClientError):
    """The node went away during the call."""


class NoAnswerError(ClientError):
    """A node is there and does not answer in time."""


class RefusedError(ClientError):
    """The node refuses the request; the text is the node's own."""


class TargetError(ClientError):
    """The file cannot be written where it is wanted; said before the node is asked, if possible."""


class NodeClient:
    """A connection to one node, found by its home or its socket; by default this user's own."""

    def __init__(
        self,
        home: Path | None = None,
        *,
        socket: Path | None = None,
        timeout_seconds: float = 5.0,
    ) -> None:
        self.socket = socket.absolute() if socket else socket_of(home or default_home())
        if len(os.fsencode(self.socket)) > MAX_SOCKET_PATH_BYTES:
            raise ClientError(
                f"{self.socket} is longer than the {MAX_SOCKET_PATH_BYTES} bytes that a Unix "
                "socket's path can have, so no node can run there; choose a shorter home"
            )
        self._timeout = timeout_seconds
        self._channel = grpc.insecure_channel(f"unix:{quote(str(self.socket))}", options=_OPTIONS)
        self._node = NodeControlStub(self._channel)
        self._health = health_pb2_grpc.HealthStub(self._channel)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Let go of the connection; a `watch` in another thread ends with NodeGoneError."""
        self._channel.close()

    def status(self) -> StatusReply:
        """What the node does now."""
        with self._explained():
            return self._node.Status(StatusRequest(), timeout=self._timeout)

    def watch(self, interval_seconds: float = 1.0) -> Iterator[StatusReply]:
        """The status now, at each change of phase or round, and in between once per interval.

        Ends when the node leaves. Raises: NodeGoneError if it goes without leaving.
        """
        with self._explained():
            yield from self._node.Watch(WatchRequest(interval_seconds=interval_seconds))

    def leave(self, *, now: bool = False) -> None:
        """Ask the node to contribute what it has done and stop; `now` = without contributing."""
        with self._explained():
            self._node.Leave(LeaveRequest(now=now), timeout=self._timeout)

    def export(
        self,
        out: Path,
        request: ExportRequest | None = None,
        *,
        force: bool = False,
        heard: Callable[[ExportProgress], object] = lambda progress: None,
    ) -> ExportResult:
        """Write a model of the node to `out`; by default its own. It trains on meanwhile.

        The node sends the file's bytes, and they are written here: with the caller's rights, where
        the caller sees `out`, whole and durable, or not at all. Takes as long as it takes; each of
        the node's own waits has an end. Raises: TargetError, and as `status`."""
        out, result = out.absolute(), None
        try:
            with new_file(out, force=force) as file, self._explained():
                call = self._node.Export(request or ExportRequest())
                try:
                    for reply in call:
                        match reply.WhichOneof("step"):
                            case "progress":
                                heard(reply.progress)
                            case "result":
                                result = reply.result
                                heard(ExportProgress(doing=f"writing {out.name}"))
                            case "data":
                                file.write(reply.data)
                finally:
                    call.cancel()  # where it is not over, nobody listens any longer
                if result is None or file.tell() != result.file_bytes:
                    raise NodeGoneError("the file did not come whole; ask again")
        except UnwritableError as error:
            raise TargetError(str(error)) from error
        return result

    def healthy(self) -> bool:
        """Whether the node says of itself that it serves."""
        with self._explained():
            reply = self._health.Check(
                health_pb2.HealthCheckRequest(service=SERVICE), timeout=self._timeout
            )
            return bool(reply.status == health_pb2.HealthCheckResponse.SERVING)

    def running(self) -> bool:
        """Whether a process listens at the socket, asked without gRPC.

        Raises: ClientError if the socket is another user's.
        """
        with sockets.socket(sockets.AF_UNIX) as probe:
            probe.setblocking(False)
            try:
                probe.connect(str(self.socket))
            except BlockingIOError:  # somebody listens, and has many callers
                return True
            except PermissionError as error:
                raise ClientError(
                    f"{self.socket} is another user's; ask as the user that the node runs as"
                ) from error
            except OSError:
                return False
            return True

    def wait_until_gone(self, timeout_seconds: float | None = None) -> bool:
        """Wait for the node to be gone; False if it is still there after the timeout."""
        end = None if timeout_seconds is None else time.monotonic() + timeout_seconds
        while self.running():
            if end is not None and time.monotonic() >= end:
                return False
            time.sleep(0.05)
        return True

    @contextmanager
    def _explained(self) -> Iterator[None]:
        if not self.running():
            raise NoNodeError(
                f"no node is running here (looked at {self.socket}); "
                "start one with `demoloco-node`, or try `demoloco demo`"
            )
        try:
            yield
        except ValueError as error:  # gRPC's way to say that close() came first
            raise NodeGoneError("the connection to the node was closed") from error
        except grpc.RpcError as error:
            raise self._translated(error) from error

    def _translated(self, error: grpc.RpcError) -> ClientError:
        call = error if isinstance(error, grpc.Call) else None
        code = call.code() if call else grpc.StatusCode.UNKNOWN
        said = (call.details() if call else None) or str(code)
        match code:
            case grpc.StatusCode.INVALID_ARGUMENT:
                return RefusedError(said)
            case grpc.StatusCode.DEADLINE_EXCEEDED:
                return NoAnswerError(
                    f"the node at {self.socket} did not answer in {self._timeout:g} s; "
                    "its log says what keeps it busy"
                )
            case grpc.StatusCode.UNAVAILABLE | grpc.StatusCode.CANCELLED:
                return NodeGoneError("the node went away; its log says why")
            case grpc.StatusCode.UNIMPLEMENTED:
                return ClientError("this node is of another version than this client; update both")
            case _:
                return ClientError(said)
