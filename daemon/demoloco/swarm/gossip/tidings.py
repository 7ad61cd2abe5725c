"""What a node of a large swarm tells of members, to whom it says hello, and whom it gives up.

Rule: it decides over the roster, and sends nothing; the mesh and the simulator both do what it
says. Times are passed in.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence

from demoloco.swarm.gossip.doubts import Doubts
from demoloco.swarm.gossip.rumours import (
    PARTNERS,
    TABLE_SHARE,
    Rumours,
    Silent,
    draw,
    is_small,
    renewal_seconds,
    same_standing,
)
from demoloco.swarm.roster import MAX_MEMBERS, Roster, is_goodbye
from demoloco.types import Member, PeerId

MAX_TOLD = 64
"""Records of others that one hello carries, but for a newcomer's, that carries all."""

OVERDUE = 2.0
"""A member of which nothing was heard for so many renewals is asked."""


Told = tuple[tuple[PeerId, int], ...]
"""Whose records a peer is told, with the sequence of each."""


class Tidings:
    """The words about members that travel from mouth to mouth."""

    def __init__(
        self, roster: Roster, rng: random.Random, heartbeat_seconds: float, patience_seconds: float
    ) -> None:
        self.doubts = Doubts()
        self._roster = roster
        self._rng = rng
        self._heartbeat = heartbeat_seconds
        self._patience = patience_seconds
        self._rumours: Rumours[PeerId] = Rumours()
        self._spread: dict[PeerId, int] = {}  # sequence of the record that was last a rumour
        self._given: dict[PeerId, float] = {}  # who was given all records, when
        self._was_direct = True

    @property
    def direct(self) -> bool:
        """Whether the swarm is small: then all this rests."""
        return is_small(len(self._roster))

    # -- the beat ----------------------------------------------------------------------------------
    def partners(self, now: float) -> list[PeerId]:
        """Whom this beat greets: some by chance, the doubtful, and who may know of these."""
        if self.direct:
            if not self._was_direct:  # they were not asked often enough to be called silent
                self._roster.refresh(now)
            self._was_direct = True
            return list(self._roster)
        self._was_direct = False
        period = renewal_seconds(len(self._roster), self._heartbeat)
        for peer in self._roster.silent(now, OVERDUE * period):
            self.doubts.hear(peer)
        others = [peer for peer in self._roster if peer not in self.doubts]
        chosen = dict.fromkeys(self.doubts.to_ask())
        chosen |= dict.fromkeys(draw(self._rng, others, PARTNERS))
        chosen |= dict.fromkeys(peer for peer in self.doubts.witnesses() if peer in self._roster)
        return list(chosen)

    def gone(self, now: float) -> list[PeerId]:
        """Who is to be given up."""
        if self.direct:
            return self._roster.silent(now, self._patience)
        return [peer for peer in self.doubts.gone(now, self._patience) if peer in self._roster]

    # -- what a hello carries ----------------------------------------------------------------------
    def greets(self, peer: PeerId, now: float) -> Told:
        """This node says hello: whose records the peer is told."""
        if self.direct:
            return self._all_news(peer)
        if peer in self._roster:
            self.doubts.asked(peer, now)
        return self._named(self._rumours.tell(peer, MAX_TOLD))

    def answers(self, peer: PeerId, knows: int, newer: Sequence[PeerId], now: float) -> Told:
        """The peer said hello, knows so many members, and misses `newer` words of some."""
        if self.direct:
            return self._all_news(peer)
        news = self._rumours.tell(peer, MAX_TOLD)
        names = dict.fromkeys((*newer, *news, *self._table_for(peer, knows, now)))
        return self._named(list(names)[: MAX_MEMBERS - 2])

    def arrived(self, peer: PeerId, told: Told) -> None:
        """The peer has these records now."""
        if self.direct:
            for about, sequence in told:
                self._roster.note_told(peer, about, sequence)

    def untold(self, peer: PeerId, told: Told) -> None:
        """They did not arrive."""
        if not self.direct:
            self.doubts.unanswered(peer)
            self._rumours.untell(peer, [one for one, _ in told if one in self._roster])

    def silent_for(self, peer: PeerId, now: float) -> tuple[Silent, ...]:
        """Whom to name to this peer as silent."""
        if self.direct:
            return ()
        named = (one for one in self.doubts.silent(peer) if one != peer and one in self._roster)
        return tuple(
            Silent(one, self._roster.sequence(one), int(1000 * self.doubts.seconds(one, now)))
            for one in named
        )

    def _all_news(self, peer: PeerId) -> Told:
        news = self._roster.news_for(peer, self._rng)
        return tuple((member.peer, member.sequence) for member, _ in news)

    def _named(self, names: Iterable[PeerId]) -> Told:
        return tuple((name, self._roster.sequence(name)) for name in names)

    def _table_for(self, peer: PeerId, knows: int, now: float) -> list[PeerId]:
        """All members for a peer that knows few of them, but not again and again."""
        period = renewal_seconds(len(self._roster), self._heartbeat)
        fed = now - self._given.get(peer, float("-inf")) < period
        if fed or knows >= TABLE_SHARE * len(self._roster):
            return []
        self._given[peer] = now
        return [other for other in self._roster if other != peer]

    # -- what came ---------------------------------------------------------------------------------
    def took(self, member: Member, before: Member | None, carrier: PeerId, now: float) -> None:
        """The roster took this record; `before` is the one that it had."""
        peer = member.peer
        if self.direct:
            self._roster.note_told(carrier, peer, member.sequence)
            self._spread[peer] = member.sequence
            return
        if is_goodbye(member):
            self.doubts.drop(peer)
            serious = True
        elif carrier == peer:
            serious = self.doubts.answered(peer)
        else:
            serious = self.doubts.newer(peer, now, self._patience)
        aged = 1000 * renewal_seconds(len(self._roster), self._heartbeat)
        due = member.sequence - self._spread.get(peer, 0) >= aged
        if serious or due or before is None or not same_standing(before, member):
            self._spread[peer] = member.sequence
            self._rumours.start(peer, (carrier, peer))

    def heard_again(self, member: Member, carrier: PeerId) -> None:
        """A record came that is no news here."""
        if self.direct:
            self._roster.note_told(carrier, member.peer, member.sequence)
        else:
            self._rumours.heard_again(member.peer, carrier)

    def answered(self, peer: PeerId, now: float) -> None:
        """It answered this node, or called it."""
        self._roster.answered(peer, now)
        if self.doubts.answered(peer):
            self._rumours.start(peer, (peer,))

    def refused(self, peer: PeerId, now: float) -> bool:
        """Its machine is there and nobody listens; True when that lasts."""
        self.doubts.refused(peer)
        return self._roster.refused(peer, now) >= self._heartbeat

    def hear_silent(
        self, silent: Sequence[Silent], teller: PeerId
    ) -> tuple[list[PeerId], list[PeerId]]:
        """Others' doubts: of whom the teller needs a newer word that is here, and whom to ask."""
        newer: list[PeerId] = []
        ask: list[PeerId] = []
        for one in () if self.direct else silent:
            row = self._roster.row(one.peer)
            if row is None or one.peer == teller:
                continue
            if row.member.sequence > one.sequence and not self.doubts.is_serious(one.peer):
                newer.append(one.peer)
            else:
                self.doubts.hear(one.peer, one.asked_ms / 1000)
                ask.append(one.peer)
        return newer, ask

    def is_minor(self, before: Member, after: Member) -> bool:
        """Whether this change of the own record may wait for the next beat."""
        if self.direct:
            return False
        return before.head == after.head and same_standing(before, after)

    def lost(self, peer: PeerId) -> None:
        """It is no member any longer."""
        self.doubts.drop(peer)
        self._rumours.drop(peer)
        self._spread.pop(peer, None)
        self._given.pop(peer, None)
