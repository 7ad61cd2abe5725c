"""Real daemons on this machine, for benchmarks and tests: started by their console script, watched
over their control sockets, ended by their process ids.

Rule: nothing here waits by sleeping for a fixed time; every wait is for a fact, has a deadline, and
fails at once when the process that should bring the fact about is gone. A world leaves nothing
behind: no directory, and no process whose environment bears the world's mark. At its end each node
is held against the law: learnt = told + owed, in each status of each life.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import psutil

from benchmarks.law import Law
from demoloco_client.sdk import ClientError, NodeClient
from demoloco_proto.v1.control_pb2 import StatusReply

BIN = Path(sys.executable).parent
LISTEN = "/ip4/127.0.0.1/tcp/0"
MARK = "DAEMONS_WORLD"
LEASH = (sys.executable, "-m", "demoloco_client.leash", str(os.getpid()))
"""Nothing outlives this program, also when it is killed: the kernel tells the nodes to leave."""

START_SECONDS = 90.0
ORPHAN_SECONDS = 20.0
LOG_LINES_SHOWN = 30

T = TypeVar("T")


def environment(root: Path, **more: str) -> dict[str, str]:
    """What a daemon sees: nothing of the caller's settings, the world's mark, one thread."""
    kept = {name: text for name, text in os.environ.items() if not name.startswith("DEMOLOCO_")}
    quiet = {"OMP_WAIT_POLICY": "PASSIVE", "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}
    return kept | quiet | {MARK: str(root), "HOME": str(root)} | more


@dataclass(frozen=True)
class Moment:
    """What a node said of itself after a round."""

    round: int
    head: str
    fingerprint: str


class Daemon:
    """One `demoloco-node`, through all its lives in one home."""

    def __init__(self, root: Path, name: str, *, cwd: Path | None = None) -> None:
        self.name = name
        self.root = root
        self.home = root / name
        self.log = root / f"{name}.log"
        self.cwd = cwd or root
        self.program = [str(BIN / "demoloco-node")]
        self.listen = LISTEN
        self.place: Callable[[], AbstractContextManager[None]] = nullcontext
        """Where its process begins: a lab's host, say."""
        self.lives = 0
        self.statuses: list[StatusReply] = []  # of this life
        self.law = Law(name)
        self._process: subprocess.Popen[bytes] | None = None
        self._arguments: tuple[str, ...] = ()
        self._news = threading.Condition()
        self._read_from = 0

    # -- life --------------------------------------------------------------------------------------
    def start(self, *arguments: str) -> Daemon:
        """Begin a life; without arguments the same as the last one."""
        self._arguments = arguments or self._arguments
        self.hold_to_the_law()
        self.lives += 1
        self.statuses = []
        self._read_from = self.log.stat().st_size if self.log.exists() else 0
        command = [*LEASH, *self.program, "--home", str(self.home), "--listen", self.listen]
        with self.log.open("ab") as log, self.place():
            self._process = subprocess.Popen(
                [*command, "--log-format", "json", *self._arguments],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=environment(self.root),
                cwd=self.cwd,
                process_group=0,  # as a shell does for a command
            )
        threading.Thread(target=self._follow, args=(self._process,), daemon=True).start()
        return self

    def start_again(self) -> Daemon:
        """Begin a life as a supervisor does: with nothing but where it lives."""
        self._arguments = ()
        return self.start()

    @property
    def pid(self) -> int:
        assert self._process is not None, f"{self.name} was never started"
        return self._process.pid

    def alive(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def signal(self, number: int) -> None:
        """To the node's process alone."""
        os.kill(self.pid, number)

    def interrupt(self) -> None:
        """Ctrl-C: the terminal signals the whole group."""
        os.killpg(self.pid, signal.SIGINT)

    def exit_code(self, seconds: float) -> int:
        """Wait for the end."""
        assert self._process is not None
        try:
            return self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"{self.name} did not end in {seconds} s\n{self.tail()}") from None

    def family(self) -> list[psutil.Process]:
        """The processes that this node has started, and theirs."""
        return psutil.Process(self.pid).children(recursive=True)

    def kill(self) -> list[psutil.Process]:
        """SIGKILL to the node's process alone; what it had started."""
        family = self.family()
        self.signal(signal.SIGKILL)
        assert self.exit_code(30.0) == -signal.SIGKILL
        return family

    def hold_to_the_law(self) -> None:
        """Once a life, at its end."""
        if self._process is not None:
            self.law.check(tuple(self.statuses), self.facts())

    # -- what it says ------------------------------------------------------------------------------
    def _follow(self, process: subprocess.Popen[bytes]) -> None:
        with NodeClient(self.home) as client:
            while process.poll() is None and process is self._process:
                with suppress(ClientError):
                    for reply in client.watch(0.2):
                        if process is not self._process:
                            return
                        with self._news:
                            self.statuses.append(reply)
                            self._news.notify_all()
                with self._news:  # no socket yet, or no longer
                    self._news.wait(0.05)
        with self._news:
            self._news.notify_all()

    @property
    def status(self) -> StatusReply:
        """The newest word of this life."""
        return self.statuses[-1]

    def newest(self) -> StatusReply | None:
        """The newest word of this life, or None yet."""
        return self.statuses[-1] if self.statuses else None

    def wait_for(
        self, claim: Callable[[StatusReply], bool], seconds: float = START_SECONDS
    ) -> StatusReply:
        """The first status from now on, the newest included, for which the claim holds."""
        end = time.monotonic() + seconds
        at = max(0, len(self.statuses) - 1)
        while True:
            with self._news:
                if at == len(self.statuses):
                    self._news.wait(0.2)
            while at < len(self.statuses):
                if claim(self.statuses[at]):
                    return self.statuses[at]
                at += 1
            if not self.alive():
                raise AssertionError(f"{self.name} ended: {self.exit_code(1)}\n{self.tail()}")
            if time.monotonic() > end:
                raise AssertionError(f"{self.name}: not in {seconds:.0f} s\n{self.tail()}")

    def wait_for_round(self, number: int, seconds: float = START_SECONDS) -> StatusReply:
        return self.wait_for(lambda status: status.round >= number, seconds)

    def ready(self, seconds: float = START_SECONDS) -> StatusReply:
        """Wait for the node's first word."""
        return self.wait_for(lambda status: bool(status.addresses), seconds)

    @property
    def address(self) -> str:
        """Where others join."""
        return self.ready().addresses[0]

    def moments(self) -> set[Moment]:
        """Each round, head and fingerprint that this life showed; without what was undone later."""
        seen = {
            Moment(status.round, status.head, status.fingerprint)
            for status in tuple(self.statuses)
            if status.head
        }
        chain = self.chain()
        return {
            moment
            for moment in seen
            if moment.round not in chain or moment.head.startswith(chain[moment.round]["head"])
        }

    def chain(self) -> dict[int, dict[str, Any]]:
        """Round → what this life logged of its manifest; without what was undone later."""
        found: dict[int, dict[str, Any]] = {}
        for facts in self.lines("round committed", "round undone"):
            found.pop(facts["round"], None)
            if facts["event"] == "round committed":
                found[facts["round"]] = facts
        return found

    def evaluations(self) -> list[tuple[int, float]]:
        """(round, held-out loss) in the order in which they came."""
        found = {
            status.eval_round: status.eval_loss
            for status in tuple(self.statuses)
            if status.HasField("eval_loss")
        }
        return sorted(found.items())

    # -- what it wrote -----------------------------------------------------------------------------
    def lines(self, *events: str) -> list[dict[str, Any]]:
        """The facts of each log line of this life about one of these events."""
        return [facts for facts in self.facts() if facts.get("event") in events]

    def said(self, beginning: str) -> list[str]:
        """Each log line of this life that begins so."""
        events = (str(facts.get("event")) for facts in self.facts())
        return [event for event in events if event.startswith(beginning)]

    def facts(self) -> list[dict[str, Any]]:
        """All log lines of this life."""
        with self.log.open("rb") as log:
            log.seek(self._read_from)
            text = log.read().decode(errors="replace")
        found = []
        for line in text.splitlines():
            with suppress(ValueError):
                facts = json.loads(line)
                if isinstance(facts, dict):
                    found.append(facts)
        return found

    def tail(self) -> str:
        """The end of its log, for a failure's message."""
        if not self.log.exists():
            return "(no log)"
        lines = self.log.read_text(errors="replace").splitlines()
        return "\n".join(f"  {self.name} | {line}" for line in lines[-LOG_LINES_SHOWN:])


