"""p2pd falls, falls again, hangs, or loses its port: the node gets a new one and is found again."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from demoloco.errors import SwarmError
from demoloco.swarm.addresses import tcp_host_port
from demoloco.swarm.hivemind import p2pd
from demoloco.swarm.hivemind import transport as adapter
from demoloco.swarm.hivemind.hints import Hints
from demoloco.swarm.hivemind.transport import (
    MAX_REBUILD_SECONDS,
    STEADY_SECONDS,
    TRIES_AT_ONE_PORT,
    pause_before_restart,
)
from demoloco.swarm.port import MemberSeen
from tests.contract.swarm_lab import HIVEMIND_WARNINGS, HivemindLab, Node, a_run, two, until

pytestmark = HIVEMIND_WARNINGS


@pytest.fixture
async def lab(tmp_path: Path) -> AsyncIterator[HivemindLab]:
    lab = HivemindLab(tmp_path)
    yield lab
    await lab.close()


def pid_of(node: Node) -> int:
    pid = node.swarm.transport.daemon_pid
    assert pid is not None
    return pid


async def replaced(node: Node, old: int) -> int:
    await until(lambda: node.swarm.transport.daemon_pid not in (None, old))
    return pid_of(node)


def test_a_p2pd_that_keeps_falling_is_started_ever_more_rarely() -> None:
    pauses = [0.0]
    for _ in range(20):
        pauses.append(pause_before_restart(pauses[-1], lived=1.0))
    assert pauses[1:5] == [0.5, 1.0, 2.0, 4.0]
    assert pauses[-1] == MAX_REBUILD_SECONDS
    assert pause_before_restart(pauses[-1], lived=STEADY_SECONDS) == 0.0


async def test_a_p2pd_that_falls_again_and_again_is_rebuilt_each_time(
    lab: HivemindLab, caplog: pytest.LogCaptureFixture
) -> None:
    first, second = await two(lab)
    address, pid = first.swarm.addresses, pid_of(first)
    for _ in range(3):
        os.kill(pid, signal.SIGKILL)
        pid = await replaced(first, pid)
    assert first.swarm.restarts == 3
    assert first.swarm.addresses == address
    lines = [line for line in caplog.messages if line.startswith("p2pd=died")]
    assert [line[-5:] for line in lines] == ["0.5 s", "1.0 s", "2.0 s"]
    assert "it ended with code -9" in lines[0]
    await second.hears_anew(MemberSeen, lambda e: e.member.peer == first.peer)
    blob = first.shelf.put(bytes(1000))
    assert await second.swarm.fetch(blob, [first.peer]) == bytes(1000)


async def test_a_p2pd_that_hangs_is_killed_and_rebuilt(
    lab: HivemindLab, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(p2pd, "LOOK_SECONDS", 0.3)
    monkeypatch.setattr(p2pd, "ANSWER_SECONDS", 1.0)
    first, second = await two(lab)
    pid = pid_of(first)
    os.kill(pid, signal.SIGSTOP)
    await replaced(first, pid)
    await second.hears_anew(MemberSeen, lambda e: e.member.peer == first.peer)
    (line,) = [line for line in caplog.messages if line.startswith("p2pd=died")]
    assert "it answered nothing any longer and was killed" in line


async def test_a_p2pd_whose_calls_nobody_reads_any_longer_is_rebuilt(
    lab: HivemindLab, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(p2pd, "LOOK_SECONDS", 0.2)
    first, second = await two(lab)
    pid = pid_of(first)
    first.swarm.transport._up._client.control._read_task.cancel()
    await replaced(first, pid)
    await second.hears_anew(MemberSeen, lambda e: e.member.peer == first.peer)
    assert first.swarm.restarts == 1


async def test_a_p2pd_that_falls_while_it_is_set_up_ends_the_start(
    lab: HivemindLab, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fall(p2p: p2pd.CountingP2P) -> Hints:
        p2p._child.kill()
        await asyncio.Event().wait()
        raise AssertionError

    monkeypatch.setattr(Hints, "join", fall)
    node = lab.node()
    with pytest.raises(SwarmError, match="cannot be set up: it died"):
        await node.start()


async def test_a_port_that_is_lost_is_given_up_for_another_where_others_find_the_node(
    lab: HivemindLab, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    first, second = await two(lab)
    before = first.swarm.addresses
    taken = await kill_and_take_port(first)
    with taken:
        await until(lambda: first.swarm.transport.daemon_pid is not None)
        assert first.swarm.addresses != before
        first.say(a_run(first))
        await second.hears_anew(
            MemberSeen,
            lambda e: (e.member.peer, e.member.addresses) == (first.peer, first.swarm.addresses),
        )
    down = [line for line in caplog.messages if line.startswith("p2pd=down")]
    assert len(down) == TRIES_AT_ONE_PORT + 1
    assert down[-1] == "p2pd=down; it now listens on any free port, not where it was"


async def kill_and_take_port(node: Node) -> socket.socket:
    """Somebody else is quicker than the new p2pd."""
    place = tcp_host_port(node.swarm.addresses[0])
    taken = socket.socket()
    taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    os.kill(pid_of(node), signal.SIGKILL)
    assert place is not None

    def bound() -> bool:
        try:
            taken.bind(place)
        except OSError:
            return False
        return True

    await until(bound)
    taken.listen()
    assert adapter.FIRST_PAUSE_SECONDS > 0.1
    return taken
