"""The SDK against a real control server: what it gives, and what its failures say."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from demoloco.control.translate import to_reply
from demoloco_client.sdk import (
    MAX_SOCKET_PATH_BYTES,
    ClientError,
    NoAnswerError,
    NodeClient,
    NodeGoneError,
    NoNodeError,
    RefusedError,
)
from tests.client.stub_process import stub_node
from tests.control.fake_node import FULL, RunningNode, running_node


@pytest.fixture
def node(tmp_path: Path) -> Iterator[RunningNode]:
    with running_node(tmp_path) as running:
        yield running


def test_the_status_is_the_nodes(node: RunningNode) -> None:
    with NodeClient(node.home) as client:
        assert client.status() == to_reply(FULL)


def test_a_node_is_found_by_its_socket_too(node: RunningNode) -> None:
    with NodeClient(socket=node.home / "control.sock") as client:
        assert client.healthy()


def test_watch_gives_the_moments_and_ends_when_the_node_leaves(node: RunningNode) -> None:
    with NodeClient(node.home) as client:
        stream = client.watch(interval_seconds=60)
        seen = [next(stream)]
        node.update(phase="exchanging")
        node.update(phase="training", round=13)
        seen += [next(stream), next(stream)]
        node.update(phase="leaving")
        node.stop()
        seen += list(stream)
    assert [(reply.round, reply.phase) for reply in seen] == [
        (12, "training"),
        (12, "exchanging"),
        (13, "training"),
        (13, "leaving"),
    ]


@pytest.mark.parametrize("now", [False, True])
def test_leave_reaches_the_node(node: RunningNode, now: bool) -> None:
    with NodeClient(node.home) as client:
        client.leave(now=now)
    assert node.node.leaves == [now]


def test_a_refusal_has_the_nodes_own_words(node: RunningNode) -> None:
    with NodeClient(node.home) as client:
        client.leave()
        with pytest.raises(RefusedError, match="leaving already"):
            client.leave()


def test_an_interval_out_of_bounds_is_refused(node: RunningNode) -> None:
    with NodeClient(node.home) as client, pytest.raises(RefusedError, match=r"ask for 0\.1 to 60"):
        next(client.watch(interval_seconds=0.01))


def test_waiting_for_the_node_to_go_ends_with_its_socket(node: RunningNode) -> None:
    with NodeClient(node.home) as client:
        assert not client.wait_until_gone(timeout_seconds=0)
        stopper = threading.Thread(target=node.stop)
        stopper.start()
        assert client.wait_until_gone(timeout_seconds=20)
        stopper.join()


def test_where_no_node_is_the_text_says_what_to_do(tmp_path: Path) -> None:
    with NodeClient(tmp_path) as client:
        for call in (client.status, client.leave, client.healthy, lambda: next(client.watch())):
            with pytest.raises(NoNodeError, match=r"looked at .*control\.sock.*demoloco demo"):
                call()


def test_the_socket_of_a_dead_node_is_no_node(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(tmp_path / "control.sock"))
    with NodeClient(tmp_path) as client, pytest.raises(NoNodeError):
        client.status()


def test_a_node_killed_in_mid_stream_is_gone_and_can_come_back(tmp_path: Path) -> None:
    with stub_node(tmp_path) as process, NodeClient(tmp_path) as client:
        stream = client.watch(interval_seconds=60)
        next(stream)
        process.kill()
        process.wait()
        with pytest.raises(NodeGoneError, match="its log says why"):
            list(stream)
        with pytest.raises(NoNodeError):
            client.status()
        assert (tmp_path / "control.sock").exists()
    with stub_node(tmp_path), NodeClient(tmp_path) as client:
        assert client.healthy()


def test_a_node_that_does_not_answer_is_not_waited_for(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as deaf:
        deaf.bind(str(tmp_path / "control.sock"))
        deaf.listen()
        client = NodeClient(tmp_path, timeout_seconds=0.2)
        with client, pytest.raises(NoAnswerError, match=r"did not answer in 0\.2 s"):
            client.status()


def test_a_node_with_a_full_queue_of_callers_is_there(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as deaf, contextlib.ExitStack() as callers:
        deaf.bind(str(tmp_path / "control.sock"))
        deaf.listen(0)
        for _ in range(3):
            caller = callers.enter_context(socket.socket(socket.AF_UNIX))
            caller.setblocking(False)
            with contextlib.suppress(BlockingIOError):
                caller.connect(str(tmp_path / "control.sock"))
        with NodeClient(tmp_path) as client:
            assert client.running()


def test_another_users_node_is_not_taken_for_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Refused(socket.socket):
        def connect(self, address: object) -> None:
            raise PermissionError(13, "Permission denied")

    with NodeClient(tmp_path) as client:
        monkeypatch.setattr("demoloco_client.sdk.sockets.socket", Refused)
        with pytest.raises(ClientError, match="ask as the user that the node runs as"):
            client.status()


def test_a_path_too_long_for_a_socket_is_explained(tmp_path: Path) -> None:
    with pytest.raises(ClientError, match="choose a shorter home"):
        NodeClient(tmp_path / ("h" * MAX_SOCKET_PATH_BYTES))


def test_a_closed_client_says_so(node: RunningNode) -> None:
    client = NodeClient(node.home)
    client.close()
    with pytest.raises(NodeGoneError):
        client.status()
