"""A network around real daemons that can be cut: for benchmarks and tests.

Rule: where root allows it, each daemon has a network namespace and a cable to one bridge, and a cut
cable swallows what is sent, as a broken router does. Elsewhere all listen on loopback, and a cut
stops the daemon's p2pd; the daemon itself then brings a new one after half a minute. Nothing is
left behind.
"""

from __future__ import annotations

import itertools
import os
import shutil
import signal
import subprocess
import sys
from contextlib import suppress
from typing import Protocol

import psutil

from benchmarks.daemons import BIN, Daemon, until

HOLDER = (
    "import socket, sys, time; s = socket.socket();"
    " s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)\n"
    "while True:\n"
    "    try: s.bind((sys.argv[1], int(sys.argv[2]))); break\n"
    "    except OSError: time.sleep(0.05)\n"
    "s.listen(); print('held', flush=True); sys.stdin.read()\n"
)


_NUMBERS = itertools.count()


class Network(Protocol):
    """What the one who cuts needs of it."""

    def join(self, daemon: Daemon, *program: str) -> None:
        """From its next life on the daemon runs this program in here."""
        ...

    def cut(self, daemon: Daemon) -> None:
        """It and all others do not reach each other any longer."""
        ...

    def mend(self, daemon: Daemon) -> None: ...

    def hold_port(self, daemon: Daemon, address: str) -> subprocess.Popen[bytes]:
        """Somebody else listens where this daemon did; ends with its standard input."""
        ...

    def close(self) -> None: ...


def make_network() -> Network:
    """The better one of the two that can be had."""
    if os.geteuid() == 0 and shutil.which("ip"):
        made = NamespaceNetwork()
        if made.works:
            return made
    return LoopbackNetwork()


class NamespaceNetwork:
    def __init__(self) -> None:
        self._mark = f"dml{os.getpid()}n{next(_NUMBERS)}"
        self._hub = f"{self._mark}hub"
        self._spaces: dict[str, str] = {}
        self.works = self._lay()

    def _lay(self) -> bool:
        try:
            _ip("netns", "add", self._hub)
            _ip("-n", self._hub, "link", "add", "name", "bridge0", "type", "bridge")
            _ip("-n", self._hub, "link", "set", "bridge0", "up")
        except subprocess.CalledProcessError:
            self.close()
            return False
        return True

    def join(self, daemon: Daemon, *program: str) -> None:
        space = self._spaces.get(daemon.name) or self._plug_in(daemon.name)
        number = list(self._spaces).index(daemon.name) + 1
        daemon.listen = f"/ip4/10.99.7.{number}/tcp/0"
        daemon.program = [*_into(space), *(program or (str(BIN / "demoloco-node"),))]

    def _plug_in(self, name: str) -> str:
        space = f"{self._mark}{name}"
        _ip("netns", "add", space)
        self._spaces[name] = space
        end = ("netns", space, "type", "veth", "peer", "name", name, "netns", self._hub)
        _ip("link", "add", "name", "cable", *end)
        for device in ("lo", "cable"):
            _ip("-n", space, "link", "set", device, "up")
        _ip("-n", space, "address", "add", f"10.99.7.{len(self._spaces)}/24", "dev", "cable")
        _ip("-n", self._hub, "link", "set", name, "master", "bridge0", "up")
        return space

    def cut(self, daemon: Daemon) -> None:
        _ip("-n", self._hub, "link", "set", daemon.name, "nomaster")

    def mend(self, daemon: Daemon) -> None:
        _ip("-n", self._hub, "link", "set", daemon.name, "master", "bridge0")

    def hold_port(self, daemon: Daemon, address: str) -> subprocess.Popen[bytes]:
        return _holder(_into(self._spaces[daemon.name]), address)

    def close(self) -> None:
        for space in (*self._spaces.values(), self._hub):
            with suppress(subprocess.CalledProcessError):
                _ip("netns", "del", space)


class LoopbackNetwork:
    def __init__(self) -> None:
        self._stopped: dict[str, psutil.Process] = {}

    def join(self, daemon: Daemon, *program: str) -> None:
        daemon.program = list(program or (str(BIN / "demoloco-node"),))

    def cut(self, daemon: Daemon) -> None:
        self._stopped[daemon.name] = p2pd_of(daemon)
        self._stopped[daemon.name].send_signal(signal.SIGSTOP)

    def mend(self, daemon: Daemon) -> None:
        with suppress(psutil.NoSuchProcess):
            self._stopped.pop(daemon.name).send_signal(signal.SIGCONT)

    def hold_port(self, daemon: Daemon, address: str) -> subprocess.Popen[bytes]:
        return _holder((), address)

    def close(self) -> None:
        for process in self._stopped.values():
            with suppress(psutil.NoSuchProcess):
                process.send_signal(signal.SIGCONT)


def p2pd_of(daemon: Daemon) -> psutil.Process:
    """The process under the daemon that is its libp2p."""
    found = until(
        lambda: [process for process in daemon.family() if process.name() == "p2pd"],
        20.0,
        f"{daemon.name} has a p2pd",
    )
    return found[0]


def _into(space: str) -> tuple[str, ...]:
    return ("ip", "netns", "exec", space)


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True, timeout=30)


def _holder(prefix: tuple[str, ...], address: str) -> subprocess.Popen[bytes]:
    parts = address.split("/")
    made = subprocess.Popen(
        [*prefix, sys.executable, "-c", HOLDER, parts[2], parts[4]],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert made.stdout is not None
    assert made.stdout.readline() == b"held\n"
    return made
