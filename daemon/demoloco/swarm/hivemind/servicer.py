"""The unary calls as hivemind carries them.

Rule: the names here are on the wire; what the bytes mean is known to `calls.py` alone.
"""

from __future__ import annotations

from hivemind.p2p import P2PContext, ServicerBase

from demoloco.swarm.transport import Method, Refused, Service
from demoloco.types import PeerId

NAMESPACE = "demoloco-v1"
ANSWERED, REFUSED = b"\x00", b"\x01"  # first byte of a reply


class Message(bytes):
    """Bytes in the clothes of a protobuf message: `calls.py` is the one that decodes."""

    @staticmethod
    def FromString(data: bytes) -> Message:
        return Message(data)

    def SerializeToString(self) -> bytes:
        return bytes(self)


class PeerCalls(ServicerBase):  # type: ignore[misc]
    """The unary calls; the class's and the methods' names are part of the protocol."""

    def __init__(self, service: Service) -> None:
        self._service = service

    async def rpc_hello(self, request: Message, context: P2PContext) -> Message:
        return self._answer(Method.HELLO, request, context)

    async def rpc_genesis(self, request: Message, context: P2PContext) -> Message:
        return self._answer(Method.GENESIS, request, context)

    async def rpc_announce(self, request: Message, context: P2PContext) -> Message:
        return self._answer(Method.ANNOUNCE, request, context)

    async def rpc_publish(self, request: Message, context: P2PContext) -> Message:
        return self._answer(Method.PUBLISH, request, context)

    async def rpc_manifests(self, request: Message, context: P2PContext) -> Message:
        return self._answer(Method.MANIFESTS, request, context)

    async def rpc_snapshot(self, request: Message, context: P2PContext) -> Message:
        return self._answer(Method.SNAPSHOT, request, context)

    async def rpc_gift(self, request: Message, context: P2PContext) -> Message:
        return self._answer(Method.GIFT, request, context)

    async def rpc_probe(self, request: Message, context: P2PContext) -> Message:
        return self._answer(Method.PROBE, request, context)

    async def rpc_dial_back(self, request: Message, context: P2PContext) -> Message:
        return self._answer(Method.DIAL_BACK, request, context)

    async def rpc_direct(self, request: Message, context: P2PContext) -> Message:
        return self._answer(Method.DIRECT, request, context)

    async def rpc_push(self, request: Message, context: P2PContext) -> Message:
        return self._answer(Method.PUSH, request, context)

    def _answer(self, method: Method, request: Message, context: P2PContext) -> Message:
        peer = PeerId(context.remote_id.to_base58())
        try:
            return Message(ANSWERED + self._service.answer(peer, method, bytes(request)))
        except Refused as error:
            return Message(REFUSED + str(error).encode())
