"""Who this node is: an Ed25519 key in a file that libp2p reads, and what it signs.

Rule: the peer id contains the public key, so anyone can check a signature knowing nothing but the
name.
"""

from __future__ import annotations

import os
import secrets
from functools import lru_cache
from pathlib import Path

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from demoloco.bounds import PEER_PREFIX, peer_from_raw, peer_to_raw
from demoloco.errors import ConfigError
from demoloco.types import PeerId

KEY_BYTES = 32
FILE_PREFIX = bytes.fromhex("08011240")  # protobuf PrivateKey: type Ed25519, 64 bytes follow
FILE_BYTES = len(FILE_PREFIX) + 2 * KEY_BYTES


class Identity:
    """A node's key and its name in the swarm."""

    def __init__(self, key: Ed25519PrivateKey, path: Path | None = None) -> None:
        self._key = key
        self.path = path
        self.peer_id = peer_from_raw(PEER_PREFIX + key.public_key().public_bytes_raw())

    @classmethod
    def new(cls) -> Identity:
        """An identity that is on no disk."""
        return cls(Ed25519PrivateKey.generate())

    @classmethod
    def load_or_create(cls, path: Path) -> Identity:
        """Read the key file, or make one with mode 0400.

        Raises: ConfigError if the file is no such key or cannot be read or made.
        """
        try:
            return cls(_read_key(path), path)
        except FileNotFoundError:
            pass
        except OSError as error:
            raise ConfigError(
                f"cannot read the identity {path}: {error.strerror}; it must belong to this user"
            ) from error
        try:
            _create(path, Ed25519PrivateKey.generate())
            return cls(_read_key(path), path)
        except OSError as error:
            raise ConfigError(f"cannot make the identity {path}: {error.strerror}") from error

    def sign(self, message: bytes) -> bytes:
        return self._key.sign(message)


def verify(peer: PeerId, message: bytes, signature: bytes) -> bool:
    """Whether this peer signed this message; False for a peer id that holds no key."""
    try:
        _public_key(peer).verify(signature, message)
    except (InvalidSignature, ValueError):
        return False
    return True


@lru_cache(maxsize=1024)
def _public_key(peer: PeerId) -> Ed25519PublicKey:
    return Ed25519PublicKey.from_public_bytes(peer_to_raw(peer)[len(PEER_PREFIX) :])


def _read_key(path: Path) -> Ed25519PrivateKey:
    with path.open("rb") as file:
        data = file.read(FILE_BYTES + 1)
    seed, public = data[len(FILE_PREFIX) : -KEY_BYTES], data[-KEY_BYTES:]
    if len(data) == FILE_BYTES and data.startswith(FILE_PREFIX):
        key = Ed25519PrivateKey.from_private_bytes(seed)
        if key.public_key().public_bytes_raw() == public:
            return key
    raise ConfigError(
        f"{path} is not an Ed25519 identity of libp2p; move it away and a new one is made "
        "(the node then has a new peer id)"
    )


def _create(path: Path, key: Ed25519PrivateKey) -> None:
    """Whole or not at all; when two nodes race, the first one's key stays and both read it."""
    data = FILE_PREFIX + key.private_bytes_raw() + key.public_key().public_bytes_raw()
    draft = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    handle = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o400)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        try:
            os.link(draft, path)
        except FileExistsError:
            return
    finally:
        draft.unlink()
