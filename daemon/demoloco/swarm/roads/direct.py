"""What two peers tell each other before they take the direct road, and whom this node trusts on it.

Rule: who a caller is follows from the very certificate that it gave over libp2p, byte for byte,
never from a name in it: a certificate that another one signed is nobody's.
"""

from __future__ import annotations

import ssl
from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass

from demoloco.bounds import MAX_ADDRESSES, to_digest, to_host_port, within
from demoloco.swarm.roads import certificates
from demoloco.types import Digest, PeerId
from demoloco.wire import parse
from demoloco_proto.v1 import exchange_pb2

MAX_TRUSTED = 512


@dataclass(frozen=True, slots=True)
class DirectOffer:
    """A peer's certificate, and where its direct road begins."""

    certificate: bytes  # DER
    places: tuple[str, ...]  # host:port; none where it cannot be dialled


def encode_direct(run: Digest, offer: DirectOffer) -> bytes:
    message = exchange_pb2.Direct(run=run, certificate=offer.certificate, places=offer.places)
    return message.SerializeToString()


def decode_direct(data: bytes) -> tuple[Digest, DirectOffer]:
    """Raises: PacketError. The certificate is not checked yet."""
    told = parse(exchange_pb2.Direct, data)
    within("number of places", len(told.places), 0, MAX_ADDRESSES)
    places = tuple(map(to_host_port, told.places))
    return to_digest("run", told.run), DirectOffer(told.certificate, places)


class Trust:
    """The certificates of the peers that may use the direct road now, one each."""

    def __init__(self) -> None:
        self._pems: OrderedDict[PeerId, bytes] = OrderedDict()
        self._peers: dict[bytes, PeerId] = {}
        self.roots = b""
        """All of them as PEM; a value of its own, as TLS reads it in another thread."""
        self.version = 0
        """Rises after every change."""

    def take(self, peer: PeerId, der: bytes) -> bytes:
        """Trust this certificate instead of the peer's last one; its PEM.

        Raises: PacketError.
        """
        pem = certificates.check(der, peer)
        if self._pems.get(peer) != pem:
            self.drop(peer)
            self._pems[peer], self._peers[der] = pem, peer
            self._changed()
            if len(self._pems) > MAX_TRUSTED:
                self.drop(next(iter(self._pems)))
        return pem

    def drop(self, peer: PeerId) -> None:
        """What it opened is of no use any longer."""
        if (pem := self._pems.pop(peer, None)) is not None:
            del self._peers[_der(pem)]
            self._changed()

    def who(self, pem: bytes) -> PeerId | None:
        """Whose certificate this is, or None if nobody's that is trusted now."""
        try:
            return self._peers.get(_der(pem))
        except ValueError:
            return None

    def _changed(self) -> None:
        self.roots = b"".join(self._pems.values())
        self.version += 1


def hosts_of(addresses: Iterable[str]) -> tuple[str, ...]:
    """The hosts of these multiaddrs, each once, IPv6 in brackets; those of relays are no hosts."""
    hosts = [one.split("/")[1:3] for one in addresses if "/p2p-circuit" not in one]
    return tuple(dict.fromkeys(f"[{host}]" if kind == "ip6" else host for kind, host in hosts))


def host_of(place: str) -> str:
    """The host of a host:port, IPv6 in brackets."""
    return place.rpartition(":")[0]


def places_of(addresses: Iterable[str], port: int) -> tuple[str, ...]:
    """These multiaddrs' hosts with this port."""
    return tuple(f"{host}:{port}" for host in hosts_of(addresses))[:MAX_ADDRESSES]


def _der(pem: bytes) -> bytes:
    return ssl.PEM_cert_to_DER_cert(pem.decode("ascii"))
