"""The least time that physics and the protocol ask for a round's exchange.

What must happen: each node receives the others' packets of the round, once, and sends its own at
least once; each packet leaves some uplink once for each of the others, as a thin node's is passed
on. So, for packets that are made at different times, the exchange ends no sooner than

    each downlink has carried the other nodes' packets, each from when it was made,
    each uplink has carried its own node's packet, and
    all uplinks together have carried each packet once for each of the other nodes,

and two round trips more: to tell that the packet is there (a half), to ask for it and have its
first byte (one), and to have the manifest, which is made when the last packet has come to whoever
proposes (a half). A packet of n bytes takes n x 1500 / 1448 on the wire: TCP/IP's headers.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from benchmarks.wan.course import Round

WIRE_SHARE = 1500 / 1448
TRIPS = 2.0


def exchange_limit(
    one: Round, links: Mapping[str, Mapping[str, Any]], trip_seconds: float
) -> float:
    """Seconds from the last packet made until the round can be everywhere."""
    start = min(one.made.values())
    packets = {node: (at - start, one.sizes[node] * WIRE_SHARE) for node, at in one.made.items()}
    ends = [
        drained(
            [packet for other, packet in packets.items() if other != node],
            links[node]["down"] / 8,
        )
        for node in packets
    ]
    ends += [drained([packet], links[node]["up"] / 8) for node, packet in packets.items()]
    fan_out = [(at, size * (len(packets) - 1)) for at, size in packets.values()]
    ends.append(drained(fan_out, sum(links[node]["up"] for node in packets) / 8))
    return max(ends) - (one.last_made - start) + TRIPS * trip_seconds


def drained(jobs: Iterable[tuple[float, float]], rate: float) -> float:
    """When a link of `rate` bytes a second has carried all jobs: (from when, bytes)."""
    end = 0.0
    for at, size in sorted(jobs):
        end = max(end, at) + size / rate
    return end