class World:
    """A place for daemons, and all that runs in it."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.daemons: list[Daemon] = []

    def daemon(self, name: str, *, cwd: Path | None = None) -> Daemon:
        """A node that is not started yet."""
        made = Daemon(self.root, name, cwd=cwd)
        self.daemons.append(made)
        return made

    def run(
        self, *command: str, seconds: float = 60.0, cwd: Path | None = None, **more: str
    ) -> subprocess.CompletedProcess[str]:
        """A command of this project to its end."""
        return subprocess.run(
            [str(BIN / command[0]), *command[1:]],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=seconds,
            env=environment(self.root, **more),
            cwd=cwd or self.root,
        )

    def spawn(self, *command: str, log: Path) -> subprocess.Popen[bytes]:
        """A command of this project that goes on."""
        with log.open("ab") as output:
            return subprocess.Popen(
                [*LEASH, str(BIN / command[0]), *command[1:]],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env=environment(self.root),
                cwd=self.root,
                process_group=0,
            )

    def status_json(self, daemon: Daemon) -> dict[str, Any]:
        """What `demoloco status --json` prints."""
        done = self.run("demoloco", "status", "--home", str(daemon.home), "--json")
        assert done.returncode == 0, f"{done.stderr}\n{daemon.tail()}"
        found: dict[str, Any] = json.loads(done.stdout)
        return found

    def processes(self) -> list[psutil.Process]:
        """All that bear this world's mark."""
        return list(_marked(self.root))

    def close(self) -> None:
        """Kill the nodes that still run; nothing that they had started may outlive them."""
        for daemon in self.daemons:
            if daemon.alive():
                daemon.kill()
        survivors = await_end(self.processes())
        for process in survivors:
            with suppress(psutil.NoSuchProcess):
                process.kill()
        for daemon in self.daemons:
            daemon.hold_to_the_law()
        shutil.rmtree(self.root, ignore_errors=True)
        assert not survivors, f"left behind: {survivors}"
        breaches = [breach for daemon in self.daemons for breach in daemon.law.breaches]
        assert not breaches, f"learnt is not told and owed: {breaches[:8]}"


