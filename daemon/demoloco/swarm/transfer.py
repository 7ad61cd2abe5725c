"""One blob from several holders: what arrived, and whom not to ask again.

Rule: never more bytes than the blob has, never bytes out of order, and nothing is a blob before
its digest is right. Pure: chunks in, a verdict out.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import TypeVar

from blake3 import blake3

from demoloco.errors import PacketError
from demoloco.swarm.calls import Chunk
from demoloco.types import BlobRef, Digest, PeerId

_T = TypeVar("_T")

MAX_SUSPICIONS = 1024


class DigestMismatch(PacketError):
    """All bytes came, and they are not the blob; `sources` brought them."""

    def __init__(self, blob: BlobRef, sources: frozenset[PeerId]) -> None:
        super().__init__(f"{blob.size} bytes came that are not blob {blob.digest.hex()[:8]}")
        self.sources = sources


class Transfer:
    """The state of fetching one blob."""

    def __init__(self, blob: BlobRef) -> None:
        self.blob = blob
        self.offset = 0
        self.sources: set[PeerId] = set()
        self.complete = False
        self._hash = blake3()

    def accept(self, holder: PeerId, chunk: Chunk) -> bytes:
        """The next bytes of the blob, or PacketError if the holder breaks the rules."""
        if self.complete:
            raise PacketError("a chunk came after the last one")
        if chunk.offset != self.offset:
            raise PacketError(f"a chunk for offset {chunk.offset} came at {self.offset}")
        end = chunk.offset + len(chunk.data)
        if end > self.blob.size:
            raise PacketError(f"a holder sends more than the {self.blob.size} bytes of the blob")
        if chunk.last != (end == self.blob.size):
            raise PacketError(f"the last chunk ends at {end}, not at {self.blob.size}")
        if not chunk.data:
            raise PacketError("an empty chunk")
        self._hash.update(chunk.data)
        self.offset = end
        self.sources.add(holder)
        if chunk.last:
            if self._hash.digest() != self.blob.digest:
                raise DigestMismatch(self.blob, frozenset(self.sources))
            self.complete = True
        return chunk.data


class Suspicion:
    """Remembers who lied about which blob; bounded, the oldest is forgotten.

    Where the bytes of several holders did not add up to the blob, nobody knows who lied: from then
    on each must bring the whole of it.
    """

    def __init__(self) -> None:
        self._liars: OrderedDict[tuple[PeerId, Digest], None] = OrderedDict()
        self._whole: OrderedDict[Digest, None] = OrderedDict()

    def note(self, blob: Digest, sources: frozenset[PeerId]) -> None:
        if len(sources) == 1:
            _remember(self._liars, (next(iter(sources)), blob))
        else:
            _remember(self._whole, blob)

    def lied(self, peer: PeerId, blob: Digest) -> bool:
        return (peer, blob) in self._liars

    def may_resume(self, blob: Digest) -> bool:
        """Whether one holder may go on where another stopped."""
        return blob not in self._whole


def _remember(memory: OrderedDict[_T, None], item: _T) -> None:
    memory[item] = None
    if len(memory) > MAX_SUSPICIONS:
        memory.popitem(last=False)
