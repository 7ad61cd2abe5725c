"""The control server over a real Unix socket, as any gRPC client sees it."""

from __future__ import annotations

import asyncio
import dataclasses
import os
import socket
import stat
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from urllib.parse import quote

import grpc
import pytest
import uvloop
from grpc_health.v1 import health_pb2, health_pb2_grpc

from demoloco.control.exports import ExportMember, ExportResult, ExportWish
from demoloco.control.server import SERVICE, ControlServer
from demoloco.control.socket import MAX_SOCKET_PATH_BYTES
from demoloco.control.translate import to_reply
from demoloco.errors import ConfigError, RequestError
from demoloco.node.feed import MemberStatus, Status
from demoloco_proto.v1 import control_pb2
from demoloco_proto.v1.control_pb2 import (
    ExportRequest,
    LeaveRequest,
    StatusReply,
    StatusRequest,
    WatchRequest,
)
from demoloco_proto.v1.control_pb2_grpc import NodeControlStub
from tests.control.fake_node import FULL, MERGED, FakeNode


@asynccontextmanager
async def serving(node: FakeNode, home: Path) -> AsyncIterator[grpc.aio.Channel]:
    server = ControlServer(node, home)
    path = await server.start()
    try:
        async with grpc.aio.insecure_channel(f"unix:{quote(str(path))}") as channel:
            yield channel
    finally:
        await server.stop()


def test_the_status_has_the_fields_of_the_proto_and_no_others() -> None:
    ours = {field.name for field in dataclasses.fields(Status)}
    assert ours == {field.name for field in StatusReply.DESCRIPTOR.fields}


def test_a_member_has_the_fields_of_the_proto_and_no_others() -> None:
    ours = {field.name for field in dataclasses.fields(MemberStatus)}
    theirs = StatusReply.DESCRIPTOR.fields_by_name["members"].message_type.fields
    assert ours == {field.name for field in theirs}


def test_what_is_not_known_is_absent() -> None:
    reply = to_reply(Status())
    for name in ("loss", "eval_loss", "eval_round", "eval_loss_first"):
        assert not reply.HasField(name), name


async def test_status_tells_everything_that_the_node_tells(tmp_path: Path) -> None:
    async with serving(FakeNode(), tmp_path) as channel:
        reply = await NodeControlStub(channel).Status(StatusRequest())
    assert reply == to_reply(FULL)
    assert reply.loss == 2.125
    assert [member.me for member in reply.members] == [False, True]
    assert dict(reply.counters) == {"worker_restarts": 1, "packets_dropped": 2}


async def test_watch_tells_the_status_and_then_each_moment_in_order(tmp_path: Path) -> None:
    node = FakeNode()
    async with serving(node, tmp_path) as channel:
        stream = NodeControlStub(channel).Watch(WatchRequest(interval_seconds=60))
        first = await stream.read()
        node.feed.update(phase="exchanging")
        node.feed.update(phase="training", round=13)
        node.feed.update(loss=2.0)
        second, third = await stream.read(), await stream.read()
    assert [(r.phase, r.round) for r in (first, second, third)] == [
        ("training", 12),
        ("exchanging", 12),
        ("training", 13),
    ]
    assert third.loss == 2.0


async def test_watch_tells_changes_within_a_moment_once_per_interval(tmp_path: Path) -> None:
    node = FakeNode()
    async with serving(node, tmp_path) as channel:
        stream = NodeControlStub(channel).Watch(WatchRequest(interval_seconds=0.1))
        await stream.read()
        node.feed.update(inner_step=32)
        reply = await stream.read()
    assert reply.inner_step == 32


async def test_watch_ends_without_an_error_when_the_server_stops(tmp_path: Path) -> None:
    node = FakeNode()
    server = ControlServer(node, tmp_path)
    path = await server.start()
    async with grpc.aio.insecure_channel(f"unix:{path}") as channel:
        stream = NodeControlStub(channel).Watch(WatchRequest(interval_seconds=60))
        await stream.read()
        node.feed.update(phase="leaving")
        await server.stop()
        assert (await stream.read()).phase == "leaving"
        assert await stream.read() is grpc.aio.EOF


@pytest.mark.parametrize("seconds", [0.09, 60.1, -1.0, float("nan"), float("inf")])
async def test_an_interval_out_of_bounds_is_refused_with_the_fix(
    tmp_path: Path, seconds: float
) -> None:
    async with serving(FakeNode(), tmp_path) as channel:
        stream = NodeControlStub(channel).Watch(WatchRequest(interval_seconds=seconds))
        with pytest.raises(grpc.aio.AioRpcError) as failure:
            await stream.read()
    assert failure.value.code() == grpc.StatusCode.INVALID_ARGUMENT
    assert "ask for 0.1 to 60" in (failure.value.details() or "")


