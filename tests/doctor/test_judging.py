"""Each verdict follows from its facts, and says what to do."""

from __future__ import annotations

from typing import Any

import pytest

from demoloco.doctor.checks import OWN_CHECKS, PEER_CHECKS
from demoloco.doctor.judging.clock import judge_clock
from demoloco.doctor.judging.disk import judge_disk
from demoloco.doctor.judging.home import judge_home
from demoloco.doctor.judging.machine import judge_files, judge_memory, judge_tcp
from demoloco.doctor.judging.nat import judge_nat, kind_of
from demoloco.doctor.judging.peer import judge_dial_back, judge_link, judge_peer
from demoloco.doctor.judging.ports import judge_ports
from demoloco.doctor.judging.software import judge_packages, judge_torch, satisfies
from demoloco.doctor.words import Level, Verdict, byte_size, span

GIB = 1 << 30
CLOCK = {"synchronised": True, "max_error_seconds": 0.012}
HOME = {
    "home": "/h",
    "exists": True,
    "error": "",
    "node_pid": None,
    "stale_socket": False,
    "orphans": [],
}
ANY_PORT = {"address": "/ip4/0.0.0.0/tcp/0", "port": 0, "error": ""}
TAKEN = {"address": "/ip4/0.0.0.0/tcp/4001", "port": 4001, "error": "port 4001 is in use"}
PORTS = {"listen": [ANY_PORT], "last_port": None, "last_port_free": None}
DISK = {
    "path": "/h",
    "filesystem": "ext4",
    "error": "",
    "free_bytes": 80e9,
    "write_bytes_a_second": 500e6,
    "sync_seconds": 0.004,
    "hard_links": True,
    "mmap": True,
}
MEMORY = {"total_bytes": 16 * GIB, "available_bytes": 8 * GIB}
TCP = {"congestion": "bbr", "available": ["cubic", "bbr"], "slow_start_after_idle": False}
TORCH = {
    "error": "",
    "version": "2.13.0+cpu",
    "built_for_gpu": False,
    "gpu_in_machine": False,
    "device": "cpu",
    "device_name": "cpu (2 threads)",
    "right": True,
}
PACKAGES = {
    "installed": "0.1.0",
    "python": "3.11.7",
    "python_wants": "<3.14,>=3.11",
    "packages": [{"name": "numpy", "wants": ">=1.26", "found": "2.4.6"}],
}
PEER = {
    "address": "/ip4/203.0.113.7/tcp/1/p2p/x",
    "reached": True,
    "error": "",
    "advice": "",
    "run": "a72ae8bde5cb",
    "software": "0.1.0",
    "rtt_seconds": 0.083,
    "clock_ahead_seconds": 0.0,
    "relayed": False,
}
BACK = {"port": 4001, "observed_host": "198.51.100.9", "outcome": "open", "error": ""}
LINK = {"up": 2.5e6, "down": 12.5e6, "error": "", "old": False}


def nat(*hosts: str) -> dict[str, Any]:
    return {"addresses": [f"/ip4/{host}/tcp/4001" for host in hosts]}


