"""What the operator sees: collects figures from all parts and keeps the feed's status current.

Rule: reads, never decides. Everybody may count and write lines here.
"""

from __future__ import annotations

import logging
import math
import time
from collections import Counter
from dataclasses import asdict

from demoloco.node.account import Account
from demoloco.node.diligence import Diligence
from demoloco.node.feed import Feed, MemberStatus
from demoloco.rounds.machine import Machine
from demoloco.swarm.port import Swarm
from demoloco.types import Entry, Head, Manifest, Member, PeerId, Round, short
from demoloco.worker.port import Evaluated, Progress

REFRESH_SECONDS = 0.2
SILENT_SECONDS = 5.0
"""Without a word for so long, more than two heartbeats, a member may be out of reach."""
ALONE = (
    "alone: no other member is reachable; this node trains on by itself, and dials those it knows"
    " for ever"
)


class Report:
    """The figures behind Status."""

    def __init__(self, feed: Feed, swarm: Swarm, me: PeerId) -> None:
        self._feed = feed
        self._swarm = swarm
        self._me = me
        self._counters: Counter[str] = Counter()
        self._members: dict[PeerId, tuple[Member, float]] = {}
        self._refreshed = -math.inf
        self._first_evaluation: float | None = None
        self._alone: bool | None = None
        self._packet_at = 0.0
        self._round_at = 0.0
        self.account = Account(me)
        self.diligence = Diligence()
        self.dense_bytes = 0
        self.hindrance = ""
        """What holds up the node itself, whatever the machine waits for."""

    # -- lines and counts --------------------------------------------------------------------------
    def count(self, what: str, by: int = 1) -> None:
        self._counters[what] += by

    def line(self, event: str, **facts: object) -> None:
        self._feed.line(event, level=logging.INFO, **facts)

    def warn(self, event: str, **facts: object) -> None:
        self._feed.warn(event, **facts)

    def debug(self, event: str, **facts: object) -> None:
        self._feed.line(event, level=logging.DEBUG, **facts)

    # -- members -----------------------------------------------------------------------------------
    @property
    def others(self) -> tuple[Member, ...]:
        """All members but this node."""
        return tuple(member for member, _ in self._members.values())

    @property
    def speed(self) -> float:
        """Samples a second of this node, as it trains; 0 = not known."""
        return self._feed.status.samples_per_second

    def member_seen(self, member: Member) -> None:
        if member.peer not in self._members:
            self.line("member came", peer=short(member.peer), phase=str(member.phase))
        self._members[member.peer] = (member, time.monotonic())
        if self._alone:
            self.line("no longer alone", members=len(self._members) + 1)
        self._alone = False

    def member_lost(self, peer: PeerId, why: str) -> None:
        if self._members.pop(peer, None) is not None:
            self.line("member went", peer=short(peer), why=why)
            if not self._members:
                self.alone()

    def alone(self) -> None:
        """Say so, once each time it begins."""
        if self._alone is not True:
            self._alone = True
            self.warn(ALONE)

    def _look_around(self, manifest: Manifest) -> None:
        """A round that nobody else took part in, nor gave a sign of life: this node is alone."""
        nobody_else = all(entry.contributor == self._me for entry in manifest.entries)
        since = time.monotonic() - SILENT_SECONDS
        if nobody_else and all(seen < since for _, seen in self._members.values()):
            self.alone()

    # -- rounds ------------------------------------------------------------------------------------
    def packet_made(self, round: Round, size: int, k: int, k_why: str) -> None:
        self.debug("packet made", round=round, k=k, bytes=size)
        self._packet_at = time.monotonic()
        self._feed.update(packet_bytes=size, compression=self.dense_bytes / size, k=k, k_why=k_why)

    def round_applied(self, manifest: Manifest, mine_was_out: bool) -> None:
        """One manifest of the winning chain more."""
        self._look_around(manifest)
        entry = self.account.enter(manifest, mine_was_out)
        self._time_round(mine_was_out)
        self.line(
            "round committed",
            round=manifest.round,
            head=short(manifest.digest),
            packets=len(manifest.entries),
            samples=sum(e.samples for e in manifest.entries),
            bytes=sum(e.size for e in manifest.entries),
            mine="in" if entry is not None else "out",
            own_samples=_samples_of(entry),
            proposer=short(manifest.proposer),
        )

    def _time_round(self, mine_was_out: bool) -> None:
        now = time.monotonic()
        if self._round_at:
            self._feed.update(round_seconds=now - self._round_at)
        if mine_was_out and self._packet_at:
            self._feed.update(exchange_seconds=now - self._packet_at)
        self._round_at = now

    def round_undone(self, manifest: Manifest) -> None:
        """A manifest left the winning chain."""
        entry = self.account.undo(manifest)
        self.warn(
            "round undone",
            round=manifest.round,
            head=short(manifest.digest),
            own_samples=_samples_of(entry),
        )

    # -- the worker --------------------------------------------------------------------------------
    def stands(self, round: int, source: str) -> None:
        """Where a worker's model starts from, and what was lost on the way there."""
        lost = self.account.take_lost()
        facts = {"samples_lost": lost} if lost else {}
        self.count("samples_lost", lost)
        (self.warn if lost else self.line)("worker stands", round=round, on=source, **facts)

    def progress(self, progress: Progress) -> None:
        self.account.hear(progress.learnt)
        self.diligence.hear(progress.busy_seconds)
        self._feed.update(
            loss=progress.loss if math.isfinite(progress.loss) else None,
            samples_per_second=progress.samples_per_second,
            inner_step=progress.step,
            inner_steps=progress.steps,
        )

    def evaluated(self, evaluation: Evaluated) -> None:
        if self._first_evaluation is None:
            self._first_evaluation = evaluation.loss
        self._feed.update(
            eval_loss=evaluation.loss,
            eval_round=evaluation.round,
            eval_loss_first=self._first_evaluation,
        )
        self.line("evaluated", round=evaluation.round, eval_loss=round(evaluation.loss, 4))

    # -- status ------------------------------------------------------------------------------------
    def refresh(self, machine: Machine, force: bool = False) -> None:
        """Bring the feed up to date; cheap to call after every event."""
        now = time.monotonic()
        status = self._feed.status
        head = machine.head
        moment = (str(machine.phase), head.round if head is not None else 0)
        if not force and moment == status.moment and now - self._refreshed < REFRESH_SECONDS:
            return
        self._refreshed = now
        traffic = self._swarm.traffic
        packets, packet_bytes = self._swarm.packets_received()
        self._feed.update(
            round=moment[1],
            head=head.digest.hex() if head is not None else "",
            fingerprint=machine.fingerprint.hex() if head is not None else "",
            phase=moment[0],
            why=self.hindrance or machine.why(),
            members=self._member_table(machine, now),
            bytes_sent=traffic.sent,
            bytes_received=traffic.received,
            packets_received=packets,
            packet_bytes_received=packet_bytes,
            up=self._swarm.link.up,
            down=self._swarm.link.down,
            training_share=self.diligence.share,
            samples_learnt=self.account.learnt,
            samples_owed=machine.state.labour.owed_samples,
            counters=self._all_counters(),
            **asdict(self.account.shown),
        )

    def _all_counters(self) -> dict[str, int]:
        traffic = self._swarm.traffic
        swarm = {"messages_dropped": traffic.dropped, "calls_failed": traffic.failed_calls}
        return {**swarm, **self._counters}

    def _member_table(self, machine: Machine, now: float) -> tuple[MemberStatus, ...]:
        status = self._feed.status
        me = MemberStatus(
            peer_id=self._me,
            round=_round_of(machine.head),
            head=machine.head.digest.hex() if machine.head is not None else "",
            phase=str(machine.phase),
            samples_per_second=status.samples_per_second,
            me=True,
            addresses=self._swarm.addresses,
            up=status.up,
            down=status.down,
        )
        others = (
            MemberStatus(
                peer_id=member.peer,
                round=_round_of(member.head),
                head=member.head.digest.hex() if member.head is not None else "",
                phase=str(member.phase),
                samples_per_second=member.samples_per_second,
                seen_seconds_ago=now - seen,
                addresses=member.addresses,
                road=self._swarm.road(member.peer),
                up=member.up,
                down=member.down,
            )
            for member, seen in self._members.values()
        )
        return (me, *sorted(others, key=lambda member: member.peer_id))


def _samples_of(entry: Entry | None) -> int:
    return entry.samples if entry is not None else 0


def _round_of(head: Head | None) -> int:
    return head.round if head is not None else 0
