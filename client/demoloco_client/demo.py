"""`demoloco demo`: a real run on this machine, with real nodes, shown as it happens.

Rule: the nodes are ordinary ones, started by their ordinary command line and watched over their
ordinary control sockets. Nothing is left behind: no process ever, no files unless asked.
"""

from __future__ import annotations

import os
import shutil
import signal
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from queue import Empty, SimpleQueue
from shlex import quote
from types import FrameType

from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from demoloco_client import paths, render
from demoloco_client.local_node import LocalNode, as_typed, node_program
from demoloco_client.round_lines import HEADER, JOINING, RoundLine, RoundLines
from demoloco_client.sdk import ClientError
from demoloco_proto.v1.control_pb2 import StatusReply

LISTEN = "/ip4/127.0.0.1/tcp/0"
TICK_SECONDS = 0.2
START_SECONDS = 180.0
LEAVE_SECONDS = 60.0
LOG_LINES_SHOWN = 12
BEFORE_IT_WAS_UP = (-signal.SIGTERM, -signal.SIGINT)
"""How a node ends that must leave before it can obey; SIGINT if its group was not yet its own."""


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What to show."""

    nodes: int = 2
    rounds: int = 0  # that all nodes are in; 0 = until Ctrl-C
    task: str = "lm"
    home: Path | None = None  # None = a fresh one
    keep: bool = False
    settings: tuple[str, ...] = ()  # KEY=VALUE, for the run


def run(plan: Plan, *, program: Sequence[str] | None = None, console: Console | None = None) -> int:
    """Run the demo until it ends or is stopped; the exit code."""
    console = console or Console(highlight=False)
    errors = Console(stderr=True, highlight=False, soft_wrap=True)
    try:
        program = program or node_program()
        home = _home(plan)
        demo = Demo(plan, home, program, console)
    except (ClientError, OSError) as error:
        errors.print(Text(f"demoloco: {error}"))
        return 1
    with demo.obeying_signals():
        failure = demo.run()
    if failure:
        errors.print(Text(f"demoloco: {failure}"))
    if failure or plan.keep or plan.home:
        console.print(Text(f"the nodes' homes and logs are in {home}"), soft_wrap=True)
    else:
        demo.remove_homes()
        console.print(Text(f"removed {home}, as --keep was not given"), soft_wrap=True)
    return 1 if failure else 0


def _home(plan: Plan) -> Path:
    if plan.home is not None:
        home = plan.home.expanduser().absolute()
        home.mkdir(parents=True, exist_ok=True)
        return home
    state = paths.state_home()
    state.mkdir(parents=True, exist_ok=True)
    return Path(tempfile.mkdtemp(prefix="demo-", dir=state))


class Demo:
    """The nodes, and what is heard of them."""

    def __init__(self, plan: Plan, home: Path, program: Sequence[str], console: Console) -> None:
        self._plan = plan
        self._home = home
        self._program = list(program)
        self._console = console
        names = [f"node{number}" for number in range(1, plan.nodes + 1)]
        self._nodes = [LocalNode(name, home / name) for name in names]
        self._heard: SimpleQueue[tuple[LocalNode, StatusReply] | None] = SimpleQueue()
        self._lines = RoundLines(time.monotonic)
        self._last_line: RoundLine | None = None
        self._last_compared: RoundLine | None = None
        self._together = 0  # rounds told that all nodes had reached
        self._left: set[str] = set()
        self._stops = 0
        self._explained = False
        self._leaving = False
        self._failure = ""
        self._live = Live(console=console, auto_refresh=False, transient=True)

    @contextmanager
    def obeying_signals(self) -> Iterator[None]:
        """The first Ctrl-C, SIGTERM or hang-up ends the demo in order, the second at once."""

        def stop(number: int, frame: FrameType | None) -> None:
            self._stops += 1
            self._heard.put(None)  # re-entrant, unlike queue.Queue

        numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
        before = {number: signal.signal(number, stop) for number in numbers}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def run(self) -> str:
        """Start, watch, end; what went wrong, or nothing."""
        try:
            if self._console.is_terminal:
                with self._live:
                    self._play()
            else:
                self._play()
        finally:
            for node in self._nodes:
                node.kill()
        self._sum_up()
        return self._failure

    def remove_homes(self) -> None:
        """Remove what the demo's own nodes wrote, not what joined them from another terminal."""
        for node in self._nodes:
            shutil.rmtree(node.home, ignore_errors=True)
        if not any(self._home.iterdir()):
            self._home.rmdir()

    def _play(self) -> None:
        first, *others = self._nodes
        self._say(f"demoloco: {self._plan.nodes} nodes on this machine, task {self._plan.task}")
        self._start(first, ["--task", self._plan.task, *self._run_settings()])
        if self._pump(lambda: _can_be_joined(first.status), START_SECONDS):
            assert first.status is not None
            address = _local(first.status.addresses)
            for node in others:
                self._start(node, ["--peers", address])
            self._explain(first.status, address)
            self._pump(lambda: self._all_left() or self._had_enough(), None)
        self._leave()

    def _run_settings(self) -> list[str]:
        return [part for setting in self._plan.settings for part in ("--set", setting)]

    def _start(self, node: LocalNode, more: list[str]) -> None:
        threads = max(1, _cores() // self._plan.nodes)
        command = [*self._program, "--home", str(node.home), "--listen", LISTEN]
        command += ["--set", f"threads={threads}", "--log-format", "text", *more]
        self._say(f"starting {node.name}   log {node.log}")
        node.start(command)
        node.follow(lambda node, reply: self._heard.put((node, reply)))

    def _explain(self, first: StatusReply, address: str) -> None:
        another = quote(str(self._home / f"node{self._plan.nodes + 1}"))
        steps = str(first.inner_steps or "as many")
        end = "between two rounds" if first.inner_steps else "as there is time for in each round"
        parameters = render.count(first.parameters)
        self._say(f"{parameters} parameters on {first.device}, {steps} inner steps {end}")
        self._say("")
        join = f"{as_typed('demoloco-node')} --home {another} --peers {address}"
        look = f"{as_typed('demoloco')} status --home {quote(str(self._nodes[0].home))}"
        self._say(f"join from another terminal   {join}")
        self._say(f"look at a node               {look}")
        self._say("stop                         Ctrl-C; once more to stop at once")
        self._say("")
        self._say(HEADER)
        self._explained = True

    def _pump(self, done: Callable[[], bool], patience: float | None) -> bool:
        """Listen until `done`; False if the demo has to end instead."""
        end = None if patience is None else time.monotonic() + patience
        while not done():
            if self._stops or self._failure:
                return False
            if end is not None and time.monotonic() > end:
                self._fail(self._nodes[0], f"did not get ready in {patience:.0f} s")
                return False
            self._tick()
        return not self._failure

    def _tick(self) -> None:
        with suppress(Empty):
            self._hear(self._heard.get(timeout=TICK_SECONDS))
        self._hear_all()
        for node in self._nodes:
            self._notice_end(node)
        if self._explained:
            self._tell_rounds()
        if self._live.is_started:
            self._live.update(self._table(), refresh=True)

    def _hear_all(self) -> None:
        with suppress(Empty):
            while True:
                self._hear(self._heard.get_nowait())

    def _hear(self, heard: tuple[LocalNode, StatusReply] | None) -> None:
        if heard is not None and heard[0].name not in self._left:
            self._lines.hear(heard[0].name, heard[1])

    def _tell_rounds(self) -> None:
        for line in self._lines.take():
            if self._had_enough():  # the nodes go on while they leave
                return
            self._together += line.nodes == self._plan.nodes
            self._last_line = line
            if line.same_state is not None:
                self._last_compared = line
            self._say(line.text())

    def _notice_end(self, node: LocalNode) -> None:
        if not node.started or node.name in self._left:
            return
        code = node.exit_code()
        if code is None:
            return
        node.hear_out()
        self._hear_all()
        self._left.add(node.name)
        self._lines.forget(node.name)
        if code == 0 or (code in BEFORE_IT_WAS_UP and (self._stops or self._leaving)):
            self._say(f"{node.name} has left")
        else:
            how = f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
            self._fail(node, f"died with {how}")

    def _fail(self, node: LocalNode, what: str) -> None:
        if not self._failure:
            self._failure = f"{node.name} {what}; the end of its log is above"
        self._say(f"{node.name} {what}. The end of {node.log}:")
        for line in node.last_lines(LOG_LINES_SHOWN):
            self._say(f"  | {line}")

    def _had_enough(self) -> bool:
        return 0 < self._plan.rounds <= self._together

    def _all_left(self) -> bool:
        return all(node.name in self._left for node in self._nodes if node.started)

    def _leave(self) -> None:
        """One after the other, the last one first, so that somebody is there to hear each."""
        self._leaving = True
        forced = 2 if self._stops else 1
        for node in reversed(self._nodes):
            if not node.started or node.name in self._left:
                continue
            self._say(f"{node.name} leaves…")
            node.ask_to_leave()
            end = time.monotonic() + LEAVE_SECONDS
            while node.name not in self._left and self._stops < forced and time.monotonic() < end:
                self._tick()
            if node.name not in self._left:
                self._left.add(node.name)
                self._failure = self._failure or f"{node.name} was stopped before it had left"
                node.kill()

    def _sum_up(self) -> None:
        line = self._last_line
        if line is None:
            return
        self._say("")
        words = f"{line.round} rounds in {render.duration(line.seconds)}"
        status = self._nodes[0].status
        if status is not None and status.HasField("eval_loss"):
            if status.HasField("eval_loss_first"):
                words += f", held-out loss {status.eval_loss_first:.3f} → {status.eval_loss:.3f}"
            else:
                words += f", held-out loss {status.eval_loss:.3f}"
        if line.packet_bytes:
            share = line.model_bytes / line.packet_bytes
            words += f", packets of {render.size(line.packet_bytes)}, {share:.0f} × less than fp32"
        self._say(words)
        self._compare(self._last_compared)

    def _compare(self, line: RoundLine | None) -> None:
        """A fork heals in later rounds, so only the last comparison tells."""
        if line is None:
            return
        if line.same_state:
            self._say(f"same state on all nodes after round {line.round}: {line.fingerprint[:16]}")
        else:
            self._failure = self._failure or f"the states differ after round {line.round}"

    def _table(self) -> Table:
        table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim", pad_edge=False)
        for title in ("node", "round", "phase", "step", "loss", "samples/s", "sent", "now"):
            table.add_column(title, no_wrap=True, overflow="ellipsis")
        for node in self._nodes:
            table.add_row(*_row(node, node.name in self._left))
        return table

    def _say(self, words: str) -> None:
        self._console.print(render.printable(words), soft_wrap=True)


def _row(node: LocalNode, left: bool) -> list[Text]:
    status = node.status
    if status is None or left:
        state = "left" if left else "starting" if node.started else ""
        cells = [node.name, "", state, "", "", "", "", ""]
    else:
        cells = [
            node.name,
            "" if status.phase == JOINING else str(status.round),
            status.phase,
            render.step(status),
            render.number(status.loss, status, "loss"),
            f"{status.samples_per_second:.1f}",
            render.size(status.bytes_sent),
            status.why,
        ]
    return [render.printable(cell) for cell in cells]


def _can_be_joined(status: StatusReply | None) -> bool:
    return status is not None and bool(status.addresses and status.run_id)


def _local(addresses: Sequence[str]) -> str:
    return next((one for one in addresses if one.startswith("/ip4/127.")), addresses[0])


def _cores() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
