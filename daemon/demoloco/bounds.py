"""How large a peer's numbers, texts and lists may be, and the checks that hold them to it.

Rule: a check returns the value in its own type or raises PacketError; nothing here knows protobuf.
"""

from __future__ import annotations

import base58

from demoloco.errors import PacketError
from demoloco.types import DIGEST_BYTES, Digest, PeerId, Phase, Round

VERSION = 1
PEER_PREFIX = bytes.fromhex("002408011220")  # identity multihash of an Ed25519 public key
PEER_BYTES = len(PEER_PREFIX) + 32
SIGNATURE_BYTES = 64
SPEC_BYTES = 8
NONCE_BYTES = 16

MAX_ROUND = 1 << 40
MAX_RANK = 65_535
MAX_SAMPLES = 1 << 48
MAX_SAMPLES_TOTAL = 1 << 62
MAX_ENTRIES = 256
MAX_PACKET_BYTES = 1 << 30
MAX_K = 4096
MAX_ADDRESSES = 16
MAX_ADDRESS_CHARACTERS = 256
MAX_SOFTWARE_CHARACTERS = 64
MAX_SEQUENCE = 1 << 53
MAX_RATE = 1e12
MAX_CONFIG_BYTES = 64 << 10
MAX_LAYOUT_BYTES = 4 << 20
MAX_PART_BYTES = 16 << 20
MAX_PARTS = 16_384
MAX_WEIGHT_ERROR = 1e-3


def peer_to_raw(peer: PeerId) -> bytes:
    """Raises: ValueError if this is not the peer id of an Ed25519 key."""
    raw = base58.b58decode(peer)
    if len(raw) != PEER_BYTES or not raw.startswith(PEER_PREFIX):
        raise ValueError(f"{peer!r} is not the peer id of an Ed25519 key")
    return raw


def peer_from_raw(raw: bytes) -> PeerId:
    """Raises: PacketError if this is not the peer id of an Ed25519 key."""
    if len(raw) != PEER_BYTES or not raw.startswith(PEER_PREFIX):
        raise PacketError("a peer id is not that of an Ed25519 key")
    return PeerId(base58.b58encode(raw).decode())


def check_version(version: int) -> None:
    if version != VERSION:
        raise PacketError(f"a message has version {version}; this node speaks {VERSION}")


def within(name: str, value: int, low: int, high: int) -> int:
    if not low <= value <= high:
        raise PacketError(f"{name} is {value}, not in {low}..{high}")
    return value


def exactly(name: str, value: bytes, length: int) -> bytes:
    if len(value) != length:
        raise PacketError(f"{name} has {len(value)} bytes, not {length}")
    return value


def to_digest(name: str, value: bytes) -> Digest:
    return Digest(exactly(name, value, DIGEST_BYTES))


def to_round(value: int, *, low: int = 0) -> Round:
    return Round(within("round", value, low, MAX_ROUND))


def text_of(name: str, text: str, limit: int) -> str:
    if len(text) > limit:
        raise PacketError(f"{name} has {len(text)} characters; the limit is {limit}")
    if not text.isascii() or not (text.isprintable()):
        raise PacketError(f"{name} has characters that cannot be printed")
    return text


def to_address(text: str) -> str:
    if not text.startswith("/"):
        raise PacketError(f"an address does not start with a slash: {text[:40]!r}")
    return text_of("an address", text, MAX_ADDRESS_CHARACTERS)


def to_host_port(text: str) -> str:
    host, _, port = text.rpartition(":")
    if not host or not port.isdecimal() or not 1 <= int(port[:6]) <= 65_535:
        raise PacketError(f"a direct address is not host:port: {text[:40]!r}")
    return text_of("a direct address", text, MAX_ADDRESS_CHARACTERS)


def rate_of(name: str, value: float) -> float:
    if not 0 <= value <= MAX_RATE:  # also refuses nan
        raise PacketError(f"{name} is {value}")
    return value


def to_phase(text: str) -> Phase:
    try:
        return Phase(text)
    except ValueError:
        raise PacketError(f"a phase is {text[:40]!r}") from None