async def test_leave_is_passed_on_with_its_manner(tmp_path: Path) -> None:
    node = FakeNode()
    async with serving(node, tmp_path) as channel:
        await NodeControlStub(channel).Leave(LeaveRequest(now=True))
    assert node.leaves == [True]


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [(ExportResult, control_pb2.ExportResult), (ExportMember, control_pb2.ExportMember)],
)
def test_an_exports_result_has_the_fields_of_the_proto_and_no_others(
    ours: type, theirs: type[control_pb2.ExportResult]
) -> None:
    names = {field.name for field in dataclasses.fields(ours)}
    assert names == {field.name for field in theirs.DESCRIPTOR.fields}


async def test_an_export_tells_its_steps_in_order(tmp_path: Path) -> None:
    node = FakeNode()
    async with serving(node, tmp_path) as channel:
        request = ExportRequest(merge=True, patience_seconds=9)
        replies = [reply async for reply in NodeControlStub(channel).Export(request)]
    kinds = [reply.WhichOneof("step") for reply in replies]
    assert kinds == ["progress", "result", "data", "data"]
    assert replies[0].progress.of == 2
    assert replies[1].result.merged_loss == MERGED.merged_loss
    assert replies[1].result.members[0].peer_id == FULL.peer_id
    assert b"".join(reply.data for reply in replies) == b"the end"
    assert node.wishes == [ExportWish(merge=True, patience_seconds=9)]


async def test_losses_that_are_not_known_are_absent(tmp_path: Path) -> None:
    node = FakeNode()
    node.steps = (dataclasses.replace(MERGED, own_loss=None, merged_loss=None),)
    async with serving(node, tmp_path) as channel:
        (reply,) = [one async for one in NodeControlStub(channel).Export(ExportRequest())]
    assert [reply.result.HasField(f"{name}_loss") for name in ("own", "agreed", "merged")] == [
        False, True, False,
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("request_", "words"),
    [
        (ExportRequest(which="theirs"), "ask for own or agreed"),
        (ExportRequest(which="own", merge=True), "ask for `which` without `merge`"),
        (ExportRequest(patience_seconds=0.5), "ask for 1 to 86400"),
        (ExportRequest(patience_seconds=float("nan")), "ask for 1 to 86400"),
    ],
)
async def test_an_export_that_makes_no_sense_is_refused_with_the_fix(
    tmp_path: Path, request_: ExportRequest, words: str
) -> None:
    node = FakeNode()
    async with serving(node, tmp_path) as channel:
        with pytest.raises(grpc.aio.AioRpcError) as failure:
            await NodeControlStub(channel).Export(request_).read()
    assert failure.value.code() == grpc.StatusCode.INVALID_ARGUMENT
    assert words in (failure.value.details() or "")
    assert node.wishes == []


async def test_an_export_that_nobody_listens_to_any_longer_ends(tmp_path: Path) -> None:
    node = FakeNode()
    node.steps = (MERGED, *[bytes(1 << 20)] * 64)
    async with serving(node, tmp_path) as channel:
        stream = NodeControlStub(channel).Export(ExportRequest())
        await stream.read()
        stream.cancel()
        async with asyncio.timeout(20):
            await node.export_over.wait()
    assert node.listened_to_the_end == [False]


async def test_what_the_node_refuses_comes_back_in_its_own_words(tmp_path: Path) -> None:
    node = FakeNode()
    node.refusal = RequestError("not while joining; ask again later")
    async with serving(node, tmp_path) as channel:
        with pytest.raises(grpc.aio.AioRpcError) as failure:
            await NodeControlStub(channel).Status(StatusRequest())
    assert failure.value.code() == grpc.StatusCode.INVALID_ARGUMENT
    assert failure.value.details() == "not while joining; ask again later"


