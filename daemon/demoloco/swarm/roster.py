"""Who is there: the table of members, with the time passed in.

Rule: a record with a higher sequence wins, whoever carried it; a peer is live as long as it
answers or somebody brings a newer record of it; a lost peer comes back only with a record newer
than the one it was lost with. Nothing here does I/O or reads a clock.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, field

from demoloco.types import Member, PeerId, Phase

MAX_MEMBERS = 256
MAX_LOST = 4096
MAX_FORWARDED = 4
"""Records of others that one hello repeats to a peer that already knows an older one."""


def is_goodbye(member: Member) -> bool:
    """A leaving member without an address is gone."""
    return member.phase is Phase.LEAVING and not member.addresses


@dataclass(slots=True)
class Row:
    """What is known of one live member."""

    member: Member
    sealed: bytes
    seen: float
    refusing_since: float | None = None
    told: dict[PeerId, int] = field(default_factory=dict)  # sequence of each record it knows


class Roster:
    """The members of one run, without this node itself."""

    def __init__(self, me: PeerId) -> None:
        self._me = me
        self._rows: dict[PeerId, Row] = {}
        self._lost: dict[PeerId, tuple[int, bytes]] = {}

    def __iter__(self) -> Iterator[PeerId]:
        return iter(tuple(self._rows))

    def __len__(self) -> int:
        return len(self._rows)

    def __contains__(self, peer: object) -> bool:
        return peer in self._rows

    def row(self, peer: PeerId) -> Row | None:
        return self._rows.get(peer)

    def is_news(self, member: Member) -> bool:
        """Whether `take` would change anything; cheap, so that old words need not be checked."""
        known = self.sequence(member.peer)
        full = member.peer not in self._rows and len(self._rows) >= MAX_MEMBERS
        return member.peer != self._me and member.sequence > known and not full

    def take(self, member: Member, sealed: bytes, now: float) -> bool:
        """Keep a checked record if it is news; True if it was."""
        if not self.is_news(member):
            return False
        if is_goodbye(member):
            self._bury(member, sealed)
            return True
        row = self._rows.get(member.peer)
        if row is None:
            self._rows[member.peer] = Row(member, sealed, now)
        else:
            row.member, row.sealed, row.seen = member, sealed, now
            row.refusing_since = None
        self._lost.pop(member.peer, None)
        return True

    def answered(self, peer: PeerId, now: float) -> None:
        """A direct sign of life."""
        if row := self._rows.get(peer):
            row.seen, row.refusing_since = now, None

    def refused(self, peer: PeerId, now: float) -> float:
        """Its machine is there and nobody listens; for how many seconds without a break."""
        row = self._rows.get(peer)
        if row is None:
            return 0.0
        if row.refusing_since is None:
            row.refusing_since = now
        return now - row.refusing_since

    def lose(self, peer: PeerId) -> bool:
        """Strike it off; False if it was not on the list."""
        row = self._rows.get(peer)
        if row is None:
            return False
        self._bury(row.member, row.sealed)
        return True

    def silent(self, now: float, patience: float) -> list[PeerId]:
        """Members without a sign of life for longer than `patience` seconds."""
        return [peer for peer, row in self._rows.items() if now - row.seen > patience]

    def note_told(self, peer: PeerId, about: PeerId, sequence: int) -> None:
        """`peer` knows the record of `about` up to this sequence: we told it, or it told us."""
        if (row := self._rows.get(peer)) and sequence > row.told.get(about, -1):
            row.told[about] = sequence

    def news_for(self, peer: PeerId, rng: random.Random) -> list[tuple[Member, bytes]]:
        """Records that `peer` never had from here, and a few of which it knows an older one."""
        reader = self._rows.get(peer)
        told = reader.told if reader else {}
        others = [row for other, row in self._rows.items() if other != peer]
        unknown = [row for row in others if row.member.peer not in told]
        older = [row for row in others if -1 < told.get(row.member.peer, -1) < row.member.sequence]
        chosen = unknown + rng.sample(older, min(MAX_FORWARDED, len(older)))
        return [(row.member, row.sealed) for row in chosen]

    def newest(self, peer: PeerId) -> bytes | None:
        """The newest record ever taken of this peer, live or lost."""
        if row := self._rows.get(peer):
            return row.sealed
        return self._lost[peer][1] if peer in self._lost else None

    def sequence(self, peer: PeerId) -> int:
        """Of the newest record ever taken of this peer; -1 without one."""
        row = self._rows.get(peer)
        return row.member.sequence if row else self._lost.get(peer, (-1, b""))[0]

    def forgive(self, seconds: float) -> None:
        """This node itself was away for so long; nobody else was silent."""
        for row in self._rows.values():
            row.seen += seconds

    def refresh(self, now: float) -> None:
        """Begin to measure everybody's silence anew."""
        for row in self._rows.values():
            row.seen = now

    def _bury(self, last: Member, sealed: bytes) -> None:
        self._rows.pop(last.peer, None)
        for row in self._rows.values():
            row.told.pop(last.peer, None)
        self._lost.pop(last.peer, None)
        self._lost[last.peer] = (last.sequence, sealed)
        if len(self._lost) > MAX_LOST:
            del self._lost[next(iter(self._lost))]
