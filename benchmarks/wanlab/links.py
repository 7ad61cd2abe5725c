"""The parts of the network: a link with its queue, a host's port, the path between two ports.

Rule: a link's departures follow from when a packet *should* have left, so a router that is woken
late does not make a busy link slower.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from benchmarks.wanlab.packet import Packet
from benchmarks.wanlab.units import INFINITE

SLICE_SECONDS = 0.0005  # segments that a link sends within this time may travel together
JITTER_SECONDS = 0.020  # how long a drawn jitter holds
MIN_QUEUE_PACKETS = 20  # what a queue that is given as a time holds at least

Handler = Callable[[Packet, float], None]


class Calendar(Protocol):
    """What a link needs of the router."""

    def schedule(self, when: float, handler: Handler, packet: Packet) -> None: ...


class Link:
    """One direction of a host's access link: first in, first out, at `rate` bytes a second."""

    __slots__ = (
        "bytes",
        "calendar",
        "forward",
        "limit",
        "packets",
        "queue",
        "queue_drops",
        "queued",
        "rate",
    )

    def __init__(self, calendar: Calendar, forward: Handler) -> None:
        self.calendar, self.forward = calendar, forward
        self.rate = self.limit = INFINITE
        self.queue: deque[Packet] = deque()
        self.queued = self.packets = self.bytes = self.queue_drops = 0

    def configure(self, bits_per_second: float, queue: Mapping[str, float], mtu: int) -> None:
        self.rate = bits_per_second / 8
        if "bytes" in queue:
            self.limit = queue["bytes"]
        else:
            self.limit = max(queue["seconds"] * self.rate, MIN_QUEUE_PACKETS * mtu)

    def offer(self, packet: Packet, now: float) -> None:
        if self.rate == INFINITE and not self.queue:
            self._depart(packet, now)
            return
        together = int(min(self.rate * SLICE_SECONDS / packet.mss, packet.segments))
        together = max(1, together)
        for first in range(0, packet.segments, together):
            self._enqueue(packet.cut(first, min(together, packet.segments - first)), now)

    def _enqueue(self, packet: Packet, now: float) -> None:
        if self.queued + packet.size > self.limit:
            fitting = int((self.limit - self.queued) // (packet.mss + packet.header))
            fitting = min(max(fitting, 0), packet.segments - 1)
            self.queue_drops += packet.segments - fitting
            if fitting == 0:
                return
            packet = packet.cut(0, fitting)
        self.queue.append(packet)
        self.queued += packet.size
        if len(self.queue) == 1:
            self.calendar.schedule(now + packet.size / self.rate, self._sent, packet)

    def _sent(self, packet: Packet, now: float) -> None:
        self.queue.popleft()
        self.queued -= packet.size
        if self.queue:
            following = self.queue[0]
            self.calendar.schedule(now + following.size / self.rate, self._sent, following)
        self._depart(packet, now)

    def _depart(self, packet: Packet, now: float) -> None:
        self.packets += packet.segments
        self.bytes += packet.size
        self.forward(packet, now)

    def stats(self) -> dict[str, int]:
        return {
            "packets": self.packets,
            "bytes": self.bytes,
            "queue_drops": self.queue_drops,
            "queued": self.queued,
        }


class Port:
    """A host, as the router sees it."""

    def __init__(self, name: str, tun: int, namespace: int, chance: random.Random) -> None:
        self.name, self.tun, self.namespace = name, tun, namespace
        self.up: Link
        self.down: Link
        self.settings: dict[str, Any] = {}
        self.unroutable = self.write_errors = 0
        self._chance = chance
        self._jitter = self._jitter_until = 0.0

    def configure(self, changes: Mapping[str, Any], mtu: int) -> None:
        self.settings.update(changes)
        self.up.configure(self.settings["up"], self.settings["queue"], mtu)
        self.down.configure(self.settings["down"], self.settings["queue"], mtu)
        self._jitter_until = 0.0

    def jitter(self, now: float) -> float:
        if now >= self._jitter_until:
            self._jitter = self._chance.random() * self.settings["jitter"]
            self._jitter_until = now + JITTER_SECONDS
        return self._jitter


class Path:
    """What lies between the access links of two hosts, in one direction."""

    __slots__ = (
        "blocked",
        "bytes",
        "cut_off",
        "delay",
        "extra_delay",
        "extra_loss",
        "last_arrival",
        "loss",
        "lost",
    )

    def __init__(self) -> None:
        self.extra_delay = self.extra_loss = 0.0  # of this pair
        self.delay = self.loss = 0.0  # in all, with both access links
        self.blocked = False
        self.last_arrival = 0.0
        self.bytes = self.lost = self.cut_off = 0

    def refresh(self, src: Mapping[str, Any], dst: Mapping[str, Any]) -> None:
        self.delay = src["delay"] + dst["delay"] + self.extra_delay
        self.loss = 1 - (1 - src["loss"]) * (1 - dst["loss"]) * (1 - self.extra_loss)

    def stats(self) -> dict[str, int]:
        return {"bytes": self.bytes, "lost": self.lost, "cut_off": self.cut_off}
