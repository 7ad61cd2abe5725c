"""Measuring the link between two peers: filler in small calls, either way.

Rule: no run is needed, so anybody may ask; what a peer can make this node send and take by it is
bounded for each peer and for all together, and is counted in bytes.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from functools import cache

from demoloco.bounds import within
from demoloco.swarm.allowance import Allowance
from demoloco.swarm.transport import Refused
from demoloco.types import PeerId
from demoloco.wire import parse
from demoloco_proto.v1 import round_pb2

MAX_FILLER_BYTES = 256 << 10
BYTES_AT_ONCE = 9 << 20
BYTES_A_MINUTE = 8 << 20
"""For one peer, both ways together; all peers together may ask for twice that."""
CALL_BYTES = 1024
"""What a call costs besides its filler."""
_ALL = PeerId("")


class Probes:
    """Answers probes as long as they stay within what is allowed."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._each, self._all = (
            Allowance(a_second=share * BYTES_A_MINUTE / 60, at_once=share * BYTES_AT_ONCE, now=now)
            for share in (1, 2)
        )

    def answer(self, peer: PeerId, body: bytes) -> bytes:
        """Raises: PacketError, Refused."""
        asked = parse(round_pb2.ProbeRequest, body)
        wanted = within("bytes wanted", asked.wanted, 0, MAX_FILLER_BYTES)
        within("length of the filler", len(asked.filler), 0, MAX_FILLER_BYTES)
        cost = CALL_BYTES + wanted + len(asked.filler)
        if not (self._each.spend(peer, cost) and self._all.spend(_ALL, cost)):
            raise Refused("busy: too many bytes were probed in the last minute")
        return round_pb2.ProbeReply(filler=filler()[:wanted]).SerializeToString()


def encode_probe_request(*, wanted: int = 0, sent: int = 0) -> bytes:
    """Ask for `wanted` bytes, and bring `sent` along; each at most MAX_FILLER_BYTES."""
    return round_pb2.ProbeRequest(wanted=wanted, filler=filler()[:sent]).SerializeToString()


def decode_probe_reply(data: bytes, wanted: int) -> int:
    """How many bytes came. Raises: PacketError if they are not as many as were wanted."""
    told = parse(round_pb2.ProbeReply, data)
    return within("length of the filler", len(told.filler), wanted, wanted)


@cache
def filler() -> bytes:
    """Bytes that nothing on the way can compress."""
    return secrets.token_bytes(MAX_FILLER_BYTES)