CASES: dict[str, tuple[Verdict, Level, str]] = {
    "a clock that is kept": (judge_clock(CLOCK, None), Level.OK, "at most 12 ms off"),
    "a clock that nobody keeps": (
        judge_clock(CLOCK | {"synchronised": False}, None),
        Level.WARN,
        "nothing keeps this clock",
    ),
    "a clock that cannot be asked": (
        judge_clock({"synchronised": None, "max_error_seconds": None}, None),
        Level.OK,
        "give --peer",
    ),
    "a clock as the peer's": (
        judge_clock(CLOCK | {"synchronised": False}, PEER | {"clock_ahead_seconds": 0.02}),
        Level.OK,
        "20 ms ahead of the peer's",
    ),
    "a clock some seconds off": (
        judge_clock(CLOCK, PEER | {"clock_ahead_seconds": -7.0}),
        Level.WARN,
        "7.0 s behind the peer's; one of the two is wrong",
    ),
    "a clock an hour off": (
        judge_clock(CLOCK, PEER | {"clock_ahead_seconds": 3600.0}),
        Level.FAIL,
        "through the DHT",
    ),
    "a peer whose clock is not known": (
        judge_clock(CLOCK, {"reached": False}),
        Level.OK,
        "kept synchronised",
    ),
    "a new home": (judge_home(HOME | {"exists": False}), Level.OK, "a new home"),
    "a home in use": (judge_home(HOME | {"node_pid": 7}), Level.OK, "process 7"),
    "a dead node's home": (
        judge_home(HOME | {"stale_socket": True}),
        Level.WARN,
        "ended without a word",
    ),
    "a p2pd without a node": (judge_home(HOME | {"orphans": [8, 9]}), Level.WARN, "process 8 9"),
    "a home of somebody else": (
        judge_home(HOME | {"error": "this user may not write there"}),
        Level.FAIL,
        "may not write",
    ),
    "any port": (judge_ports(PORTS, HOME), Level.OK, "(any port)"),
    "the last port again": (
        judge_ports(PORTS | {"last_port": 4001, "last_port_free": True}, HOME),
        Level.OK,
        "(again port 4001)",
    ),
    "a port in use": (judge_ports(PORTS | {"listen": [TAKEN]}, HOME), Level.FAIL, "4001 is in use"),
    "a port that its own node has": (
        judge_ports(
            {"listen": [TAKEN], "last_port": 4001, "last_port_free": False},
            HOME | {"node_pid": 7},
        ),
        Level.OK,
        "held by the node of this home, process 7",
    ),
    "another port in use while a node runs": (
        judge_ports(
            {"listen": [TAKEN], "last_port": 4002, "last_port_free": False},
            HOME | {"node_pid": 7},
        ),
        Level.FAIL,
        "4001 is in use",
    ),
    "the last port lost": (
        judge_ports(PORTS | {"last_port": 4001, "last_port_free": False}, HOME),
        Level.WARN,
        "taken by another process",
    ),
    "a good disk": (judge_disk(DISK), Level.OK, "80 GB free on ext4, writes 500 MB/s"),
    "a disk without hard links": (
        judge_disk(DISK | {"hard_links": False, "filesystem": "vfat"}),
        Level.FAIL,
        "vfat has no hard links",
    ),
    "a disk without mmap": (judge_disk(DISK | {"mmap": False}), Level.FAIL, "no mmap"),
    "a full disk": (judge_disk(DISK | {"free_bytes": 1e8}), Level.FAIL, "100 MB free"),
    "a disk with little room": (judge_disk(DISK | {"free_bytes": 2e9}), Level.WARN, "2 GB free"),
    "a slow disk": (judge_disk(DISK | {"write_bytes_a_second": 2e6}), Level.WARN, "slow"),
    "a disk that syncs slowly": (judge_disk(DISK | {"sync_seconds": 0.9}), Level.WARN, "slow"),
    "a disk that cannot be written": (
        judge_disk({"path": "/h", "filesystem": "ext4", "error": "Read-only file system"}),
        Level.FAIL,
        "/h: Read-only file system",
    ),
    "enough memory": (judge_memory(MEMORY), Level.OK, "8.59 GB free of 17.2 GB"),
    "little memory": (judge_memory(MEMORY | {"available_bytes": GIB}), Level.WARN, "small models"),
    "no memory": (judge_memory(MEMORY | {"available_bytes": 1e8}), Level.FAIL, "100 MB free"),
    "memory that cannot be asked": (
        judge_memory({"total_bytes": None, "available_bytes": None}),
        Level.OK,
        "cannot be asked",
    ),
    "many files": (judge_files({"soft": 4096, "hard": 4096}), Level.OK, "4096"),
    "few files": (judge_files({"soft": 256, "hard": 4096}), Level.WARN, "256 files"),
    "a good tcp": (judge_tcp(TCP), Level.OK, "bbr"),
    "a tcp that is no linux's": (
        judge_tcp({"congestion": None, "available": [], "slow_start_after_idle": False}),
        Level.OK,
        "cannot be asked",
    ),
    "cubic": (judge_tcp(TCP | {"congestion": "cubic"}), Level.WARN, "cubic, which gives way"),
    "slow start after idle": (
        judge_tcp(TCP | {"slow_start_after_idle": True}),
        Level.WARN,
        "starts slowly again",
    ),
    "a public address": (judge_nat(nat("8.8.8.8", "10.0.0.2"), None), Level.OK, "8.8.8.8"),
    "a private address": (
        judge_nat(nat("192.168.1.5", "127.0.0.1"), None),
        Level.WARN,
        "private address 192.168.1.5, no mapping seen: others reach you only through a relay",
    ),
    "a carrier's address": (judge_nat(nat("100.64.3.4"), None), Level.WARN, "the provider's NAT"),
    "loopback alone": (judge_nat(nat("127.0.0.1"), None), Level.WARN, "this machine alone"),
    "no address at all": (judge_nat(nat(), None), Level.WARN, "private address none"),
    "another address for the peer": (
        judge_nat(nat("192.168.1.5"), BACK | {"outcome": "silent", "observed_host": "8.8.4.4"}),
        Level.WARN,
        "192.168.1.5 here, 8.8.4.4 for the peer",
    ),
    "a forwarded port": (
        judge_nat(nat("192.168.1.5"), BACK | {"observed_host": "8.8.4.4"}),
        Level.OK,
        "--announce /ip4/8.8.4.4/tcp/4001",
    ),
    "a dial back that was skipped": (
        judge_nat(nat("192.168.1.5"), {"skipped": True}),
        Level.WARN,
        "private address",
    ),
    "a peer that answers": (
        judge_peer(PEER),
        Level.OK,
        "answers in 83 ms: demoloco 0.1.0, run a72ae8bd",
    ),
    "a peer behind a relay": (judge_peer(PEER | {"relayed": True}), Level.OK, "through a relay"),
    "a peer without a run": (
        judge_peer(PEER | {"run": "", "software": ""}),
        Level.OK,
        "version not told, no run yet",
    ),
    "a peer far away": (judge_peer(PEER | {"rtt_seconds": 0.9}), Level.WARN, "that is slow"),
    "a peer that is away": (
        judge_peer(PEER | {"reached": False, "error": "connection refused"}),
        Level.FAIL,
        "/ip4/203.0.113.7/tcp/1/p2p/x: connection refused",
    ),
    "a port that the peer opens": (judge_dial_back(BACK), Level.OK, "opened port 4001"),
    "a port that swallows": (
        judge_dial_back(BACK | {"outcome": "silent"}),
        Level.WARN,
        "could not open port 4001 of 198.51.100.9: no answer, as behind a firewall",
    ),
    "a port of something else": (
        judge_dial_back(BACK | {"outcome": "stranger"}),
        Level.WARN,
        "something else answers",
    ),
    "a caller behind a relay": (
        judge_dial_back(BACK | {"outcome": "relayed"}),
        Level.WARN,
        "through a relay only",
    ),
    "an old peer": (judge_dial_back(BACK | {"outcome": "old"}), Level.WARN, "dials nobody back"),
    "a peer that will not dial": (
        judge_dial_back(BACK | {"outcome": "none", "error": "busy"}),
        Level.WARN,
        "did not try: busy",
    ),
    "a dial back to nobody": (judge_dial_back({"skipped": True}), Level.WARN, "was not reached"),
    "a good link": (
        judge_link(LINK),
        Level.OK,
        "up 2.5 MB/s (20 Mbit/s), down 12.5 MB/s (100 Mbit/s)",
    ),
    "a thin link": (judge_link(LINK | {"up": 50e3}), Level.WARN, "a packet of 1 MB takes 20.0 s"),
    "a link not measured": (
        judge_link(LINK | {"up": None, "error": "busy"}),
        Level.WARN,
        "not measured: busy",
    ),
    "a link to nobody": (judge_link({"skipped": True}), Level.WARN, "was not reached"),
    "a torch that computes": (judge_torch(TORCH), Level.OK, "torch 2.13.0+cpu on cpu (2 threads)"),
    "a torch that cannot be imported": (
        judge_torch({"error": "ImportError: libcudnn.so.9"}),
        Level.FAIL,
        "libcudnn",
    ),
    "a torch that computes wrongly": (
        judge_torch(TORCH | {"right": False}),
        Level.FAIL,
        "computes wrongly",
    ),
    "a torch blind to the gpu": (
        judge_torch(TORCH | {"gpu_in_machine": True}),
        Level.WARN,
        "torch is a build for CPUs",
    ),
    "a torch whose driver is wrong": (
        judge_torch(TORCH | {"gpu_in_machine": True, "built_for_gpu": True}),
        Level.WARN,
        "torch does not see it",
    ),
    "packages that fit": (judge_packages(PACKAGES), Level.OK, "1 packages as needed"),
    "a package that is missing": (
        judge_packages(
            PACKAGES | {"packages": [{"name": "torch", "wants": ">=2.6", "found": None}]}
        ),
        Level.FAIL,
        "torch is missing (needs >=2.6)",
    ),
    "a python too new": (
        judge_packages(PACKAGES | {"python": "3.14.0"}),
        Level.FAIL,
        "Python 3.14.0 (needs <3.14,>=3.11)",
    ),
    "a node from source": (
        judge_packages(PACKAGES | {"installed": None}),
        Level.WARN,
        "from its source",
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_the_verdict_follows_from_the_facts(name: str) -> None:
    verdict, level, says = CASES[name]
    assert verdict.level is level
    assert says in verdict.summary


@pytest.mark.parametrize("name", CASES)
def test_what_is_not_well_says_what_to_do(name: str) -> None:
    verdict = CASES[name][0]
    assert bool(verdict.fix) is (verdict.level is not Level.OK)
    assert "\n" not in verdict.summary + verdict.fix


def test_each_check_has_its_own_name_and_verdicts() -> None:
    names = [check.name for check in OWN_CHECKS + PEER_CHECKS]
    assert len(set(names)) == len(names) == 13


@pytest.mark.parametrize(
    ("found", "wants", "fits"),
    [
        ("2.13.0+cpu", ">=2.6", True),
        ("2.5.1", ">=2.6", False),
        ("1.2", "<1.2,>=1.1.12", False),
        ("1.2.0", "==1.2", True),
        ("1.1.12", "<1.2,>=1.1.12", True),
        ("3.9", ">3.9", False),
        ("1.0", "!=1.0.0", False),
        ("anything", "", True),
        ("10.0", ">=9.9", True),
    ],
)
def test_versions_are_compared_as_numbers(found: str, wants: str, fits: bool) -> None:
    assert satisfies(found, wants) is fits


def test_hosts_are_told_apart() -> None:
    hosts = ("127.0.0.1", "::1", "10.1.2.3", "100.64.0.1", "8.8.8.8", "169.254.1.1", "fe80::1", "?")
    assert [kind_of(host) for host in hosts] == [
        "loopback",
        "loopback",
        "private",
        "carrier",
        "public",
        "private",
        "private",
        "private",
    ]


def test_sizes_and_times_are_as_people_read_them() -> None:
    assert [byte_size(one) for one in (999, 1500, 2.5e12)] == ["999 bytes", "1.5 kB", "2.5 TB"]
    assert [span(one) for one in (0.0015, -0.5, 2.14)] == ["1.5 ms", "-500 ms", "2.1 s"]
