"""Hosts joined by an emulated wide-area network, as a program or a test uses them.

Each host is a network namespace with one interface, `wan0`; a router process of ours plays the
internet between them. Nothing can leave: no namespace has a route to anywhere else. A link has

    up, down   the access link's rate in IP bytes, headers included ("20mbit", None: no limit)
    queue      what may wait before each direction, as a time at the link's rate or as a size;
               what does not fit is dropped, so TCP meets real queues and real drops (100ms)
    delay      one way, crossed by all that the host sends or receives: the round trip between
               a and b takes 2 x (delay of a + delay of b)
    jitter     0 … jitter more, drawn anew every 20 ms; nothing is reordered
    loss       of a packet on this access link, in either direction; those of a and b add up

all of which can be changed while programs run. `partition` and `heal` cut and join sets of hosts.

    with Lab({"a": {"up": "20mbit", "delay": "15ms"}, "b": {}}) as lab:
        node = lab.popen("a", ["demoloco-node", "--listen", "/ip4/{ip}/tcp/0"])
        lab.set_link("a", up="2mbit", loss="1%")
        with lab.inside("b"):                  # this thread's new sockets are b's
            sock = socket.create_connection((lab.ip("a"), 8000))
        print(lab.stats()["hosts"]["a"]["up"]["bytes"])

Rule: a lab leaves nothing behind. Namespaces and devices are held by descriptors only, and the
router ends every process in them when the lab closes or its owner dies, in whatever way.
"""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from benchmarks.wanlab import kernel, units
from benchmarks.wanlab.units import LabError

SUBNET = "10.77.0"  # .1, .2, … in the order in which the hosts are named
MAX_ANSWER = 1 << 22
ROOT = Path(__file__).resolve().parents[2]
ROUTER = (
    "import sys; sys.path.insert(0, sys.argv[1]); from benchmarks.wanlab.router import main;"
    " main(int(sys.argv[2]), int(sys.argv[3]))"
)

Settings = Mapping[str, Any]


def why_unavailable() -> str | None:
    """None where a lab can be made, else the reason."""
    if not sys.platform.startswith("linux"):
        return "network namespaces are Linux's alone"
    if os.geteuid() != 0:
        return "only root can make network namespaces"
    if not os.path.exists("/dev/net/tun"):
        return "there is no /dev/net/tun"
    return None


