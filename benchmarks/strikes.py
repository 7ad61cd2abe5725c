"""Carries out a schedule of faults on real daemons, and mends what it broke.

Rule: nothing here waits, but for the end of what was just killed; `tick` does what is due. Call it
from the thread that started the daemons: they are tied to it.
"""

from __future__ import annotations

import signal
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress

import psutil

from benchmarks.cables import Network
from benchmarks.daemons import Daemon
from benchmarks.faults import Fault, Kind
from benchmarks.leaks import is_worker
from benchmarks.records import Course, Outage, Stroke

GAVE_UP_SECONDS = 3.0
"""A supervisor starts a node that ended by itself again after this pause."""


class Striker:
    """Breaks and mends the nodes of one course."""

    def __init__(self, daemons: Sequence[Daemon], network: Network, course: Course) -> None:
        self._daemons = daemons
        self._network = network
        self._course = course
        self._began = 0.0
        self._due: deque[Fault] = deque()
        self._mends: list[tuple[float, Callable[[float], None]]] = []
        self._leaving: dict[int, tuple[Stroke, Outage, float]] = {}
        self._down: set[int] = set()
        self.skipped: list[str] = []
        self.gave_up: list[str] = []

    def play(self, faults: Sequence[Fault], began: float) -> None:
        """These are due, counted from that time on."""
        self._began = began
        self._due.extend(faults)

    @property
    def whole(self) -> bool:
        """Nothing is broken, nor will be."""
        return not self._due and not self._mends and not self._leaving

    def tick(self, now: float) -> None:
        """Mend and break what is due."""
        self._watch_leaving(now)
        for one in [one for one in self._mends if one[0] <= now]:
            self._mends.remove(one)
            one[1](now)
        self._watch_ends(now)
        while self._due and self._began + self._due[0].at <= now:
            self._strike(self._due.popleft(), now)

    def _strike(self, fault: Fault, now: float) -> None:
        daemon = self._daemons[fault.node]
        if fault.node in self._down or not daemon.alive():
            self.skipped.append(f"{fault.kind} of {daemon.name}: it is down")
            return
        stroke = Stroke(now, fault.kind, fault.node, daemon.lives)
        match fault.kind:
            case Kind.KILL_NODE:
                self._down.add(fault.node)
                daemon.kill()
                self._revive_after(fault.seconds, stroke, self._out(fault.node, now), now)
            case Kind.LEAVE:
                self._down.add(fault.node)
                daemon.signal(signal.SIGTERM)
                self._leaving[fault.node] = stroke, self._out(fault.node, now), fault.seconds
            case Kind.STOP:
                halted = [psutil.Process(daemon.pid), *_children(daemon, Kind.KILL_WORKER)]
                _signal(halted, signal.SIGSTOP)
                self._go_on_after(fault.seconds, stroke, halted, now)
            case Kind.CUT:
                self._network.cut(daemon)
                self._mends.append((now + fault.seconds, lambda at: self._join(stroke, at)))
            case Kind.KILL_WORKER | Kind.KILL_P2PD:
                children = _children(daemon, fault.kind)
                if not children:
                    self.skipped.append(f"{fault.kind} of {daemon.name}: there is none")
                    return
                _signal(children, signal.SIGKILL)
        self._course.strokes.append(stroke)

    def _out(self, node: int, now: float) -> Outage:
        outage = Outage(node, now)
        self._course.outages.append(outage)
        return outage

    def _revive_after(self, seconds: float, stroke: Stroke, outage: Outage, now: float) -> None:
        def revive(at: float) -> None:
            self._daemons[stroke.node].start_again()
            self._down.discard(stroke.node)
            stroke.mended = outage.ended = at

        self._mends.append((now + seconds, revive))

    def _go_on_after(
        self, seconds: float, stroke: Stroke, halted: Sequence[psutil.Process], now: float
    ) -> None:
        outage = self._out(stroke.node, now)

        def go_on(at: float) -> None:
            _signal(halted, signal.SIGCONT)
            stroke.mended = outage.ended = at

        self._mends.append((now + seconds, go_on))

    def _join(self, stroke: Stroke, at: float) -> None:
        self._network.mend(self._daemons[stroke.node])
        stroke.mended = at

    def _watch_leaving(self, now: float) -> None:
        for node, (stroke, outage, seconds) in tuple(self._leaving.items()):
            daemon = self._daemons[node]
            if not daemon.alive():
                if code := daemon.exit_code(1.0):
                    self.gave_up.append(f"{daemon.name} left with code {code}\n{daemon.tail()}")
                del self._leaving[node]
                self._revive_after(seconds, stroke, outage, now)

    def _watch_ends(self, now: float) -> None:
        """A node that ended though nobody told it to: a failure, and its time counts as healthy."""
        for node, daemon in enumerate(self._daemons):
            if node not in self._down and not daemon.alive():
                code = daemon.exit_code(1.0)
                self.gave_up.append(f"{daemon.name} ended with code {code}\n{daemon.tail()}")
                self._down.add(node)
                nothing = Outage(node, now)
                stroke = Stroke(now, Kind.KILL_NODE, node, daemon.lives)
                self._revive_after(GAVE_UP_SECONDS, stroke, nothing, now)


def _children(daemon: Daemon, kind: Kind) -> list[psutil.Process]:
    """Its worker or its p2pd, if it has one now."""
    with suppress(psutil.Error):
        family = daemon.family()
        if kind is Kind.KILL_WORKER:
            return [process for process in family if is_worker(process)]
        return [process for process in family if process.name() == "p2pd"]
    return []


def _signal(processes: Sequence[psutil.Process], number: int) -> None:
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            process.send_signal(number)
