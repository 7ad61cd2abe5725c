"""Swarms whose members have links of their own: what each carries, and what it says of it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

from demoloco.errors import SwarmError
from demoloco.swarm.memory import MemoryNetwork, MemorySwarm
from demoloco.swarm.port import Link, OffersHeard
from demoloco.swarm.timing import Timing
from demoloco.types import BlobRef, Digest, Head, Member, Offer, PeerId, Phase, Round
from demoloco.wire import digest_of
from tests.contract.swarm_lab import Node, a_run

MBIT = 125_000.0
RUN_HEAD = Round(0)


class LinkedSwarm(MemorySwarm):
    """One that knows what its link carries."""

    measured = Link()

    @property
    def link(self) -> Link:
        return self.measured


class Linked(Node):
    """A node that passes on what it fetched."""

    swarm: LinkedSwarm

    def know(self, network: MemoryNetwork, up: float, down: float) -> None:
        """What its link carries, bytes a second; it has measured that."""
        network.limit(self.peer, up=up, down=down)
        self.swarm.measured = Link(up=up, down=down)

    def speak(self, run: Digest, up: float) -> None:
        self.swarm.say(
            Member(
                peer=self.peer,
                run=run,
                addresses=self.swarm.addresses,
                head=Head(digest=run, round=RUN_HEAD, samples_total=0),
                phase=Phase.TRAINING,
                sequence=1,
                version="0.1",
                up=up,
            )
        )

    async def get(self, offer: Offer, holders: Sequence[PeerId]) -> float:
        """Fetch a packet, as a node does; when it was here."""
        blob = BlobRef(digest=offer.packet, size=offer.size)
        data = await self.swarm.fetch(blob, holders, packet=True, round=offer.round)
        self.shelf.put(data)
        self.swarm.pass_on(offer)
        return asyncio.get_running_loop().time()

    @property
    def told(self) -> list[PeerId]:
        """Who said that it holds something."""
        return [event.holder for event in self.heard if isinstance(event, OffersHeard)]


@asynccontextmanager
async def linked(
    ups: Sequence[float], down: float = 50 * MBIT, **network: Any
) -> AsyncIterator[tuple[MemoryNetwork, list[Linked]]]:
    """Members of one run that have met; each has such an uplink, in bytes a second."""
    between = MemoryNetwork(7, **{"delay": (0.02, 0.05), **network})
    nodes: list[Linked] = []
    try:
        for up in ups:
            seeds = [nodes[0].address] if nodes else []
            node = Linked(LinkedSwarm(between, seeds=seeds, timing=Timing()))
            nodes.append(node)
            node.know(between, up, down)
            await node.swarm.start(node.emit, node.shelf)
            run = a_run(nodes[0])
            node.swarm.enter(run)
            node.speak(run, up)
        for node in nodes:
            while len(node.swarm._standing.roster) < len(nodes) - 1:  # noqa: ASYNC110
                await asyncio.sleep(0.5)
        yield between, nodes
    finally:
        await asyncio.gather(*(node.swarm.stop() for node in nodes), return_exceptions=True)


def offered(owner: Linked, size: int, number: int = 1) -> tuple[Offer, bytes]:
    """A packet of the open round that lies with its contributor."""
    data = bytes([number]) * size
    owner.shelf.put(data)
    offer = Offer(
        packet=digest_of(data),
        contributor=owner.peer,
        round=Round(RUN_HEAD + 1),
        parent=digest_of(b"parent"),
        samples=16,
        size=size,
    )
    return offer, data


async def spread(owner: Linked, others: Sequence[Linked], offer: Offer) -> list[float]:
    """All others hear of the packet and fetch it; when each had it, in seconds from then."""
    began = asyncio.get_running_loop().time()
    await owner.swarm.announce([offer])
    holders = [owner.peer, *(other.peer for other in others)]
    got = [other.get(offer, [peer for peer in holders if peer != other.peer]) for other in others]
    return [at - began for at in await asyncio.gather(*got)]


def copies(node: Linked, offer: Offer) -> float:
    """How many times it sent the packet, counted in bytes."""
    return node.swarm.traffic.blobs_sent / offer.size


async def fails(node: Linked, blob: BlobRef, holders: Sequence[PeerId]) -> str:
    """Why a fetch fails."""
    try:
        await node.swarm.fetch(blob, holders)
    except SwarmError as error:
        return str(error)
    raise AssertionError("it did not fail")
