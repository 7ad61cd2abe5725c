"""Emulated links: what the lab promises. How exact it is, `python -m benchmarks.wanlab selftest`
tells."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import psutil
import pytest

from benchmarks.wanlab.lab import ROOT, Lab, why_unavailable
from benchmarks.wanlab.probes import Prober
from benchmarks.wanlab.selftest import selftest
from benchmarks.wanlab.units import LabError

needs_namespaces = pytest.mark.skipif(why_unavailable() is not None, reason=str(why_unavailable()))

OWNER = """
import subprocess, sys, time
sys.path.insert(0, sys.argv[1])
from benchmarks.wanlab.lab import Lab
stubborn = '''
import signal, subprocess, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
print(subprocess.Popen(["sleep", "1000"], start_new_session=True).pid, flush=True)
time.sleep(1000)
'''
lab = Lab(["a", "b"]).start()
process = lab.popen("a", [sys.executable, "-c", stubborn], stdout=subprocess.PIPE, text=True)
print(lab.router_pid, process.pid, process.stdout.readline().strip(), flush=True)
if sys.argv[2] == "forks":  # a child that inherits every descriptor
    import multiprocessing
    multiprocessing.get_context("fork").Process(target=time.sleep, args=(30,), daemon=True).start()
time.sleep(1000)
"""

MIRROR = """
import hashlib, os, socket, sys, threading
if sys.argv[1] == "serve":
    listener = socket.create_server(("", 9))
    print("ready", flush=True)
    connection, _ = listener.accept()
    while data := connection.recv(65536):
        connection.sendall(data)
else:
    connection = socket.create_connection((sys.argv[2], 9))
    sent, came_back = hashlib.sha256(), hashlib.sha256()
    def receive():
        while data := connection.recv(65536):
            came_back.update(data)
    receiver = threading.Thread(target=receive)
    receiver.start()
    for _ in range(int(sys.argv[3])):
        data = os.urandom(20000)
        sent.update(data)
        connection.sendall(data)
    connection.shutdown(socket.SHUT_WR)
    receiver.join()
    assert sent.digest() == came_back.digest()
