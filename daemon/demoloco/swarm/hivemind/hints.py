"""A hivemind DHT in which members leave their addresses for strangers of the same run.

Rule: a hint and nothing more. The DHT loses records and peers and believes anybody, so nothing
that must be equal on all nodes may come from it; and it is closed: one key, values signed by the
peer that the subkey names, small and short-lived, or they are not stored here.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine, Iterable, Sequence
from contextlib import suppress
from typing import Any

from hivemind.dht.node import DHTNode
from hivemind.dht.routing import DHTID
from hivemind.dht.validation import DHTRecord, RecordValidatorBase
from hivemind.p2p import P2PDaemonError, PeerID
from hivemind.utils import MSGPackSerializer, get_dht_time

from demoloco.bounds import peer_to_raw
from demoloco.errors import PacketError
from demoloco.swarm.calls import MAX_RECORDS
from demoloco.swarm.hivemind.p2pd import CountingP2P
from demoloco.swarm.identity import verify
from demoloco.types import Digest, PeerId
from demoloco.wire import decode_member

log = logging.getLogger(__name__)

RECORD_SECONDS = 600.0
"""Long, so that it is still a record where a clock goes minutes ahead."""
MAX_RECORD_SECONDS = 1500.0
MAX_RECORD_BYTES = 1024
MAX_PINGS = 8
CALL_SECONDS = 10.0
LEAVE_SECONDS = 1.0


def key_of(run: Digest) -> str:
    return f"demoloco-v1/{run.hex()}/members"


class OnlyMembers(RecordValidatorBase):  # type: ignore[misc]
    """Lets in nothing but the signed records of one run's members."""

    def __init__(self) -> None:
        self.run: Digest | None = None
        self._until: dict[PeerId, float] = {}

    def validate(self, record: DHTRecord) -> bool:
        """Called by hivemind for what others want stored here, and for what they answer."""
        if self.run is None or record.key != DHTID.generate(key_of(self.run)).to_bytes():
            return False
        if len(record.value) > MAX_RECORD_BYTES:
            return False
        if record.expiration_time > get_dht_time() + MAX_RECORD_SECONDS:
            return False
        try:
            value = MSGPackSerializer.loads(record.value)
            owner = MSGPackSerializer.loads(record.subkey)
            member = decode_member(value, verify) if isinstance(value, bytes) else None
        except (PacketError, ValueError, TypeError):
            return False
        if member is None or member.run != self.run or peer_to_raw(member.peer) != owner:
            return False
        return self._has_room(member.peer, record.expiration_time)

    def _has_room(self, owner: PeerId, until: float) -> bool:
        """Names cost nothing: only so many of them have a record here at a time."""
        if owner not in self._until and len(self._until) >= MAX_RECORDS:
            now = get_dht_time()
            self._until = {peer: end for peer, end in self._until.items() if end > now}
            if len(self._until) >= MAX_RECORDS:
                return False
        self._until[owner] = max(until, self._until.get(owner, until))
        return True


class Hints:
    """This node's part of the DHT."""

    def __init__(self, node: DHTNode, validator: OnlyMembers) -> None:
        self._node = node
        self._validator = validator
        self._working: set[asyncio.Task[Any]] = set()

    @classmethod
    async def join(cls, p2p: CountingP2P) -> Hints:
        """Start serving; nobody is dialled. No loops of hivemind's own are left running."""
        validator = OnlyMembers()
        node = await DHTNode.create(
            p2p=p2p,
            node_id=DHTID.generate(source=p2p.peer_id.to_bytes()),
            initial_peers=None,
            record_validator=validator,
            num_workers=16,
            wait_timeout=5,
            refresh_timeout=None,
            cache_locally=False,
            cache_nearest=0,
            cache_on_store=False,
            cache_refresh_before_expiry=0,
        )
        return cls(node, validator)

    async def meet(self, peers: Iterable[PeerId]) -> None:
        """Bring connected peers into the routing table; who was slow once is asked again."""
        table = self._node.protocol.routing_table
        ids = [PeerID.from_base58(peer) for peer in peers]
        await self._to_the_end(self._ping([peer for peer in ids if peer not in table][:MAX_PINGS]))

    async def advertise(self, run: Digest, me: PeerId, record: bytes) -> None:
        """Store this node's record; whether anybody has it afterwards is not known."""
        self._validator.run = run
        until = get_dht_time() + RECORD_SECONDS
        await self._to_the_end(self._node.store(key_of(run), record, until, subkey=peer_to_raw(me)))

    async def find(self, run: Digest) -> Sequence[bytes]:
        self._validator.run = run
        found = await self._to_the_end(self._node.get(key_of(run), latest=True))
        if found is None or not isinstance(found.value, dict):
            return ()
        records = [entry.value for entry in found.value.values()]
        return [record for record in records if isinstance(record, bytes)][:MAX_RECORDS]

    async def leave(self, *, alive: bool) -> None:
        """End; a dead p2pd is asked for nothing."""
        self._node.is_alive = False
        if self._working:
            await asyncio.wait(tuple(self._working), timeout=LEAVE_SECONDS)
        if alive:
            with suppress(P2PDaemonError, TimeoutError):
                async with asyncio.timeout(LEAVE_SECONDS):
                    await self._node.shutdown()

    async def _ping(self, strangers: Sequence[PeerID]) -> None:
        found = await asyncio.gather(*map(self._node.protocol.call_ping, strangers))
        if any(found):
            await self._node.find_nearest_nodes([self._node.node_id])

    async def _to_the_end(self, work: Coroutine[Any, Any, Any]) -> Any:
        """Wait for it, but not for ever, and never cancel it: hivemind would leave tasks behind."""
        task = asyncio.create_task(work)
        self._working.add(task)
        task.add_done_callback(self._working.discard)
        async with asyncio.timeout(CALL_SECONDS):
            return await asyncio.shield(task)
