"""One blob from several holders: what arrived, and whom not to ask again.

Rule: never more bytes than the blob has, never bytes out of order, and nothing is a blob before
its digest is right. Pure: chunks in, a verdict out.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
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


class Span:
    """A stretch of one blob, brought by one holder after the other."""

    def __init__(self, start: int, end: int) -> None:
        self.offset = start  # of the next byte that is wanted
        self.end = end
        self.asked = end  # where the stream under way ends; beyond `end` where that was cut since
        self.holder: PeerId | None = None  # who was asked last
        self.sources: set[PeerId] = set()

    @property
    def lacks(self) -> int:
        return self.end - self.offset

    def asks(self, holder: PeerId) -> int:
        """This holder is asked for the rest of it, so many bytes."""
        self.holder, self.asked = holder, self.end
        return self.lacks


class Transfer:
    """The state of fetching one blob: its bytes, and the spans in which they come."""

    def __init__(self, blob: BlobRef, span_bytes: int) -> None:
        self.blob = blob
        starts = range(0, blob.size, span_bytes)
        self.spans = [Span(start, min(start + span_bytes, blob.size)) for start in starts]
        self._data = bytearray(blob.size)
        self._early: frozenset[PeerId] = frozenset()

    @classmethod
    def resumed(cls, blob: BlobRef, pieces: Mapping[int, tuple[bytes, PeerId]]) -> Transfer:
        """With these pieces, by their offsets, none over another; what lies between is lacking."""
        made = cls(blob, blob.size)
        made._early = frozenset(source for _, source in pieces.values())
        end, gaps = 0, []
        for start, (data, _) in sorted(pieces.items()):
            gaps.append((end, start))
            end = start + len(data)
            made._data[start:end] = data
        gaps.append((end, blob.size))
        made.spans = [Span(begin, upto) for begin, upto in gaps if begin < upto]
        return made

    @property
    def sources(self) -> frozenset[PeerId]:
        return self._early.union(*(span.sources for span in self.spans))

    @property
    def came(self) -> int:
        """Bytes that are here."""
        return self.blob.size - sum(span.lacks for span in self.spans)

    def split(self, span: Span) -> Span:
        """The second half of what lacks of this span, as one of its own."""
        middle = span.end - span.lacks // 2
        other = Span(middle, span.end)
        span.end = middle
        self.spans.append(other)
        return other

    def accept(self, span: Span, chunk: Chunk) -> int:
        """Take the next bytes of this span from who was asked; how many.

        Raises: PacketError if the holder breaks the rules."""
        if not span.lacks:
            raise PacketError("a chunk came after the last one")
        if chunk.offset != span.offset:
            raise PacketError(f"a chunk for offset {chunk.offset} came at {span.offset}")
        end = chunk.offset + len(chunk.data)
        if end > span.asked:
            what = "of the blob" if span.asked == self.blob.size else "that were asked for"
            raise PacketError(f"a holder sends more than the {span.asked} bytes {what}")
        if chunk.last != (end == span.asked):
            raise PacketError(f"the last chunk ends at {end}, not at {span.asked}")
        if not chunk.data:
            raise PacketError("an empty chunk")
        taken = min(len(chunk.data), span.lacks)
        self._data[span.offset : span.offset + taken] = chunk.data[:taken]
        span.offset += taken
        if span.holder is not None:
            span.sources.add(span.holder)
        return taken

    def finish(self) -> bytes:
        """The blob. Raises: DigestMismatch."""
        data = bytes(self._data)
        if blake3(data).digest() != self.blob.digest:
            raise DigestMismatch(self.blob, self.sources)
        return data


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