"""


# -- without a lab ---------------------------------------------------------------------------------
@pytest.mark.parametrize(
    "bad", [{"up": "20"}, {"up": 0}, {"foo": 1}, {"loss": "200%"}, {"delay": "3"}, {"queue": "9"}]
)
def test_a_setting_that_makes_no_sense_is_refused(bad: dict[str, Any]) -> None:
    with pytest.raises(LabError):
        Lab({"a": bad})


def test_a_lab_that_does_not_run_says_so() -> None:
    lab = Lab(["a"])
    for request in (lab.stats, lambda: lab.run("a", ["true"]), lambda: lab.set_link("a", up=1e6)):
        with pytest.raises(LabError, match="not running"):
            request()


# -- the hosts -------------------------------------------------------------------------------------
@needs_namespaces
def test_labs_do_not_see_each_other_and_sockets_stay_on_their_host() -> None:
    with Lab(["a", "b"]) as first, Lab(["a", "b"]) as second:
        for lab in (first, second):  # one address and port twice
            with lab.inside("a"):
                listener = socket.create_server((lab.ip("a"), 7000))
            with lab.inside("b"):
                client = socket.create_connection((lab.ip("a"), 7000))
            server, _ = listener.accept()
            with listener, client, server:
                client.sendall(b"hello")
                assert server.recv(5) == b"hello"


@needs_namespaces
def test_hosts_have_what_they_were_given_and_no_way_out() -> None:
    escape = "import socket; s = socket.socket(); print(s.connect_ex(('192.0.2.1', 80)))"
    home = os.stat("/proc/thread-self/ns/net").st_ino
    with Lab(["a", "b"]) as lab:
        echoed = lab.run("a", ["echo", "{host} {ip} {ip.b} {index}", '{"x": {}}'], check=True)
        assert echoed.stdout.strip() == 'a 10.77.0.1 10.77.0.2 0 {"x": {}}'
        told = lab.run("b", ["sh", "-c", "echo $WANLAB_HOST $WANLAB_IP"]).stdout
        assert told.strip() == "b 10.77.0.2"
        assert int(lab.run("a", [sys.executable, "-c", escape]).stdout) == 101  # ENETUNREACH
        with pytest.raises(subprocess.TimeoutExpired):
            lab.run("a", ["sleep", "10"], timeout=0.2)
        with pytest.raises(subprocess.CalledProcessError):
            lab.run("a", ["false"], check=True)
        with pytest.raises(ZeroDivisionError), lab.inside("a"):
            _ = 1 / 0
        assert os.stat("/proc/thread-self/ns/net").st_ino == home


@needs_namespaces
def test_requests_that_make_no_sense_are_refused() -> None:
    with Lab(["a"]) as lab:
        for request in (
            lambda: lab.ip("z"),
            lambda: lab.set_link("z", up="1mbit"),
            lambda: lab.set_link("a", up="fast"),
            lambda: lab.partition("a", "z"),
            lambda: lab.set_path("a", "a"),
        ):
            with pytest.raises(LabError):
                request()
    with pytest.raises(LabError):
        Lab(["a"], congestion_control="nonesuch").start()


# -- the network -----------------------------------------------------------------------------------
@needs_namespaces
def test_rates_trips_and_partitions_are_as_asked(capsys: pytest.CaptureFixture[str]) -> None:
    assert selftest(quick=True) == 0, capsys.readouterr().out


@needs_namespaces
@pytest.mark.slow
@pytest.mark.timeout(200)
def test_all_that_can_be_asked_for_is_kept(capsys: pytest.CaptureFixture[str]) -> None:
    assert selftest() == 0, capsys.readouterr().out


@needs_namespaces
@pytest.mark.slow
def test_a_path_is_as_long_as_asked_and_a_cut_lasts_until_it_is_healed() -> None:
    with Lab(["a", "b", "c"], paths=[{"between": ["a", "b"], "delay": "20ms"}]) as lab:
        probe = Prober(lab)
        assert 39 < probe.ping("a", "b")["min_ms"] < 44
        assert probe.ping("a", "c")["min_ms"] < 4
        lab.partition("a", "b", one_way=True)
        assert probe.ping("b", "a", count=5)["lost_share"] == 1  # the answers are what is lost
        assert probe.ping("a", "c", count=5)["lost_share"] == 0
        lab.heal("a", "b")
        assert probe.ping("b", "a", count=5)["lost_share"] == 0
        lab.isolate("c")
        assert probe.ping("a", "c", count=5)["lost_share"] == 1
        assert probe.ping("a", "b", count=5)["lost_share"] == 0
        assert lab.stats()["paths"]["a"]["c"]["cut_off"] == 5


@needs_namespaces
@pytest.mark.parametrize("blocks", [40, pytest.param(400, marks=pytest.mark.slow)])
def test_bytes_come_whole_through_cutting_loss_and_full_queues(blocks: int) -> None:
    links = {
        "a": {"up": "40mbit", "down": "80mbit", "delay": "5ms", "loss": "0.5%", "jitter": "2ms"},
        "b": {"up": "30mbit", "down": "33mbit", "loss": "0.5%", "queue": "32kb"},
    }
    with Lab(links, seed=3) as lab:
        mirror = [sys.executable, "-c", MIRROR]
        server = lab.popen("a", [*mirror, "serve"], stdout=subprocess.PIPE, text=True)
        assert server.stdout is not None
        server.stdout.readline()
        lab.run("b", [*mirror, "send", lab.ip("a"), blocks], check=True, timeout=90)
        assert lab.stats()["paths"]["b"]["a"]["lost"] > 1
        told = lab.run("a", ["cat", "/proc/net/snmp"]).stdout.splitlines()
        names, values = (line.split() for line in told if line.startswith("Tcp:"))
        counters = dict(zip(names, values, strict=True))
        assert (counters["InErrs"], counters["InCsumErrors"]) == ("0", "0")


@needs_namespaces
def test_the_command_line_runs_a_topology(tmp_path: Path) -> None:
    topology = tmp_path / "topology.json"
    cut = {"at": "0s", "partition": [["a"], ["b"]]}
    topology.write_text(json.dumps({"hosts": {"a": {}, "b": {"up": "5mbit"}}, "events": [cut]}))
    words = ["run", str(topology), "--", "sh", "-c", "echo {host} at {ip}; exit {index}"]
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.wanlab", *words],
        capture_output=True,
        text=True,
        timeout=60,
        cwd=ROOT,
    )
    assert sorted(done.stdout.splitlines()) == ["a | a at 10.77.0.1", "b | b at 10.77.0.2"]
    assert done.returncode == 1


# -- the end ---------------------------------------------------------------------------------------
@needs_namespaces
@pytest.mark.parametrize(
    ("number", "forks"),
    [
        (signal.SIGKILL, "forks"),
        *(
            pytest.param(number, forks, marks=pytest.mark.slow)
            for number in (signal.SIGKILL, signal.SIGTERM, signal.SIGINT)
            for forks in ("plain", "forks")
            if (number, forks) != (signal.SIGKILL, "forks")
        ),
    ],
)
def test_however_the_owner_dies_nothing_is_left(number: int, forks: str) -> None:
    words = [sys.executable, "-c", OWNER, str(ROOT), forks]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as owner:
        assert owner.stdout is not None
        started = [psutil.Process(int(pid)) for pid in owner.stdout.readline().split()]
        owner.send_signal(number)
        assert survivors(started) == []


@needs_namespaces
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_lab_whose_router_died_says_so_and_can_be_closed(number: int) -> None:
    lab = Lab(["a", "b"]).start()
    process = lab.popen("a", ["sleep", "1000"])
    router = psutil.Process(lab.router_pid)
    router.send_signal(number)
    assert survivors([router]) == []
    with pytest.raises(LabError, match="died"):
        lab.stats()
    lab.close()
    assert process.poll() is not None


def survivors(processes: Iterable[psutil.Process]) -> list[psutil.Process]:
    """Those that run on after some time; a zombie does not."""
    _, alive = psutil.wait_procs(list(processes), timeout=8)
    return [one for one in alive if one.is_running() and one.status() != psutil.STATUS_ZOMBIE]