def await_end(
    processes: Sequence[psutil.Process], seconds: float = ORPHAN_SECONDS
) -> list[psutil.Process]:
    """Those that are still there at the deadline."""
    _, alive = psutil.wait_procs(processes, timeout=seconds)
    return [process for process in alive if _lives(process)]


def _lives(process: psutil.Process) -> bool:
    """A zombie does not: it only waits for its parent, or for the system, to take note."""
    try:
        return bool(process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def until(claim: Callable[[], T | None], seconds: float, what: str) -> T:
    """Look until there is something to see, for facts that nobody tells of."""
    end = time.monotonic() + seconds
    tick = threading.Event()
    while not (found := claim()):
        assert time.monotonic() < end, f"not in {seconds:.0f} s: {what}"
        tick.wait(0.05)
    return found


def together(*nodes: Daemon) -> set[int]:
    """Rounds of these lives that all have applied alike, and that hold a packet of each."""
    chains = [node.chain() for node in nodes]
    return {
        number
        for number in set.intersection(*(set(chain) for chain in chains))
        if len({chain[number]["head"] for chain in chains}) == 1
        and all(chain[number]["mine"] == "in" for chain in chains)
    }


@contextmanager
def world() -> Iterator[World]:
    """A world under a path short enough for Unix sockets."""
    made = World(Path(tempfile.mkdtemp(prefix="world-", dir="/tmp")))
    try:
        yield made
    finally:
        made.close()


def _marked(root: Path) -> Iterator[psutil.Process]:
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            if process.environ().get(MARK) == str(root) and _lives(process):
                yield process


def sets(**values: object) -> list[str]:
    """`--set name=value` for each; `task__depth=1` is task.depth."""
    return [
        word
        for name, value in values.items()
        for word in ("--set", f"{name.replace('__', '.')}={value}")
    ]
