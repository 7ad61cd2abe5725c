"""The whole of `demoloco doctor`: alone, against a real node, and where nobody answers."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
from pathlib import Path
from typing import Any

import psutil
import pytest

from benchmarks.daemons import BIN, LISTEN, World, await_end, sets

SECONDS = 200.0
STRANGER = "12D3KooWSuUJrNRa4MNzRNzRd4iecF5bomjFjK5bxigJhGgR4s48"

pytestmark = pytest.mark.timeout(400)


def examine(place: World, *words: str) -> tuple[int, dict[str, Any]]:
    """The exit code, and all checks by their names."""
    if "--home" not in words:
        words = ("--home", str(place.root / "no-home"), "--listen", LISTEN, *words)
    done = place.run("demoloco", "doctor", "--json", *words, seconds=SECONDS)
    assert done.stderr == ""
    said = json.loads(done.stdout)
    return done.returncode, {one["name"]: one for one in said["checks"]}


def test_a_wrong_address_is_answered_at_once_with_2(place: World) -> None:
    done = place.run("demoloco", "doctor", "--peer", "127.0.0.1:31337", seconds=SECONDS)
    assert done.returncode == 2
    assert "did you mean /ip4/127.0.0.1/tcp/31337/p2p/<peer id>?" in done.stderr
    assert "Traceback" not in done.stderr
    assert done.stdout == ""


def test_alone_it_needs_no_run_and_leaves_nothing(place: World) -> None:
    code, checks = examine(place)
    assert {name: one for name, one in checks.items() if one["level"] == "fail"} == {}
    assert code == 0
    assert checks["torch"]["level"] == "ok"
    assert "this machine alone" in checks["nat"]["summary"]
    assert not (place.root / "no-home").exists()
    assert await_end(place.processes()) == []


@pytest.mark.slow
def test_against_a_node_the_way_there_and_back_is_measured(place: World) -> None:
    peer = place.daemon("peer").start(*sets(threads=1, task__depth=1, task__width=64))
    status = peer.ready()
    code, checks = examine(place, "--peer", status.addresses[0])
    assert code == 0
    assert checks["peer"]["facts"]["peer"]["run"] == status.run_id
    assert checks["clock"]["summary"].endswith("the peer's")
    assert checks["dial_back"]["facts"]["dial_back"]["outcome"] == "open"
    assert checks["link"]["facts"]["link"]["up"] > 0
    assert checks["link"]["facts"]["link"]["down"] > 0

    _, own = examine(place, "--home", str(peer.home), "--peer", status.addresses[0])
    port = int(status.addresses[0].split("/")[4])
    held = f"port {port} is held by the node of this home, process {peer.pid}"
    assert own["ports"]["summary"] == held
    assert own["dial_back"]["facts"]["dial_back"]["port"] == port
    assert peer.wait_for_round(peer.status.round + 1)


@pytest.mark.slow
def test_a_peer_that_is_away_fails_and_the_rest_is_judged(place: World) -> None:
    with socket.socket() as refusing:
        refusing.bind(("127.0.0.1", 0))  # and never listens
        port = refusing.getsockname()[1]
        code, checks = examine(place, "--peer", f"/ip4/127.0.0.1/tcp/{port}/p2p/{STRANGER}")
    assert code == 1
    assert checks["peer"]["level"] == "fail"
    assert "connection refused" in checks["peer"]["summary"]
    assert "is that node running" in checks["peer"]["fix"]
    assert checks["link"]["summary"] == "not tried: the peer was not reached"
    assert checks["torch"]["level"] == "ok"


@pytest.mark.slow
def test_ctrl_c_ends_it_and_all_that_it_started(place: World, tmp_path: Path) -> None:
    command = [str(BIN / "demoloco"), "doctor", "--home", str(tmp_path), "--listen", LISTEN]
    process = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # as in a terminal
    )
    assert process.stdout is not None
    assert process.stdout.readline().startswith(("ok", "warn"))
    family = psutil.Process(process.pid).children(recursive=True)
    process.send_signal(signal.SIGINT)
    _, complaints = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "Traceback" not in complaints
    assert await_end(family) == []
