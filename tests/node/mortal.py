"""A network that carries nothing from or to the dead, and tells of what is told to peers."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from demoloco.swarm.memory import MemoryNetwork, MemoryTransport
from demoloco.swarm.transport import Method
from demoloco.types import PeerId
from tests.points import Homes, Reached, watch_disk, watch_driver


class Mortal(MemoryNetwork):
    """Carries nothing from or to the dead."""

    def __init__(self) -> None:
        super().__init__(1)
        self.dead: set[PeerId] = set()
        self.heard_by: dict[PeerId, Reached] = {}

    def apart(self, one: PeerId, other: PeerId) -> bool:
        return one in self.dead or other in self.dead or super().apart(one, other)


@contextmanager
def watched(monkeypatch: pytest.MonkeyPatch) -> Iterator[Homes]:
    """Everything that can be told of is told of."""
    homes = Homes()
    with monkeypatch.context() as patched:
        watch_disk(homes, patched.setattr)
        watch_driver(homes, patched.setattr)
        _watch_calls(patched)
        yield homes


def _watch_calls(patched: pytest.MonkeyPatch) -> None:
    """What is told to peers, but for heartbeats."""
    original = MemoryTransport.call

    async def call(
        transport: MemoryTransport, peer: PeerId, method: Method, body: bytes, seconds: float
    ) -> bytes:
        network = transport._network
        reached = network.heard_by.get(transport.peer_id) if isinstance(network, Mortal) else None
        if reached is None or method is Method.HELLO:
            return await original(transport, peer, method, body, seconds)
        reached(f"call {method} before")
        reply = await original(transport, peer, method, body, seconds)
        reached(f"call {method} after")
        return reply

    patched.setattr(MemoryTransport, "call", call)
