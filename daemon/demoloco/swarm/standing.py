"""What one node of the swarm is and knows: its run, its record, the members, where they can be
dialled.

Rule: the mesh, the service and the fetcher share one Standing; records of others enter it only
through `take_records`, which checks them first.
"""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace

from demoloco.bounds import MAX_ADDRESSES
from demoloco.errors import PacketError, SwarmError
from demoloco.swarm.blobs.arriving import Arriving
from demoloco.swarm.blobs.holders import Holders
from demoloco.swarm.calls import Hello, fitting
from demoloco.swarm.clocks import Clocks
from demoloco.swarm.complaints import Complaints
from demoloco.swarm.gossip.chatter import Chatter
from demoloco.swarm.gossip.rumours import Silent
from demoloco.swarm.gossip.tidings import Tidings, Told
from demoloco.swarm.identity import Identity, verify
from demoloco.swarm.port import Library, Link, MemberLost, MemberSeen, SwarmEvent
from demoloco.swarm.roster import Roster, is_goodbye
from demoloco.swarm.timing import Timing
from demoloco.swarm.twice import Twice
from demoloco.types import Digest, Member, PeerId, Phase, short
from demoloco.wire import decode_member, encode_member, seal

log = logging.getLogger(__name__)

MAX_KNOWN = 512
MAX_HELLO_BYTES = 256 << 10


