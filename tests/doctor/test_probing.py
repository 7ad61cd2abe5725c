"""The probes find what is there, on this machine and against a peer in memory."""

from __future__ import annotations

import fcntl
import json
import os
import socket
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from demoloco.doctor.plan import Plan, make_plan
from demoloco.doctor.probing import clock, disk, home, link, machine, peer, ports, software
from demoloco.errors import ConfigError
from demoloco.store.records import framed
from demoloco.swarm.addresses import PeerAddress
from demoloco.swarm.transport import Refused
from tests.contract.swarm_lab import MemoryLab, Node, two

TEMPORARY = "/ip4/127.0.0.1/tcp/0"


@pytest.fixture
async def pair(tmp_path: Path) -> AsyncIterator[tuple[Node, Node]]:
    lab = MemoryLab(tmp_path)
    yield await two(lab)
    await lab.close()


def noted(where: Path, port: int) -> None:
    """As a node's start leaves it."""
    (where / "notes").mkdir()
    addresses = json.dumps([f"/ip4/127.0.0.1/tcp/{port}"])
    (where / "notes" / "listen").write_bytes(framed(addresses.encode()))


def test_the_clock_is_asked_and_not_set() -> None:
    found = clock.probe_clock()
    assert set(found) == {"synchronised", "max_error_seconds"}


def test_a_home_that_is_held_names_its_holder(tmp_path: Path) -> None:
    lock = os.open(tmp_path / "lock", os.O_RDWR | os.O_CREAT)
    os.write(lock, b"4121 0.1.0\n")
    assert home.probe_home(tmp_path)["node_pid"] is None
    fcntl.flock(lock, fcntl.LOCK_EX)
    assert home.probe_home(tmp_path)["node_pid"] == 4121
    os.close(lock)


def test_a_socket_that_nobody_holds_is_stale(tmp_path: Path) -> None:
    assert home.probe_home(tmp_path)["stale_socket"] is False
    (tmp_path / "control.sock").touch()
    assert home.probe_home(tmp_path)["stale_socket"] is True


def test_a_home_that_is_a_file_cannot_be_one(tmp_path: Path) -> None:
    (tmp_path / "h").touch()
    assert home.probe_home(tmp_path / "h")["error"] == "it is no directory"


def test_the_port_of_the_last_start_is_read_from_the_home(tmp_path: Path) -> None:
    assert home.last_port(tmp_path) is None
    noted(tmp_path, 24470)
    assert home.last_port(tmp_path) == 24470
    (tmp_path / "notes" / "listen").write_bytes(b"torn")
    assert home.last_port(tmp_path) is None


