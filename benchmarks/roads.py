"""How fast blobs travel on this machine over each of the two roads: `python -m benchmarks.roads`.

Rule: server and client are processes of their own, the roads take turns within one run, and what
is compared is the median: on loopback nothing but the processors is measured, so the ratio says
which road costs less work, not which one is better on a link.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import statistics
import tempfile
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import aclosing
from pathlib import Path
from time import perf_counter
from typing import Any

import uvloop

from demoloco.swarm.hivemind.p2pd import LOOPBACK
from demoloco.swarm.hivemind.transport import HivemindTransport
from demoloco.swarm.identity import Identity
from demoloco.swarm.links.access import Access
from demoloco.swarm.roads.direct import DirectOffer, decode_direct
from demoloco.swarm.roads.transport import Roads, Wish
from demoloco.swarm.transport import Method
from demoloco.types import Digest, PeerId

PIECE = bytes(256 << 10)
RUN = Digest(bytes(32))
LISTEN = ("/ip4/127.0.0.1/tcp/0",)
Frames = AsyncGenerator[bytes, None]


class Supplier:
    """Sends as many pieces as were asked for."""

    direct: Callable[[PeerId, DirectOffer], bytes] | None = None

    def answer(self, peer: PeerId, method: Method, body: bytes) -> bytes:
        assert method is Method.DIRECT
        assert self.direct is not None
        return self.direct(peer, decode_direct(body)[1])

    def open_stream(self, peer: PeerId, body: bytes) -> Pieces:
        return Pieces(int.from_bytes(body))


class Pieces:
    def __init__(self, count: int) -> None:
        self._count = count

    def frames(self) -> Iterator[bytes]:
        return (PIECE for _ in range(self._count))

    def close(self) -> None:
        pass


async def transports(home: Path) -> tuple[PeerId, HivemindTransport, Roads]:
    """Both roads of one node, started."""
    identity = Identity.load_or_create(home)
    libp2p = HivemindTransport(identity, LISTEN, (), LOOPBACK, Access())
    roads = Roads(identity, libp2p, Wish(exchange="grpc"))
    roads.run = RUN
    await roads.start(Supplier())
    return identity.peer_id, libp2p, roads


def serve(home: Path, told: Any) -> None:
    """The other process: say where it is, serve until told to end."""

    async def main() -> None:
        peer, _, roads = await transports(home)
        told.send((peer, roads.addresses))
        await asyncio.to_thread(told.recv)
        await roads.stop()

    uvloop.run(main())


async def carry(stream: Callable[[bytes], Frames], streams: int, mib: int) -> float:
    """Fetch so much over so many streams at once; bytes a second."""

    async def one() -> int:
        got = 0
        async with aclosing(stream((mib * 4 // streams).to_bytes(8))) as frames:
            async for frame in frames:
                got += len(frame)
        return got

    begun = perf_counter()
    got = sum(await asyncio.gather(*(one() for _ in range(streams))))
    return got / (perf_counter() - begun)


async def measure(
    home: Path, peer: PeerId, addresses: tuple[str, ...], mib: int, times: int
) -> dict[str, float]:
    """The medians, in bytes a second, of each road with one and four streams."""
    _, libp2p, roads = await transports(home)
    await libp2p.connect(peer, addresses, 10.0)
    ways: dict[str, Callable[[bytes], Frames]] = {
        "libp2p": lambda body: libp2p.stream(peer, body, 30.0),
        "grpc": lambda body: roads.stream(peer, body, 30.0),
    }
    rates: dict[str, list[float]] = {f"{way}_{n}": [] for way in ways for n in (1, 4)}
    try:
        for stream in ways.values():
            await carry(stream, 4, 8)
        for _ in range(times):
            for name, found in rates.items():
                way, streams = name.rsplit("_", 1)
                found.append(await carry(ways[way], int(streams), mib))
    finally:
        await roads.stop()
    return {name: statistics.median(found) for name, found in rates.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])  # type: ignore[union-attr]
    parser.add_argument("--json", action="store_true", help="print figures as JSON")
    parser.add_argument("--mib", type=int, default=128, help="MiB of each transfer")
    parser.add_argument("--times", type=int, default=5, help="transfers of each kind")
    arguments = parser.parse_args()
    context = multiprocessing.get_context("spawn")
    mine, theirs = context.Pipe()
    with tempfile.TemporaryDirectory() as home:
        server = context.Process(target=serve, args=(Path(home) / "server", theirs))
        server.start()
        try:
            peer, addresses = mine.recv()
            client = Path(home) / "client"
            rates = uvloop.run(measure(client, peer, addresses, arguments.mib, arguments.times))
        finally:
            mine.send(None)
            server.join()
    figures = {f"ratio_{n}": rates[f"grpc_{n}"] / rates[f"libp2p_{n}"] for n in (1, 4)}
    if arguments.json:
        print(json.dumps({"bytes_a_second": rates, "figures": figures}))
        return
    for name, rate in rates.items():
        road, streams = name.rsplit("_", 1)
        print(f"{road:7} {streams} streams  {rate / 1e6:7.0f} MB/s")
    for name, ratio in figures.items():
        print(f"grpc / libp2p at {name[-1]} streams: {ratio:.2f}")


if __name__ == "__main__":
    main()