class Lab:
    """See the module's text.

    `hosts` names them, or maps each name to its link; `defaults` holds for what a link does not
    say; `paths` are arguments of `set_path`; `seed` makes losses and jitter repeatable as far as
    timing is. TCP is cubic unless told otherwise, for that is what most homes have.
    Raises: LabError when a setting makes no sense.
    """

    def __init__(
        self,
        hosts: Iterable[str] | Mapping[str, Settings],
        *,
        defaults: Settings | None = None,
        paths: Iterable[Mapping[str, Any]] = (),
        congestion_control: str = "cubic",
        mtu: int = 1500,
        seed: int | None = None,
    ) -> None:
        named = dict(hosts) if isinstance(hosts, Mapping) else {name: {} for name in hosts}
        if not 1 <= len(named) <= 254:
            raise LabError("a lab has 1 to 254 hosts")
        usual = {**units.DEFAULTS, **(defaults or {})}
        self._links = {name: units.link({**usual, **own}) for name, own in named.items()}
        self._ips = {name: f"{SUBNET}.{number}" for number, name in enumerate(named, start=1)}
        self._paths = [self._path(**path) for path in paths]
        self._options = {"congestion_control": congestion_control, "mtu": mtu, "seed": seed}
        self._lock = threading.Lock()
        self._namespaces: dict[str, int] = {}
        self._processes: list[subprocess.Popen[Any]] = []
        self._router: subprocess.Popen[bytes] | None = None
        self._control: socket.socket | None = None
        self._owner = 0

    @classmethod
    def from_topology(cls, topology: Mapping[str, Any]) -> Lab:
        """From what a topology file holds; its `events` are left to the caller."""
        options = {name: value for name, value in topology.items() if name != "events"}
        return cls(options.pop("hosts"), **options)

    # -- life --------------------------------------------------------------------------------------
    def start(self) -> Lab:
        if reason := why_unavailable():
            raise LabError(reason)
        self._owner = os.getpid()
        control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        words = (ROOT, theirs.fileno(), self._owner)
        router = subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", ROUTER, *map(str, words)],
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
            start_new_session=True,  # Ctrl-C is for the owner, who then closes the lab
        )
        theirs.close()
        hosts = [
            {"name": name, "ip": self._ips[name], "link": link}
            for name, link in self._links.items()
        ]
        control.send(json.dumps({**self._options, "hosts": hosts}).encode())
        message, descriptors, _, _ = socket.recv_fds(control, 1 << 16, len(hosts))
        answer = json.loads(message) if message else {"error": "the router ended at once"}
        if "error" in answer:
            control.close()
            router.wait()
            raise LabError(f"cannot set up the lab: {answer['error']}")
        for descriptor in descriptors:
            os.set_inheritable(descriptor, False)
        self._namespaces = dict(zip(self._links, descriptors, strict=True))
        self._router, self._control = router, control
        for path in self._paths:
            self._ask("set_path", **path)
        return self

    def close(self, grace_seconds: float = 2.0) -> None:
        """End every process on the hosts, with SIGKILL after the grace time; then the lab."""
        if self._router is None or self._control is None or os.getpid() != self._owner:
            return  # closed, or a forked child, which has no say
        inodes = [kernel.inode(namespace) for namespace in self._namespaces.values()]
        try:
            self._ask("close", grace_seconds=grace_seconds)
        except LabError:  # the router is dead: its work is ours
            kernel.end_processes_in(inodes, grace_seconds, spare=(os.getpid(),))
        self._router.wait()
        self._control.close()
        self._router = self._control = None
        for process in self._processes:
            with suppress(subprocess.TimeoutExpired):
                process.wait(timeout=5)
            for pipe in (process.stdin, process.stdout, process.stderr):
                if pipe is not None:
                    pipe.close()
        self._processes = []
        for namespace in self._namespaces.values():
            os.close(namespace)
        self._namespaces = {}

    def __enter__(self) -> Lab:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def router_pid(self) -> int:
        assert self._router is not None, "the lab is not running"
        return self._router.pid

    def _ask(self, operation: str, **arguments: Any) -> Any:
        if self._control is None:
            raise LabError("the lab is not running")
        with self._lock:
            try:
                self._control.send(json.dumps({"do": operation, **arguments}).encode())
                message = self._control.recv(MAX_ANSWER)
            except OSError as error:
                raise LabError(f"the router has died: {error}") from error
        if not message:
            raise LabError("the router has died")
        answer = json.loads(message)
        if "error" in answer:
            raise LabError(answer["error"])
        return answer.get("result")

    # -- hosts -------------------------------------------------------------------------------------
    @property
    def hosts(self) -> list[str]:
        return list(self._ips)

    def ip(self, host: str) -> str:
        return self._ips[self._known(host)]

    def _known(self, host: str) -> str:
        if host not in self._ips:
            raise LabError(f"there is no host {host!r}, but {', '.join(self._ips)}")
        return host

    @contextmanager
    def inside(self, host: str) -> Iterator[None]:
        """The calling thread is on the host: the sockets and processes that it makes are there.

        They stay there afterwards. No `await` and no `yield` in here: the whole thread has moved.
        """
        self._known(host)
        if host not in self._namespaces:
            raise LabError("the lab is not running")
        home = kernel.current_namespace()
        try:
            kernel.enter_namespace(self._namespaces[host])
            try:
                yield
            finally:
                kernel.enter_namespace(home)
        finally:
            os.close(home)

    def expand(self, word: str, host: str) -> str:
        """{host}, {ip}, {index} and {ip.OTHER} in a command; other braces are left alone."""
        values = {"host": host, "ip": self.ip(host), "index": str(self.hosts.index(host))}
        values |= {f"ip.{name}": ip for name, ip in self._ips.items()}
        return re.sub(r"\{([\w.-]+)\}", lambda match: values.get(match[1], match[0]), word)

    def popen(self, host: str, command: Sequence[object], **options: Any) -> subprocess.Popen[Any]:
        """subprocess.Popen on a host, in a session of its own; it ends with the lab at the latest.

        Its environment has WANLAB_HOST and WANLAB_IP.
        """
        given = os.environ if options.get("env") is None else options["env"]
        options["env"] = {**given, "WANLAB_HOST": host, "WANLAB_IP": self.ip(host)}
        options.setdefault("start_new_session", True)
        with self.inside(host):
            words = [self.expand(str(word), host) for word in command]
            process = subprocess.Popen(words, **options)
        self._processes.append(process)
        return process

    def run(
        self,
        host: str,
        command: Sequence[object],
        *,
        timeout: float | None = None,
        check: bool = False,
        **options: Any,
    ) -> subprocess.CompletedProcess[Any]:
        """subprocess.run on a host; its output is text unless told otherwise."""
        options = {"stdout": subprocess.PIPE, "text": True} | options
        process = self.popen(host, command, **options)
        try:
            output, errors = process.communicate(timeout=timeout)
        except BaseException:
            process.kill()
            process.wait()
            raise
        done = subprocess.CompletedProcess(process.args, process.returncode, output, errors)
        if check:
            done.check_returncode()
        return done

    def pids(self, host: str) -> list[int]:
        """The processes on a host, whoever started them."""
        return kernel.processes_in(
            [kernel.inode(self._namespaces[self._known(host)])], spare=(os.getpid(),)
        )

    # -- the network -------------------------------------------------------------------------------
    def set_link(self, host: str, **changes: Any) -> None:
        """Other settings for a host's link, from the next packet on."""
        self._ask("set_link", host=self._known(host), link=units.link(changes))

    def set_path(
        self, a: str, b: str, *, delay: str | float = 0.0, loss: str | float = 0.0
    ) -> None:
        """Delay (one way) and loss between two hosts, in both directions, beside their links'."""
        self._ask("set_path", **self._path([a, b], delay, loss))

    def _path(
        self, between: Sequence[str], delay: str | float = 0.0, loss: str | float = 0.0
    ) -> dict[str, Any]:
        if len({self._known(host) for host in between}) != 2:
            raise LabError("a path is between two hosts")
        return {
            "between": list(between),
            "delay": units.seconds(delay),
            "loss": units.probability(loss),
        }

    def partition(
        self, ones: str | Iterable[str], others: str | Iterable[str], *, one_way: bool = False
    ) -> None:
        """Nothing passes from `ones` to `others`, nor back unless `one_way`; also what is on its
        way."""
        self._ask("block", pairs=self._pairs(ones, others, one_way), blocked=True)

    def isolate(self, host: str) -> None:
        """Cut one off from all."""
        self.partition(host, set(self.hosts) - {host})

    def heal(
        self, ones: str | Iterable[str] | None = None, others: str | Iterable[str] | None = None
    ) -> None:
        """Undo every partition, or what keeps `ones` from `others`."""
        pairs = self._pairs(
            self.hosts if ones is None else ones, self.hosts if others is None else others, False
        )
        self._ask("block", pairs=pairs, blocked=False)

    def _pairs(
        self, ones: str | Iterable[str], others: str | Iterable[str], one_way: bool
    ) -> list[list[str]]:
        here, there = (
            [names] if isinstance(names, str) else list(names) for names in (ones, others)
        )
        pairs = [[self._known(a), self._known(b)] for a in here for b in there if a != b]
        return pairs if one_way else pairs + [[b, a] for a, b in pairs]

    def stats(self) -> dict[str, Any]:
        """Counters since the start.

        hosts[h]["up" | "down"]: packets and bytes that passed (a lost packet has passed the uplink,
        and never the downlink), queue_drops, queued now. hosts[h]["overrun"]: what the router was
        too slow for; above 0, or with many router["late_events"], the machine was too busy for the
        measurement to mean much. paths[a][b]: bytes delivered, packets lost by chance, cut_off by
        a partition.
        """
        found: dict[str, Any] = self._ask("stats")
        return found
