"""Trying whether a peer can be reached from here, because it asks.

Rule: only the IP address from which the peer is connected is tried, so nobody can make this node
knock at a third one's door; one try at a time for each peer, few a minute for all.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from enum import StrEnum

from demoloco.bounds import MAX_ADDRESS_CHARACTERS, within
from demoloco.errors import PacketError, SwarmError
from demoloco.swarm.addresses import is_direct_ip
from demoloco.swarm.allowance import Allowance
from demoloco.swarm.tasks import Tasks
from demoloco.swarm.transport import Refused
from demoloco.types import PeerId
from demoloco.wire import parse
from demoloco_proto.v1 import round_pb2

TRY_SECONDS = 5.0
TRIES_AT_ONCE = 4.0
TRIES_A_MINUTE = 4.0
"""For one peer; for all together it is five times as many."""
MAX_KEPT = 64
GREETING = b"\x13/multistream/1.0.0\n"
"""What libp2p says first to whoever connects."""
_ALL = PeerId("")


class Outcome(StrEnum):
    """What came of it; part of the protocol."""

    TRYING = "trying"
    OPEN = "open"
    REFUSED = "refused"
    SILENT = "silent"
    STRANGER = "stranger"
    """Something listens there, and it is no libp2p."""
    RELAYED = "relayed"
    """The peer is connected through a relay: its own address is not seen."""
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class DialBack:
    """How the peer is seen, and whether its port could be opened from here."""

    observed: str
    outcome: Outcome


class DialBacks:
    """Starts tries, and keeps what came of the last ones until it is asked for."""

    def __init__(
        self,
        observed: Callable[[PeerId], Awaitable[str | None]],
        tasks: Tasks,
        now: Callable[[], float],
    ) -> None:
        self._observed = observed
        self._tasks = tasks
        self._kept: OrderedDict[tuple[PeerId, int], DialBack] = OrderedDict()
        self._each, self._all = (
            Allowance(a_second=share * TRIES_A_MINUTE / 60, at_once=share * TRIES_AT_ONCE, now=now)
            for share in (1, 5)
        )

    def ask(self, peer: PeerId, port: int) -> DialBack:
        """The first question starts a try; a later one tells how far it is, and its end once.

        Raises: Refused if this peer, or all together, asked for too many."""
        known = self._kept.get((peer, port))
        if known is not None:
            if known.outcome is not Outcome.TRYING:
                del self._kept[peer, port]
            return known
        if any(one == peer and kept.outcome is Outcome.TRYING for (one, _), kept in self._items()):
            raise Refused("busy: another port is being tried")
        if not (self._each.spend(peer, 1) and self._all.spend(_ALL, 1)):
            raise Refused("busy: too many were dialled back in the last minute")
        trying = self._keep(peer, port, DialBack("", Outcome.TRYING))
        self._tasks.spawn(self._try(peer, port))
        return trying

    def _items(self) -> list[tuple[tuple[PeerId, int], DialBack]]:
        return list(self._kept.items())

    def _keep(self, peer: PeerId, port: int, what: DialBack) -> DialBack:
        self._kept[peer, port] = what
        if len(self._kept) > MAX_KEPT:
            self._kept.popitem(last=False)
        return what

    async def _try(self, peer: PeerId, port: int) -> None:
        try:
            async with asyncio.timeout(TRY_SECONDS):
                seen = await self._observed(peer)
        except (SwarmError, TimeoutError):
            seen = None
        if seen is None:
            found = DialBack("", Outcome.UNKNOWN)
        elif not is_direct_ip(seen):
            found = DialBack(seen[:MAX_ADDRESS_CHARACTERS], Outcome.RELAYED)
        else:
            found = DialBack(seen, await _open(seen.split("/")[2], port))
        self._keep(peer, port, found)


async def _open(host: str, port: int) -> Outcome:
    """Whether libp2p answers there. Nothing is said to it."""
    try:
        async with asyncio.timeout(TRY_SECONDS):
            reader, writer = await asyncio.open_connection(host, port)
            try:
                said = await reader.readexactly(len(GREETING))
            finally:
                writer.transport.abort()
    except ConnectionRefusedError:
        return Outcome.REFUSED
    except asyncio.IncompleteReadError:
        return Outcome.STRANGER
    except (OSError, TimeoutError):
        return Outcome.SILENT
    return Outcome.OPEN if said == GREETING else Outcome.STRANGER


def encode_dial_back_request(port: int) -> bytes:
    return round_pb2.DialBackRequest(port=port).SerializeToString()


def decode_dial_back_request(data: bytes) -> int:
    return within("port", parse(round_pb2.DialBackRequest, data).port, 1, 65_535)


def encode_dial_back_reply(told: DialBack) -> bytes:
    message = round_pb2.DialBackReply(observed=told.observed, outcome=told.outcome.value)
    return message.SerializeToString()


def decode_dial_back_reply(data: bytes) -> DialBack:
    told = parse(round_pb2.DialBackReply, data)
    within("length of an address", len(told.observed), 0, MAX_ADDRESS_CHARACTERS)
    if not told.observed.isprintable():
        raise PacketError("an observed address is no text")
    if told.outcome not in set(Outcome):
        raise PacketError("the outcome of a dial back is not known")
    return DialBack(told.observed, Outcome(told.outcome))
