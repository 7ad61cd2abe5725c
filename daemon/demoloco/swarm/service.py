"""What this node answers when peers call: bytes in, bytes or a refusal out.

Rule: nothing here waits, and nothing that a peer sends raises anything but Refused. A peer that
asks too much is told that this node is busy; one that sends garbage is counted.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from dataclasses import replace

from demoloco.errors import DemolocoError, PacketError
from demoloco.swarm import calls
from demoloco.swarm.allowance import Allowance
from demoloco.swarm.blobs.slots import Slots, is_thin
from demoloco.swarm.dial_back import DialBacks, decode_dial_back_request, encode_dial_back_reply
from demoloco.swarm.identity import verify
from demoloco.swarm.port import BlobReader, Link
from demoloco.swarm.probing import Probes
from demoloco.swarm.roads.direct import DirectOffer, decode_direct
from demoloco.swarm.standing import Standing
from demoloco.swarm.transport import Busy, Method, Refused
from demoloco.types import Digest, PeerId, short
from demoloco.wire import decode_manifest, encode_genesis, encode_snapshot

log = logging.getLogger(__name__)

BUSY = "busy: ask again later"
LACKS = "it does not hold blob"
CALLS_A_SECOND = 200.0
CALLS_AT_ONCE = 2000.0
BYTES_A_CALL = 1024
"""A call of so many bytes counts as two, and so on."""


class BlobStream:
    """One blob, or a part of it, on its way to one peer."""

    def __init__(self, reader: BlobReader, start: int, end: int) -> None:
        self._reader = reader
        self._start = start
        self._end = end
        self._taken = False
        self.whole = False
        """Whether a peer that takes all of it then has the blob."""
        self.on_frame: Callable[[], None] = _nothing
        self.on_close: Callable[[bool], None] = _nothing_of  # told whether all of it was taken

    def frames(self) -> Iterator[bytes]:
        """Raises: OSError, StoreError when the blob cannot be read."""
        for offset in range(self._start, self._end, calls.MAX_CHUNK_BYTES):
            piece = self._reader.read(offset, min(calls.MAX_CHUNK_BYTES, self._end - offset))
            last = offset + len(piece) >= self._end
            self.on_frame()
            yield calls.encode_chunk(calls.Chunk(offset, piece, last))
        self._taken = True

    def close(self) -> None:
        on_close, self.on_close = self.on_close, _nothing_of
        if on_close is not _nothing_of:
            self._reader.close()
            on_close(self._taken)


def _nothing() -> None:
    pass


def _nothing_of(taken: bool) -> None:
    pass


class PeerService:
    """Answers for one node."""

    def __init__(
        self,
        standing: Standing,
        dial_backs: DialBacks | None = None,
        link: Callable[[], Link] = Link,
    ) -> None:
        self._standing = standing
        self._dial_backs = dial_backs
        self._probes = Probes(standing.now)
        self._slots = Slots(link, standing.now)
        self._allowance = Allowance(
            a_second=CALLS_A_SECOND, at_once=CALLS_AT_ONCE, now=standing.now
        )
        self._answers: dict[Method, Callable[[PeerId, bytes], bytes]] = {
            Method.HELLO: self._on_hello,
            Method.GENESIS: self._on_genesis,
            Method.ANNOUNCE: self._on_announce,
            Method.PUBLISH: self._on_publish,
            Method.MANIFESTS: self._on_manifests,
            Method.SNAPSHOT: self._on_snapshot,
            Method.GIFT: self._on_gift,
            Method.PROBE: self._on_probe,
            Method.DIAL_BACK: self._on_dial_back,
            Method.DIRECT: self._on_direct,
            Method.PUSH: self._on_push,
        }
        self.direct: Callable[[PeerId, DirectOffer], bytes] | None = None
        self.push: Callable[[PeerId, bytes], Digest] | None = None
        """Takes a piece of a packet and tells of which run it is; raises PacketError, Refused."""

    def answer(self, peer: PeerId, method: Method, body: bytes) -> bytes:
        """Raises: Refused."""
        self._check_allowance(peer, b"" if method in (Method.PROBE, Method.PUSH) else body)
        if len(body) > calls.MAX_REQUEST_BYTES:
            raise self._drop(peer, f"a request of {len(body)} bytes")
        try:
            reply = self._answers[method](peer, body)
        except PacketError as error:
            raise self._drop(peer, str(error)) from error
        except Refused:
            raise
        except (DemolocoError, OSError) as error:
            log.warning("answer=failed method=%s peer=%s why=%s", method, short(peer), error)
            raise Refused("this node cannot read what was asked for") from error
        return reply

    def open_stream(self, peer: PeerId, body: bytes) -> BlobStream:
        """Raises: Refused; Busy without a free slot."""
        self._check_allowance(peer, body)
        try:
            run, blob, offset, length = calls.decode_blob_request(body)
        except PacketError as error:
            raise self._drop(peer, str(error)) from error
        self._check_run(peer, run)
        reader = self._opened(blob)
        if offset >= reader.size:
            reader.close()
            raise self._drop(peer, f"offset {offset} of a blob of {reader.size} bytes")
        end = min(reader.size, offset + length) if length else reader.size
        stream = BlobStream(reader, offset, end)
        stream.whole = length == 0  # who resumes has what comes before
        try:
            return self._stream(peer, blob, stream, end - offset)
        except Busy:
            reader.close()
            raise

    def _opened(self, blob: Digest) -> BlobReader:
        """Raises: Refused."""
        try:
            reader = self._standing.library.open_blob(blob)
        except (DemolocoError, OSError) as error:
            log.warning("blob=unreadable blob=%s why=%s", short(blob), error)
            raise Refused("this node cannot read what was asked for") from error
        if reader is None:
            raise Refused(f"{LACKS} {short(blob)}")
        return reader

    def _stream(self, peer: PeerId, blob: Digest, stream: BlobStream, size: int) -> BlobStream:
        """Raises: Busy."""
        slots, holders = self._slots, self._standing.holders
        others = self._others(peer, blob)
        fast = [other for other in holders.of(blob) if other in others and not self._thin(other)]
        if fast and slots.spares(peer, blob, size):
            raise Busy(calls.encode_busy(others))
        upload = slots.take(peer, blob, size)
        if upload is None:
            raise Busy(calls.encode_busy(others))

        def closed(taken: bool) -> None:
            slots.free(upload)
            if taken and stream.whole:
                holders.note(peer, blob)

        stream.on_frame = lambda: slots.moved(upload)
        stream.on_close = closed
        return stream

    def _others(self, peer: PeerId, blob: Digest) -> list[PeerId]:
        """Members that hold the blob or are being sent it, in any order; those first who can send
        much."""
        here = self._standing
        known = {*here.holders.of(blob), *self._slots.taking(blob)} - {peer}
        members = [other for other in known if other in here.roster]
        here.rng.shuffle(members)
        return sorted(members, key=self._thin)

    def _thin(self, peer: PeerId) -> bool:
        row = self._standing.roster.row(peer)
        return row is not None and is_thin(row.member.up)

    def _on_hello(self, peer: PeerId, body: bytes) -> bytes:
        hello = calls.decode_hello(body)
        here = self._standing
        clock_ms = int(here.wall() * 1000)
        if hello.run is not None and here.run is not None:
            self._check_run(peer, hello.run)
            here.take_records(hello.records, peer)
            here.tidings.answered(peer, here.now())
            newer = here.hear_silent(hello.silent, peer)
            reply, told = here.answer_to(peer, hello.known, newer)
            here.tidings.arrived(peer, told)
            records = reply.records + self._newer_words(peer, hello)
            return calls.encode_hello_reply(replace(reply, records=records, clock_ms=clock_ms))
        return calls.encode_hello_reply(calls.Hello(here.run, (), clock_ms))

    def _newer_words(self, peer: PeerId, hello: calls.Hello) -> tuple[bytes, ...]:
        """The caller's own record where a newer one is known: it must outbid that one."""
        newest = self._standing.roster.newest(peer)
        if newest is None or not hello.records or newest in hello.records:
            return ()
        return (newest,)

    def _on_genesis(self, peer: PeerId, body: bytes) -> bytes:
        genesis = self._standing.library.genesis()
        return calls.encode_genesis_reply(encode_genesis(genesis) if genesis else None)

    def _on_announce(self, peer: PeerId, body: bytes) -> bytes:
        run, batch = calls.decode_announcement(body)
        self._check_run(peer, run)
        answer = self._standing.chatter.hear_batch(batch, peer)
        return calls.encode_announcement(run, answer) if answer else b""

    def _on_publish(self, peer: PeerId, body: bytes) -> bytes:
        run, sealed = calls.decode_publication(body)
        self._check_run(peer, run)
        manifest = decode_manifest(sealed, verify)
        self._check_run(peer, manifest.run)
        held = (entry.packet for entry in manifest.entries)
        self._standing.note_holder(manifest.proposer, held)
        self._standing.chatter.hear_manifest(manifest, sealed, peer)
        return b""

    def _on_manifests(self, peer: PeerId, body: bytes) -> bytes:
        run, head, count = calls.decode_manifests_request(body)
        self._check_run(peer, run)
        sealed = self._standing.library.manifests(head, count)
        if not sealed:
            raise Refused(f"it does not have manifest {short(head)}")
        return calls.encode_manifests_reply(sealed)

    def _on_snapshot(self, peer: PeerId, body: bytes) -> bytes:
        self._check_run(peer, calls.decode_snapshot_request(body))
        snapshot = self._standing.library.snapshot()
        if snapshot is None:
            raise Refused("it serves no snapshot yet")
        return encode_snapshot(snapshot)

    def _on_gift(self, peer: PeerId, body: bytes) -> bytes:
        self._check_run(peer, calls.decode_gift_request(body))
        gift = self._standing.library.gift()
        if gift is None:
            raise Refused("it has no gift for joiners now")
        return calls.encode_gift_reply(gift)

    def _on_probe(self, peer: PeerId, body: bytes) -> bytes:
        if self._slots.under_way:
            raise Refused("busy: it sends blobs to members now")
        return self._probes.answer(peer, body)

    def _on_dial_back(self, peer: PeerId, body: bytes) -> bytes:
        port = decode_dial_back_request(body)
        if self._dial_backs is None:
            raise Refused("it dials nobody back")
        return encode_dial_back_reply(self._dial_backs.ask(peer, port))

    def _on_direct(self, peer: PeerId, body: bytes) -> bytes:
        run, offer = decode_direct(body)
        self._check_run(peer, run)
        if self.direct is None:
            raise Refused("it offers no direct road")
        return self.direct(peer, offer)

    def _on_push(self, peer: PeerId, body: bytes) -> bytes:
        if self.push is None:
            raise Refused("it takes no packets unasked")
        self._check_run(peer, self.push(peer, body))
        return b""

    def _check_run(self, peer: PeerId, run: Digest) -> None:
        here = self._standing.run
        if here is None:
            raise Refused("it has not entered a run yet")
        if run != here:
            raise self._drop(peer, f"it is in run {here.hex()}, the call is for run {run.hex()}")

    def _check_allowance(self, peer: PeerId, body: bytes) -> None:
        if not self._allowance.spend(peer, 1 + len(body) // BYTES_A_CALL):
            self._standing.drop(peer, "it calls too often")
            raise Refused(BUSY)

    def _drop(self, peer: PeerId, why: str) -> Refused:
        self._standing.drop(peer, why)
        return Refused(why)
