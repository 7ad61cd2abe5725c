"""A mesh that may take two roads: what members say reaches the roads, and where the direct one
begins stands in the own record."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from demoloco.swarm.identity import Identity
from demoloco.swarm.mesh import Mesh
from demoloco.swarm.port import Library, MemberLost, MemberSeen, SwarmEvent
from demoloco.swarm.roads.transport import Roads, Wish
from demoloco.swarm.transport import Transport
from demoloco.types import Digest, Member, PeerId


class RoadsMesh(Mesh):
    """The swarm port over a transport, and over a direct road beside it where it is wished."""

    def __init__(
        self, identity: Identity, transport: Transport, wish: Wish | None, **mesh: Any
    ) -> None:
        self.roads = Roads(identity, transport, wish) if wish is not None else None
        super().__init__(identity, self.roads or transport, **mesh)

    async def start(self, emit: Callable[[SwarmEvent], None], library: Library) -> None:
        roads = self.roads

        def hear(event: SwarmEvent) -> None:
            if roads is not None and isinstance(event, MemberSeen):
                roads.seen(event.member)
            elif roads is not None and isinstance(event, MemberLost):
                roads.lost(event.peer)
            emit(event)

        await super().start(hear, library)
        if roads is not None:
            roads.drop = self._standing.drop

    def enter(self, run: Digest) -> None:
        if self.roads is not None:
            self.roads.run = run
        super().enter(run)

    def say(self, member: Member) -> None:
        direct = self.roads.direct if self.roads is not None else ()
        super().say(replace(member, direct=direct))

    def road(self, peer: PeerId) -> str:
        return self.roads.road(peer) if self.roads is not None else super().road(peer)