@dataclass
class Standing:
    """Shared by the parts of one swarm adapter; one event loop, so no locks."""

    identity: Identity
    emit: Callable[[SwarmEvent], None]
    library: Library
    rng: random.Random
    now: Callable[[], float]
    wall: Callable[[], float] = time.time
    timing: Timing = field(default_factory=Timing)
    ask: Callable[[PeerId], None] = lambda peer: None  # say hello to it, now
    run: Digest | None = None
    record: Member | None = None
    sealed: bytes = b""
    dropped: int = 0
    failed_calls: int = 0
    known: dict[PeerId, tuple[str, ...]] = field(default_factory=dict)
    pinned: dict[PeerId, tuple[str, ...]] = field(default_factory=dict)
    _sequence: int = 0

    def __post_init__(self) -> None:
        self.roster = Roster(self.identity.peer_id)
        seconds = self.timing.heartbeat_seconds, self.timing.patience_seconds
        self.chatter = Chatter(self)
        self.tidings = Tidings(self.roster, self.rng, *seconds)
        self.clocks = Clocks()
        self.holders = Holders()
        self.arriving = Arriving(self)
        self._complaints = Complaints()
        self._twice = Twice(self.rng)

    def drop(self, peer: PeerId, why: str) -> None:
        """Something that this peer sent is of no use: count it, and let the operator know."""
        self.dropped += 1
        self._complaints.note(peer, why, self.now())

    def note_holder(self, peer: PeerId, packets: Iterable[Digest]) -> None:
        """This peer says that it holds these; what strangers say is of no use."""
        if peer in self.roster:
            for packet in packets:
                self.holders.note(peer, packet)

    @property
    def own_run(self) -> Digest:
        """Raises: SwarmError before the node has entered a run."""
        if self.run is None:
            raise SwarmError("this node has not entered a run yet")
        return self.run

    def renew(self) -> None:
        """Sign the own record again, newer than every one before."""
        if self.record is None:
            return
        now_ms = int(self.wall() * 1000)
        self._sequence = max(self._sequence + 1, self.record.sequence, now_ms)
        self.record = replace(self.record, sequence=self._sequence)
        self.sealed = seal("member", self.identity.sign, encode_member(self.record))

    def goodbye(self) -> None:
        """Turn the own record into one that says that this node is gone."""
        if self.record is not None:
            self.record = replace(self.record, phase=Phase.LEAVING, addresses=())
            self.renew()

    def hello_to(self, peer: PeerId) -> tuple[Hello, Told]:
        """What to tell this peer now, and whose records are in it."""
        hello, told = self._hello(peer, self.tidings.greets(peer, self.now()))
        return replace(hello, known=len(self.roster)), told

    def answer_to(self, peer: PeerId, knows: int, newer: Sequence[PeerId]) -> tuple[Hello, Told]:
        """The same in answer to a peer that knows so many members, and lacks newer words."""
        return self._hello(peer, self.tidings.answers(peer, knows, newer, self.now()))

    def _hello(self, peer: PeerId, told: Told) -> tuple[Hello, Told]:
        news = [self.roster.newest(name) or b"" for name, _ in told]
        records = fitting([self.sealed, *news], MAX_HELLO_BYTES)
        silent = self.tidings.silent_for(peer, self.now())
        kept = tuple(record for record in records if record)
        return Hello(self.run, kept, silent=silent), told[: len(records) - 1]

    def hear_silent(self, silent: Sequence[Silent], teller: PeerId) -> list[PeerId]:
        """A peer names who did not answer it: these are asked; of whom it needs newer words."""
        newer, ask = self.tidings.hear_silent(silent, teller)
        for peer in ask:
            self.ask(peer)
        return newer

    def take_records(self, records: Iterable[bytes], carrier: PeerId) -> None:
        """Check what a peer carried, keep what is news, count and drop what is wrong."""
        for sealed in records:
            try:
                self._take(sealed, carrier)
            except PacketError as error:
                self.drop(carrier, f"a member record: {error}")

    def take_hints(self, records: Iterable[bytes]) -> None:
        """Where somebody may be. A record that lay about says nothing of who is live now."""
        for sealed in records:
            try:
                member = decode_member(sealed, verify)
            except PacketError:
                self.dropped += 1
                continue
            if member.run == self.run and member.peer not in self.roster:
                self.remember(member.peer, member.addresses)

    def lose(self, peer: PeerId, why: str) -> None:
        if self.roster.lose(peer):
            self.tidings.lost(peer)
            log.debug("member=lost peer=%s why=%s", short(peer), why)
            self.emit(MemberLost(peer, why))

    def claims(self, peer: PeerId) -> Link:
        """What this peer says that its link carries."""
        row = self.roster.row(peer)
        return Link(up=row.member.up, down=row.member.down) if row else Link()

    def remember(self, peer: PeerId, addresses: tuple[str, ...]) -> None:
        """Where this peer can be dialled; the one not heard of for longest is forgotten first."""
        if not addresses or peer == self.identity.peer_id:
            return
        self.known.pop(peer, None)
        wanted = (*self.pinned.get(peer, ()), *addresses)
        self.known[peer] = tuple(dict.fromkeys(wanted))[:MAX_ADDRESSES]
        if len(self.known) > MAX_KNOWN:
            del self.known[next(iter(self.known))]

    def pin(self, peer: PeerId, address: str) -> None:
        """The operator says that this peer is there, whatever it says itself."""
        self.pinned[peer] = (*self.pinned.get(peer, ()), address)
        self.remember(peer, self.known.get(peer, (address,)))

    def _take(self, sealed: bytes, carrier: PeerId) -> None:
        claimed = decode_member(sealed, _unchecked)
        if claimed.run != self.run:
            raise PacketError(f"a member record is of run {short(claimed.run)}")
        mine = claimed.peer == self.identity.peer_id
        if mine and claimed.sequence <= self._sequence:
            return
        if not mine and not self.roster.is_news(claimed):
            self.tidings.heard_again(claimed, carrier)
            return
        member = decode_member(sealed, verify)
        if mine:  # words of an earlier life, from a clock that went ahead of this one, or a twin's
            self._sequence = self._twice.outbid(member.sequence, self.now())
            return
        self._welcome(member, sealed, carrier)

    def _welcome(self, member: Member, sealed: bytes, carrier: PeerId) -> None:
        row = self.roster.row(member.peer)
        before, known = row.member if row else None, row is not None
        self.roster.take(member, sealed, self.now())
        self.tidings.took(member, before, carrier, self.now())
        self.remember(member.peer, member.addresses)
        if not is_goodbye(member):
            if not known:
                log.debug("member=seen peer=%s", short(member.peer))
            self.emit(MemberSeen(member))
        elif known:
            log.debug("member=lost peer=%s why=said goodbye", short(member.peer))
            self.emit(MemberLost(member.peer, "said goodbye"))


def _unchecked(peer: PeerId, message: bytes, signature: bytes) -> bool:
    return True