async def test_ports_that_others_have_are_told(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        noted(tmp_path, port)
        found = await ports.probe_ports(tmp_path, [TEMPORARY, f"/ip4/127.0.0.1/tcp/{port}"])
    free, used = found["listen"]
    assert free == {"address": TEMPORARY, "port": 0, "error": ""}
    assert f"port {port} is in use" in used["error"]
    assert (found["last_port"], found["last_port_free"]) == (port, False)


def test_the_disk_is_measured_and_left_as_it_was(tmp_path: Path) -> None:
    found = disk.probe_disk(tmp_path / "not" / "yet")
    assert found["path"] == str(tmp_path)
    assert found["error"] == ""
    assert found["free_bytes"] > 0
    assert found["write_bytes_a_second"] > 0
    assert found["hard_links"] is True
    assert found["mmap"] is True
    assert list(tmp_path.iterdir()) == []


def test_a_disk_that_cannot_be_written_is_told() -> None:
    assert disk.probe_disk(Path("/proc/self"))["error"]


def test_the_machine_is_asked() -> None:
    memory = machine.probe_memory()
    assert 0 < memory["available_bytes"] <= memory["total_bytes"]
    assert 0 < machine.probe_files()["soft"] <= machine.probe_files()["hard"]
    assert machine.probe_tcp()["congestion"] in machine.probe_tcp()["available"]


def test_packages_are_compared_with_what_the_node_needs() -> None:
    found = software.probe_packages()
    names = {one["name"] for one in found["packages"]}
    assert {"torch", "hivemind", "numpy"} <= names
    assert not names & {"pytest", "ruff"}
    assert all(one["found"] for one in found["packages"])


# Against a peer


async def test_a_peer_tells_its_version_run_and_clock(pair: tuple[Node, Node]) -> None:
    here, there = (node.swarm for node in pair)
    seed = PeerAddress(there.peer_id, there.addresses[0])
    found = await peer.probe_peer(here._transport, seed)
    assert found["reached"] is True
    assert found["software"] == "0.1"
    assert len(found["run"]) == 64
    assert 0 < found["rtt_seconds"] < 5
    assert abs(found["clock_ahead_seconds"]) < 5


async def test_a_peer_that_is_away_is_a_finding(pair: tuple[Node, Node]) -> None:
    here, there = (node.swarm for node in pair)
    found = await peer.probe_peer(here._transport, PeerAddress(there.peer_id, "/memory/nobody"))
    assert found["reached"] is False
    assert found["error"] == "connection refused"
    assert "is that node running" in found["advice"]


async def test_a_road_that_sees_nobody_dials_nobody_back(pair: tuple[Node, Node]) -> None:
    here, there = (node.swarm for node in pair)
    found = await peer.probe_dial_back(here._transport, there.peer_id, 24470)
    assert (found["outcome"], found["observed_host"]) == ("unknown", "")
    assert (await peer.probe_dial_back(here._transport, there.peer_id, 0))["error"]


async def test_the_link_is_measured_both_ways_and_not_for_ever(pair: tuple[Node, Node]) -> None:
    here, there = (node.swarm for node in pair)
    found = await link.probe_link(here._transport, there.peer_id)
    assert found["up"] > 0
    assert found["down"] > 0
    again = await link.probe_link(here._transport, there.peer_id)
    assert again["error"] == "busy: too many bytes were probed in the last minute"
    assert None in (again["up"], again["down"])


async def test_a_rate_is_of_what_was_carried() -> None:
    carried: list[int] = []

    async def carry(size: int) -> None:
        carried.append(size)

    assert await link.rate_of(carry) > 0
    assert link.MAX_BYTES / 2 < sum(carried) <= link.MAX_BYTES


async def test_a_peer_that_is_busy_for_a_moment_is_asked_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(link, "PAUSE_SECONDS", 0.0)
    asked = 0

    async def carry(size: int) -> None:
        nonlocal asked
        asked += 1
        if asked < link.TRIES:
            raise Refused("busy: it sends blobs to members now")

    assert await link.rate_of(carry) > 0
    asked = -100
    with pytest.raises(Refused, match="busy"):
        await link.rate_of(carry)


# The plan, and the child that probes


def test_a_plan_takes_the_nodes_own_settings(tmp_path: Path) -> None:
    plan = make_plan(tmp_path, (), "", {})
    assert plan == Plan(home=str(tmp_path), listen=("/ip4/0.0.0.0/tcp/0",))
    assert Plan.from_json(plan.to_json()) == plan


@pytest.mark.parametrize(
    ("listen", "wanted"), [((), "127.0.0.1:31337"), (("/ip4/1.2.3.4",), ""), ((), "/ip4/1.2.3.4")]
)
def test_a_wrong_address_is_the_users_mistake(
    tmp_path: Path, listen: tuple[str, ...], wanted: str
) -> None:
    with pytest.raises(ConfigError):
        make_plan(tmp_path, listen, wanted, {})


def test_a_child_prints_facts_and_nothing_else(tmp_path: Path) -> None:
    plan = Plan(home=str(tmp_path), listen=(TEMPORARY,))
    command = [sys.executable, "-m", "demoloco.doctor.child", "files", plan.to_json()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    (line,) = done.stdout.splitlines()
    assert json.loads(line)["name"] == "files"