async def test_a_bug_ends_its_call_and_not_the_server(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    node = FakeNode()
    async with serving(node, tmp_path) as channel:
        node.refusal = KeyError("secret")
        with pytest.raises(grpc.aio.AioRpcError) as failure:
            await NodeControlStub(channel).Status(StatusRequest())
        node.refusal = None
        reply = await NodeControlStub(channel).Status(StatusRequest())
    assert failure.value.code() == grpc.StatusCode.INTERNAL
    assert "secret" not in (failure.value.details() or "")
    assert "secret" in caplog.text
    assert reply.round == 12


@pytest.mark.parametrize("service", ["", SERVICE])
async def test_health_is_serving_for_the_whole_and_for_the_service(
    tmp_path: Path, service: str
) -> None:
    async with serving(FakeNode(), tmp_path) as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        reply = await stub.Check(health_pb2.HealthCheckRequest(service=service))
    assert reply.status == health_pb2.HealthCheckResponse.SERVING


async def test_the_socket_is_its_owners_alone_and_gone_after_the_stop(tmp_path: Path) -> None:
    before = os.umask(0o022)
    os.umask(before)
    server = ControlServer(FakeNode(), tmp_path / "home")
    path = await server.start()
    mode = stat.S_IMODE(path.stat().st_mode)
    await server.stop()
    assert mode == 0o600
    assert not path.exists()
    assert os.umask(before) == before


async def test_a_home_with_any_characters_will_do(tmp_path: Path) -> None:
    async with serving(FakeNode(), tmp_path / "a b#%20é?") as channel:
        reply = await NodeControlStub(channel).Status(StatusRequest())
    assert reply.round == 12


async def test_a_second_server_is_refused_and_the_first_goes_on(tmp_path: Path) -> None:
    async with serving(FakeNode(), tmp_path) as channel:
        with pytest.raises(ConfigError, match=r"a node runs in .* already; stop it with"):
            await ControlServer(FakeNode(), tmp_path).start()
        reply = await NodeControlStub(channel).Status(StatusRequest())
    assert reply.round == 12


async def test_what_a_dead_node_left_is_no_obstacle(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(tmp_path / "control.sock"))
    (tmp_path / "control.lock").touch()
    async with serving(FakeNode(), tmp_path) as channel:
        reply = await NodeControlStub(channel).Status(StatusRequest())
    assert reply.round == 12


async def test_a_home_can_be_served_again_after_a_stop(tmp_path: Path) -> None:
    for _ in range(2):
        async with serving(FakeNode(), tmp_path) as channel:
            assert (await NodeControlStub(channel).Status(StatusRequest())).round == 12


def home_of_socket_length(tmp_path: Path, size: int) -> Path:
    return tmp_path / ("h" * (size - len(str(tmp_path)) - len("//control.sock")))


async def test_a_path_of_the_greatest_length_will_do(tmp_path: Path) -> None:
    async with serving(
        FakeNode(), home_of_socket_length(tmp_path, MAX_SOCKET_PATH_BYTES)
    ) as channel:
        reply = await NodeControlStub(channel).Status(StatusRequest())
    assert reply.round == 12


async def test_a_path_one_byte_too_long_is_refused_with_the_fix(tmp_path: Path) -> None:
    home = home_of_socket_length(tmp_path, MAX_SOCKET_PATH_BYTES + 1)
    with pytest.raises(ConfigError, match=r"at most \d+; choose a shorter one with --home"):
        await ControlServer(FakeNode(), home).start()
    assert not home.exists()


async def test_a_home_that_is_a_file_is_refused_with_the_fix(tmp_path: Path) -> None:
    home = tmp_path / "file"
    home.touch()
    with pytest.raises(ConfigError, match="choose another home with --home"):
        await ControlServer(FakeNode(), home).start()


async def test_a_hundred_watchers_end_with_the_server(tmp_path: Path) -> None:
    node = FakeNode()
    server = ControlServer(node, tmp_path)
    path = await server.start()
    async with grpc.aio.insecure_channel(f"unix:{path}") as channel:
        stub = NodeControlStub(channel)
        streams = [stub.Watch(WatchRequest(interval_seconds=60)) for _ in range(100)]
        await asyncio.gather(*(stream.read() for stream in streams))
        await server.stop()
        rest = await asyncio.gather(*(stream.read() for stream in streams))
    assert set(rest) == {grpc.aio.EOF}


def test_it_serves_on_the_loop_that_the_node_uses(tmp_path: Path) -> None:
    async def ask() -> StatusReply:
        async with serving(FakeNode(), tmp_path) as channel:
            return await NodeControlStub(channel).Status(StatusRequest())

    assert uvloop.run(ask()).round == 12


def test_the_feed_and_its_view_know_no_grpc() -> None:
    code = (
        "import sys, demoloco.node.feed, demoloco.node.logs, demoloco.node.progress;"
        "print(sorted({name.split('.')[0] for name in sys.modules} & {'grpc', 'google', 'torch'}))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
