"""One demoloco-node started by this program: its process, its log, what it says of itself.

Rule: it never outlives this program. It has a process group of its own, so that Ctrl-C in the
terminal reaches this program alone, and the whole group goes when it has to.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path

from demoloco_client.sdk import ClientError, NodeClient
from demoloco_proto.v1.control_pb2 import StatusReply

LOG_NAME = "node.log"
WATCH_SECONDS = 0.5
RETRY_SECONDS = 0.1
HEAR_OUT_SECONDS = 5.0


def node_program() -> list[str]:
    """The command that starts a node with this Python.

    Raises: ClientError if there is none.
    """
    script = Path(sys.executable).with_name("demoloco-node")
    if script.exists():
        return [str(script)]
    if find_spec("demoloco") is not None:
        return [sys.executable, "-m", "demoloco.main"]
    raise ClientError("demoloco-node is not installed here; `pip install demoloco-node`")


def as_typed(program: str) -> str:
    """How a person on this machine types `program`: bare if the shell finds it, else its path."""
    script = Path(sys.executable).with_name(program)
    if shutil.which(program) or not script.exists():
        return program
    here = Path.cwd()
    return str(script.relative_to(here) if script.is_relative_to(here) else script)


class LocalNode:
    """A node as a child process."""

    def __init__(self, name: str, home: Path) -> None:
        self.name = name
        self.home = home
        self.log = home / LOG_NAME
        self.status: StatusReply | None = None
        self._client = NodeClient(home)  # raises ClientError if no socket can be there
        self._process: subprocess.Popen[bytes] | None = None
        self._follower: threading.Thread | None = None
        self._ended = threading.Event()

    def start(self, command: Sequence[str]) -> None:
        """Start the process; its output goes to its log. Call it from the main thread: the leash
        is tied to the thread that forks."""
        self.home.mkdir(parents=True, exist_ok=True)
        leash = [sys.executable, "-m", "demoloco_client.leash", str(os.getpid())]
        environment = {"OMP_WAIT_POLICY": "PASSIVE"} | os.environ
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                [*leash, *command],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=environment,
                process_group=0,
            )

    def follow(self, tell: Callable[[LocalNode, StatusReply], None]) -> None:
        """Tell of each status as long as the process lives, from a thread of its own."""
        self._follower = threading.Thread(target=self._follow, args=(tell,), daemon=True)
        self._follower.start()

    def hear_out(self) -> None:
        """After the process's end: return when all that it said has been told."""
        if self._follower is not None:
            self._follower.join(HEAR_OUT_SECONDS)

    def _follow(self, tell: Callable[[LocalNode, StatusReply], None]) -> None:
        with self._client as client:
            while not self._ended.wait(RETRY_SECONDS):
                # before its socket is there, or after it is gone: not ours to judge
                with suppress(ClientError):
                    for reply in client.watch(WATCH_SECONDS):
                        self.status = reply
                        tell(self, reply)

    @property
    def started(self) -> bool:
        """Whether there ever was a process."""
        return self._process is not None

    def exit_code(self) -> int | None:
        """None while the process lives; negative if a signal ended it."""
        if self._process is None:
            return 0
        code = self._process.poll()
        if code is not None and not self._ended.is_set():
            self._ended.set()
            self._sweep(self._process.pid)
        return code

    def ask_to_leave(self) -> None:
        """SIGTERM to the node alone; it ends its own children."""
        if self._process is not None and self.exit_code() is None:
            self._process.terminate()

    def kill(self) -> None:
        """End the node and whatever it has started, now."""
        if self._process is None or self.exit_code() is not None:
            return
        self._sweep(self._process.pid)
        self._process.wait()
        self._ended.set()

    @staticmethod
    def _sweep(group: int) -> None:
        """Kill what is left of the group. Only before, or at once after, its leader is reaped:
        later the number could be somebody else's."""
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(group, signal.SIGKILL)

    def last_lines(self, count: int) -> list[str]:
        """The end of its log."""
        try:
            with self.log.open(errors="replace") as lines:
                return [line.rstrip("\n") for line in deque(lines, maxlen=count)]
        except OSError:
            return []
