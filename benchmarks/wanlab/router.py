"""The router: a discrete-event simulation of the network that runs in real time.

Rule: it runs in a process of its own, and outlives its owner for as long as it takes to end what
is left in the lab's namespaces. What it imports is Python's library alone.

    host a                            router                                    host b
    wan0 -> uplink of a -> (loss, delay and jitter, partitions) -> downlink of b -> wan0
            rate, queue                                            rate, queue
"""

from __future__ import annotations

import gc
import heapq
import itertools
import json
import os
import random
import select
import signal
import socket
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

from benchmarks.wanlab import kernel
from benchmarks.wanlab.links import Handler, Link, Path, Port
from benchmarks.wanlab.packet import DESTINATION, MAX_READ, Packet

TICK_SECONDS = 0.0001  # what is this close is handled together; sleeping is no finer
LATE_SECONDS = 0.005  # an event that is handled this much too late is counted
READ_BURST = 64
MAX_REQUEST = 1 << 20


class Router:
    """Moves packets between ports, and answers requests until its owner has gone."""

    def __init__(self, control: socket.socket, owner: int) -> None:
        self._control, self._owner = control, owner
        self._events: list[tuple[float, int, Handler, Packet]] = []
        self._serial = itertools.count()
        self._by_address: dict[bytes, Port] = {}
        self._paths: dict[tuple[Port, Port], Path] = {}
        self._chance = random.Random()
        self._mtu = 0
        self._handled = self._late = 0
        self._most_late = 0.0
        self._started = time.monotonic()
        self.ports: list[Port] = []

    # -- what its owner asks for -------------------------------------------------------------------
    def set_up(self, request: Mapping[str, Any]) -> None:
        self._chance.seed(request["seed"])
        self._mtu = request["mtu"]
        congestion_control = request["congestion_control"]
        home = kernel.current_namespace()
        kernel.allow_congestion_control(congestion_control)
        try:
            for host in request["hosts"]:
                namespace = kernel.new_namespace()
                tun = kernel.make_interface(host["ip"], self._mtu, congestion_control)
                port = Port(host["name"], tun, namespace, self._chance)
                port.up, port.down = Link(self, self._cross), Link(self, self._deliver)
                port.configure(host["link"], self._mtu)
                self.ports.append(port)
                self._by_address[socket.inet_aton(host["ip"])] = port
        finally:
            kernel.enter_namespace(home)
            os.close(home)
        pairs = itertools.permutations(self.ports, 2)
        self._paths = {pair: Path() for pair in pairs}
        self._refresh()

    def _refresh(self) -> None:
        for (src, dst), path in self._paths.items():
            path.refresh(src.settings, dst.settings)

    def _port(self, name: str) -> Port:
        return next(port for port in self.ports if port.name == name)

    def request_set_link(self, host: str, link: Mapping[str, Any]) -> None:
        self._port(host).configure(link, self._mtu)
        self._refresh()

    def request_set_path(self, between: Sequence[str], delay: float, loss: float) -> None:
        a, b = map(self._port, between)
        for path in (self._paths[a, b], self._paths[b, a]):
            path.extra_delay, path.extra_loss = delay, loss
        self._refresh()

    def request_block(self, pairs: Sequence[Sequence[str]], blocked: bool) -> None:
        for src, dst in pairs:
            self._paths[self._port(src), self._port(dst)].blocked = blocked

    def request_stats(self) -> dict[str, Any]:
        paths: dict[str, dict[str, Any]] = {port.name: {} for port in self.ports}
        for (src, dst), path in self._paths.items():
            paths[src.name][dst.name] = path.stats()
        router = {
            "cpu_seconds": time.process_time(),
            "seconds": time.monotonic() - self._started,
            "events": self._handled,
            "late_events": self._late,
            "most_late_seconds": self._most_late,
        }
        self._most_late = 0.0
        return {"hosts": self._host_stats(), "paths": paths, "router": router}

    def _host_stats(self) -> dict[str, Any]:
        found = {}
        home = kernel.current_namespace()
        for port in self.ports:
            kernel.enter_namespace(port.namespace)
            found[port.name] = {
                "up": port.up.stats(),
                "down": port.down.stats(),
                "unroutable": port.unroutable,
                "write_errors": port.write_errors,
                "overrun": kernel.overrun(),
            }
        kernel.enter_namespace(home)
        os.close(home)
        return found

    def _answer(self) -> bool:
        """One request; False when the router is to end."""
        message = self._control.recv(MAX_REQUEST)
        if not message:
            return False
        request = json.loads(message)
        operation = request.pop("do")
        if operation == "close":
            self.close(request["grace_seconds"])
            self._control.send(b"{}")
            return False
        try:
            answer = {"result": getattr(self, f"request_{operation}")(**request)}
        except Exception as error:  # whoever asked hears of it; the network goes on
            answer = {"error": f"{type(error).__name__}: {error}"}
        self._control.send(json.dumps(answer).encode())
        return True

    def close(self, grace_seconds: float) -> None:
        inodes = [kernel.inode(port.namespace) for port in self.ports]
        kernel.end_processes_in(inodes, grace_seconds, spare=(os.getpid(), self._owner))

    # -- the way of a packet -----------------------------------------------------------------------
    def schedule(self, when: float, handler: Handler, packet: Packet) -> None:
        heapq.heappush(self._events, (when, next(self._serial), handler, packet))

    def _fetch(self, port: Port, now: float) -> None:
        """First: what the host has sent goes onto its uplink."""
        for _ in range(READ_BURST):
            try:
                data = os.read(port.tun, MAX_READ)
            except BlockingIOError:
                return
            target = self._by_address.get(data[DESTINATION])
            if target is None or target is port:
                port.unroutable += 1  # multicast, say
            else:
                port.up.offer(Packet(data, port, target), now)

    def _cross(self, packet: Packet, now: float) -> None:
        """Second: it has left the uplink, and is lost or on its way for a while."""
        path = self._paths[packet.src, packet.dst]
        if path.blocked:
            path.cut_off += packet.segments
            return
        arrival = now + path.delay + packet.src.jitter(now) + packet.dst.jitter(now)
        path.last_arrival = arrival = max(arrival, path.last_arrival)  # nothing overtakes
        for survivor in self._survivors(packet, path) if path.loss else (packet,):
            self.schedule(arrival, self._arrive, survivor)

    def _survivors(self, packet: Packet, path: Path) -> Iterator[Packet]:
        """Each segment has a fate of its own; what lies between lost ones stays together."""
        first = 0
        for at in range(packet.segments):
            if self._chance.random() < path.loss:
                path.lost += 1
                if at > first:
                    yield packet.cut(first, at - first)
                first = at + 1
        if first < packet.segments:
            yield packet.cut(first, packet.segments - first)

    def _arrive(self, packet: Packet, now: float) -> None:
        """Third: it stands before the receiver's downlink."""
        path = self._paths[packet.src, packet.dst]
        if path.blocked:
            path.cut_off += packet.segments
        else:
            packet.dst.down.offer(packet, now)

    def _deliver(self, packet: Packet, now: float) -> None:
        """Last: it has left the downlink."""
        try:
            os.write(packet.dst.tun, packet.data)
            self._paths[packet.src, packet.dst].bytes += packet.size
        except OSError:
            packet.dst.write_errors += 1

    # -- the loop ----------------------------------------------------------------------------------
    def run(self) -> None:
        owner = os.pidfd_open(self._owner)
        by_descriptor = {port.tun: port for port in self.ports}
        descriptors = [self._control.fileno(), owner, *by_descriptor]
        while True:
            self._handle_what_is_due()
            ready, _, _ = select.select(descriptors, (), (), self._idle_seconds())
            now = time.monotonic()
            for descriptor in ready:
                port = by_descriptor.get(descriptor)
                if port is not None:
                    self._fetch(port, now)
                elif descriptor == owner or not self._answer():
                    return

    def _handle_what_is_due(self) -> None:
        events, now = self._events, time.monotonic()
        while events and events[0][0] <= now + TICK_SECONDS:
            when, _, handler, packet = heapq.heappop(events)
            self._handled += 1
            late = now - when
            if late > LATE_SECONDS:
                self._late += 1
            if late > self._most_late:
                self._most_late = late
            handler(packet, when)

    def _idle_seconds(self) -> float | None:
        if not self._events:
            return None
        return max(0.0, self._events[0][0] - time.monotonic())


def main(descriptor: int, owner: int) -> None:
    """The router process, from its owner's first message to the end."""
    control = socket.socket(fileno=descriptor)
    router = Router(control, owner)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, _leave)
    grace_seconds = 0.5  # better an early end than programs in a network that stands still
    try:
        request = json.loads(control.recv(MAX_REQUEST))
        try:
            router.set_up(request)
        except OSError as error:
            control.send(json.dumps({"error": str(error)}).encode())
            return
        with suppress(OSError):  # without it the router is late when the hosts use all cores
            os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))
        gc.freeze()
        gc.disable()  # nothing here makes cycles
        socket.send_fds(control, [b"{}"], [port.namespace for port in router.ports])
        router.run()
        grace_seconds = 1.0
    except (BrokenPipeError, ConnectionResetError):
        grace_seconds = 1.0
    finally:
        router.close(grace_seconds)


def _leave(*_: object) -> None:
    raise SystemExit(0)
