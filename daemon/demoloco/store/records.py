"""How the store writes its small words: JSON that a person can read, behind its digest.

Rule: a record that is not exactly what was written is no record; a reader gets None and decides.
"""

from __future__ import annotations

import json
from typing import Any

from blake3 import blake3

from demoloco.types import BlobRef, Digest, Head, Round, Snapshot

_HEX_BYTES = 64


def digest_of(data: bytes | memoryview) -> Digest:
    """The name of these bytes."""
    return Digest(blake3(data).digest())


def framed(payload: bytes) -> bytes:
    """Payload behind a line with its digest in hexadecimal."""
    return digest_of(payload).hex().encode() + b"\n" + payload


def unframed(data: bytes) -> bytes | None:
    """The payload of a frame, or None if a bit of it changed."""
    payload = data[_HEX_BYTES + 1 :]
    return payload if framed(payload) == data else None


def head_to_json(head: Head) -> dict[str, Any]:
    """A head as JSON holds it."""
    return {
        "digest": head.digest.hex(),
        "round": head.round,
        "samples_total": head.samples_total,
        "rank": head.rank,
    }


def head_from_json(words: dict[str, Any]) -> Head:
    """The other way."""
    return Head(
        digest=digest_from_hex(words["digest"]),
        round=Round(words["round"]),
        samples_total=words["samples_total"],
        rank=words["rank"],
    )


def digest_from_hex(text: str) -> Digest:
    """A digest as file names and records spell it."""
    return Digest(bytes.fromhex(text))


def head_to_bytes(head: Head) -> bytes:
    """The head pointer's file."""
    return framed(json.dumps(head_to_json(head)).encode())


def head_from_bytes(data: bytes) -> Head | None:
    """The head that a pointer's file names, or None if the file is damaged."""
    payload = unframed(data)
    return None if payload is None else head_from_json(json.loads(payload))


def snapshot_to_bytes(snapshot: Snapshot) -> bytes:
    """The file beside an agreed state that tells what is in it."""
    blobs = [[blob.digest.hex(), blob.size] for blob in snapshot.blobs]
    return framed(json.dumps({"head": head_to_json(snapshot.head), "blobs": blobs}).encode())


def snapshot_from_bytes(data: bytes) -> Snapshot | None:
    """The snapshot that such a file describes, or None if it is damaged."""
    payload = unframed(data)
    if payload is None:
        return None
    words = json.loads(payload)
    blobs = tuple(BlobRef(digest=digest_from_hex(name), size=size) for name, size in words["blobs"])
    return Snapshot(head=head_from_json(words["head"]), blobs=blobs)


def checked_key(key: str) -> str:
    """The key of a note, if it can be a file's name.

    Raises: ValueError if not.
    """
    if not key or len(key) > 100 or not key.replace("-", "").replace("_", "").isalnum():
        raise ValueError(f"{key!r} cannot be the name of a note")
    return key
