"""What a round costs on the wire: the built-in task at its own size, k and bits, two real nodes.

The second node reaches the first through a tap, which counts the bytes of their only connection,
so that the claim does not rest on the nodes' own counters.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import psutil
import pytest

from benchmarks.daemons import World, sets
from demoloco_proto.v1.control_pb2 import StatusReply
from tests.e2e.tap import Tap, tap

pytestmark = pytest.mark.timeout(300)

ROUNDS = 6
SMALLER = 200
"""A packet is at least this many times smaller than the model in float32."""

SMALLER_IN_ALL = 100
"""…and all that a round puts on the wire: heartbeats, manifests and encryption too."""


@dataclass(frozen=True)
class Readings:
    """The second node's words, and what the wire carried to it from before the first of them until
    after the last."""

    begin: StatusReply
    end: StatusReply
    carried: int
    connections: int

    @property
    def fp32(self) -> int:
        """Bytes of the model: what a round of plain DiLoCo sends."""
        return 4 * self.end.parameters

    @property
    def packets(self) -> int:
        return self.end.packets_received - self.begin.packets_received


@pytest.fixture(scope="module")
def wire() -> Iterator[Tap]:
    with tap() as made:
        yield made


@pytest.fixture(scope="module")
def readings(place: World, wire: Tap) -> Readings:
    announced = f"/ip4/127.0.0.1/tcp/{wire.port}"
    few_steps = sets(inner_steps=10, evaluate_every=0, threads=1, ladder=64)  # so k stays
    one_road = ("--exchange", "libp2p")  # the other is not tapped
    first = place.daemon("first").start("--announce", announced, *one_road, *few_steps)
    first.ready()
    wire.upstream = _port_of(place)
    assert first.status.addresses[0].startswith(announced)
    peers = ("--peers", first.status.addresses[0])
    second = place.daemon("second").start(*peers, *one_road, *sets(threads=1))
    told = second.wait_for(lambda status: status.rounds_contributed >= 1)
    carried = wire.back
    begin = second.wait_for(lambda status: status.packets_received > told.packets_received)
    goal = begin.packets_received + ROUNDS
    end = second.wait_for(lambda status: status.packets_received >= goal, 180.0)
    return Readings(begin, end, wire.back - carried, wire.connections)


def _port_of(place: World) -> int:
    """Where the node's libp2p daemon listens, as the kernel has it."""
    ports = {
        connection.laddr.port
        for process in place.processes()
        for connection in process.net_connections("tcp")
        if connection.status == psutil.CONN_LISTEN
    }
    assert len(ports) == 1, ports
    return ports.pop()


def test_a_packet_is_two_hundred_times_smaller_than_the_model(readings: Readings) -> None:
    status = readings.end
    assert status.task == "lm"
    assert status.parameters > 500_000
    received = status.packet_bytes_received / status.packets_received
    assert readings.fp32 / received >= SMALLER
    assert readings.fp32 / status.packet_bytes >= SMALLER
    assert status.compression == pytest.approx(readings.fp32 / status.packet_bytes)


def test_the_wire_carries_the_packets_and_little_else(readings: Readings) -> None:
    counted = readings.end.packet_bytes_received - readings.begin.packet_bytes_received
    assert readings.connections == 1  # so nothing went by another way
    assert counted <= readings.carried
    assert readings.fp32 * readings.packets / readings.carried >= SMALLER_IN_ALL


def test_the_node_counts_every_byte_that_matters(readings: Readings) -> None:
    """Encryption, framing and libp2p's own words are what the node cannot count."""
    counted = readings.end.bytes_received - readings.begin.bytes_received
    assert readings.end.packet_bytes_received < readings.end.bytes_received
    assert 0.5 * readings.carried < counted <= readings.carried
