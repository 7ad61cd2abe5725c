"""All facts that one node's protocol knows, and how each event changes them.

Rule: handlers note, they do not want; `decide.py` wants. The exceptions are Notes for the operator
and Adopt, which answers a snapshot that arrived.
"""

from __future__ import annotations

import math
from typing import assert_never

from demoloco.rounds import events as ev
from demoloco.rounds.chain import Chain, Path
from demoloco.rounds.effects import Adopt, Commit, Effect, Note, Say
from demoloco.rounds.facts import (
    ASIDE_SECONDS,
    Errands,
    Labour,
    Leaving,
    Members,
    Refused,
    Settings,
)
from demoloco.rounds.open_round import Held, Offers, OpenRound
from demoloco.rounds.rules import genesis_head, head_of, heavier, offers_of, told_by
from demoloco.rounds.tempo import Tempo
from demoloco.types import NO_DIGEST, Digest, Head, Manifest, Offer, PeerId, Phase, Round, short

REUNION_SECONDS = 10.0
"""After a restart a node that was not alone waits so long for another before it closes alone."""

SNAPSHOT = NO_DIGEST
"""The name of the errand for a snapshot."""


class State:
    """The facts. `chain` and `round` are None while joining."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.chain: Chain | None = None
        self.round: OpenRound | None = None
        self.fingerprint = NO_DIGEST
        self.labour = Labour()
        self.leaving: Leaving | None = None
        self.members = Members()
        self.offers = Offers()
        self.errands = Errands()
        self.held: dict[Digest, Held] = {}  # packets that are here and checked
        self.asked: dict[Digest, Offer] = {}  # packets that are being fetched, as they must be
        # Apply or Adopt under way; the event itself where nobody knows the way to the snapshot
        self.moving: Path | ev.SnapshotFetched | None = None
        self.broken: set[Digest] = set()  # manifests that do not start from the state that I have
        self.doubted: set[Digest] = set()  # the same, before I took a snapshot for them
        self.rootless: set[Digest] = set()  # manifests that need what my disk has not
        self.refused = Refused()  # manifests, and offers of packets
        self.aside: dict[Digest, float] = {}  # heads that are not to be had, until when
        self.said: Say | None = None
        self.why = "starting"
        self.wakes: list[float] = []
        self.wake: float | None = None  # the WakeMe that is out
        self.stopped = False
        self.reunion_until = -math.inf  # so long those are waited for who were here before
        self.tempo = Tempo()

    def target(self) -> Head | None:
        """The heaviest head that is known to be heavier than mine, or None."""
        if self.chain is None:
            return None
        best = mine = self.chain.head
        for head in self.chain.heads():
            if heavier(head, best) and not self._is_out(head.digest):
                best = head
        for head in self.members.heads():
            if head.samples_total < mine.samples_total or head.digest == mine.digest:
                continue  # most are, and this is asked again and again
            known = self.chain.knows(head.digest)  # then I need nobody's word of it
            if heavier(head, best) and not known and not self._is_out(head.digest):
                best = head
        return best if best is not mine else None

    def _is_out(self, head: Digest) -> bool:
        return head in self.refused or head in self.aside

    def company(self) -> frozenset[PeerId]:
        """Who has a part in the open round beside me: who trains or exchanges; where all leave,
        they are left to each other."""
        others = self.members.contributing()
        return others if others or self.leaving is None else self.members.leaving()

    def phase(self) -> Phase:
        if self.leaving is not None:
            return Phase.LEAVING
        if self.chain is None:
            return Phase.JOINING
        target = self.target()
        if not self.labour.standing or (target and target.round > self.chain.head.round + 1):
            return Phase.CATCHING_UP
        told = self.round is not None and self.round.mine is not None
        return Phase.EXCHANGING if told else Phase.TRAINING

    # -- events ------------------------------------------------------------------------------------
    def note(self, event: ev.Event, now: float) -> list[Effect]:
        """Take the event into the facts."""
        if any(until <= now for until in self.aside.values()):
            self.aside = {head: until for head, until in self.aside.items() if until > now}
        if isinstance(event, ev.Word):
            return self._note_word(event, now)
        if isinstance(event, ev.ErrandEnd):
            return self._note_errand_end(event, now)
        return self._note_doing(event, now)

    def _note_word(self, event: ev.Word, now: float) -> list[Effect]:
        match event:
            case ev.MemberSeen(member):
                if member.peer not in self.members:
                    self.aside.clear()  # it may have what the others lack
                self.members.see(member)
            case ev.MemberLost(peer):
                self.members.lose(peer)
            case ev.OffersHeard():
                self._on_offers_heard(event, now)
            case ev.ManifestHeard(holder, manifest):
                return self._on_manifests(holder, (manifest,), now)
            case _:  # pragma: no cover
                assert_never(event)
        return []

    def _note_errand_end(self, event: ev.ErrandEnd, now: float) -> list[Effect]:
        match event:
            case ev.ManifestsFetched(holder, manifests):
                self.errands.done(manifests[0].digest)
                return self._on_manifests(holder, tuple(reversed(manifests)), now)
            case ev.ManifestsFailed(_, head):
                self.errands.failed(head, now)
            case ev.PacketFetched():
                self._on_packet_fetched(event, now)
            case ev.PacketRefused(packet):
                self._on_packet_refused(packet)
            case ev.FetchFailed(packet):
                self.errands.failed(packet, now)
            case ev.SnapshotFetched():
                return self._on_snapshot_fetched(event, now)
            case ev.SnapshotFailed(why):
                self.errands.failed(SNAPSHOT, now)
                return [Note(f"snapshot not fetched: {why}", warning=True)]
            case _:  # pragma: no cover
                assert_never(event)
        return []

    def _note_doing(self, event: ev.Doing, now: float) -> list[Effect]:
        match event:
            case ev.Started():
                return self._on_started(event, now)
            case ev.WorkerCame():
                self.labour.worker = True
            case ev.WorkerLost(owed_samples):
                self.labour = Labour(owed_samples=owed_samples)
            case ev.Trained(samples):
                out = self.round.samples_out if self.round is not None else 0
                self.labour.trained(samples, out)
            case ev.Contributed():
                self._on_contributed(event, now)
            case ev.Applied():
                return self._on_applied(event, now)
            case ev.ApplyFailed():
                return self._on_apply_failed(event)
            case ev.LeaveRequested(at_once):
                self._on_leave_requested(at_once, now)
            case ev.Woken():
                self.wake = None
            case _:  # pragma: no cover
                assert_never(event)
        return []

    def _on_started(self, event: ev.Started, now: float) -> list[Effect]:
        self.chain = Chain(event.head, self.settings.creator)
        for manifest in event.chain:
            self.chain.learn_applied(manifest)
        self.fingerprint = event.fingerprint
        self.labour.owed_samples = event.owed_samples
        others = set(self.chain.contributors(event.head.digest)) - {self.settings.me}
        if event.head.round > 0 and others:
            self.reunion_until = now + REUNION_SECONDS
        self._open(now)
        pending = event.pending
        if self.round is not None and pending is not None and pending.parent == self.round.parent:
            self._have_made(self.round, pending, event.pending_norm)
        return [Note(f"standing at round {event.head.round}, head {short(event.head.digest)}")]

    def _on_offers_heard(self, event: ev.OffersHeard, now: float) -> None:
        for offer in event.offers:
            if offer.contributor == self.settings.me:
                if offer.packet in self.held:
                    self.offers.holds(event.holder, offer.packet)
            elif offer not in self.refused and offer.samples > 0:
                self.offers.hear(event.holder, offer)
                self.tempo.came(offer.parent, offer.contributor, now)
                self.errands.give_another_chance(offer.packet)

    def _on_manifests(
        self, holder: PeerId, manifests: tuple[Manifest, ...], now: float
    ) -> list[Effect]:
        """`manifests`: oldest first."""
        notes: list[Effect] = []
        for manifest in manifests if self.chain is not None else ():
            if manifest.run != self.settings.run or manifest.digest in self.refused:
                continue
            assert self.chain is not None
            if (fault := self.chain.add(manifest)) is not None:
                notes.append(
                    self.refuse(manifest.digest, f"of {short(manifest.proposer)}: {fault}")
                )
                continue
            self.aside.pop(manifest.digest, None)
            for entry in manifest.entries:
                self.offers.holds(holder, entry.packet)
            if self.round is not None and manifest.parent == self.round.parent:
                self.round.heard = now
        return notes

    def refuse(self, head: Digest, why: str) -> Note:
        """Never go to this head."""
        self.refused.add(head)
        return Note(f"manifest {short(head)} refused, {why}", warning=True)

    def set_aside(self, head: Digest, why: str, now: float) -> Note:
        """Do not go to this head for a while; then all is tried anew."""
        self.errands.forget_idle()
        self.aside[head] = now + ASIDE_SECONDS
        return Note(f"head {short(head)} left aside: {why}", warning=True)

    def is_false(self, manifest: Manifest) -> bool:
        """Does it contradict what its packets say themselves, or has it been refused?"""
        return manifest.digest in self.refused or any(
            claim in self.refused
            or (claim.packet in self.held and self.held[claim.packet].offer != claim)
            for claim in offers_of(manifest)
        )

    def _on_packet_fetched(self, event: ev.PacketFetched, now: float) -> None:
        seconds = self.errands.seconds(event.packet, now)
        self.errands.done(event.packet)
        offer = self.asked.pop(event.packet, None)
        if offer is not None:
            self.tempo.travelled(seconds)
            self.held[event.packet] = Held(offer, event.norm)
            if self.round is not None and offer.parent == self.round.parent:
                self.round.take_in(offer)
                self.round.arrivals.setdefault(offer.contributor, now)
            if self.round is not None and offer.contributor in self.members.leaving():
                self.round.announced = -math.inf  # it waits for that

    def _on_packet_refused(self, packet: Digest) -> None:
        self.errands.done(packet)
        offer = self.asked.pop(packet, None)
        if offer is not None:
            self.refused.add(offer)
            self.offers.refuse(offer)

    def _on_snapshot_fetched(self, event: ev.SnapshotFetched, now: float) -> list[Effect]:
        genesis = genesis_head(self.settings.run)
        if event.head != (genesis if event.manifest is None else head_of(event.manifest)):
            self.errands.failed(SNAPSHOT, now)
            return [Note("snapshot refused: its head is not its manifest's", warning=True)]
        if self.chain is None:
            self.errands.done(SNAPSHOT)
            self.chain = Chain(event.head, self.settings.creator)
            self.chain.restart(event.head, event.manifest)
            self.fingerprint = event.fingerprint
            self._open(now)
            return [Note(f"took the agreed state of round {event.head.round}")]
        wanted = bool(self.broken) or heavier(event.head, self.chain.head)
        if self.moving is not None or event.head.digest in self.refused or not wanted:
            self.errands.failed(SNAPSHOT, now)
            return []
        return self._adopt(event, now)

    def _adopt(self, event: ev.SnapshotFetched, now: float) -> list[Effect]:
        """Where the way to it is known, what it tells of me is accounted for as on any other."""
        assert self.chain is not None
        try:
            way = self._way_to_snapshot(self.chain, event)
        except ValueError as fault:
            self.errands.failed(SNAPSHOT, now)
            return [self.refuse(event.head.digest, str(fault))]
        self.errands.done(SNAPSHOT)
        self.doubted, self.broken = self.broken, set()
        self.moving = way if isinstance(way, Path) else event
        durable = [Commit(manifest) for manifest in way.redo] if isinstance(way, Path) else []
        return [*durable, Adopt(event.head, event.fingerprint)]

    @staticmethod
    def _way_to_snapshot(chain: Chain, event: ev.SnapshotFetched) -> Path | Digest:
        if event.manifest is not None and (fault := chain.add(event.manifest)) is not None:
            raise ValueError(fault)
        return chain.path_to(event.head.digest)

    def _on_contributed(self, event: ev.Contributed, now: float) -> None:
        self.labour.contributing = False
        if self.round is not None and event.offer.parent == self.round.parent:
            self._have_made(self.round, event.offer, event.norm)
            self.round.arrivals[self.settings.me] = now + self.tempo.travel()
            self.round.announced = -math.inf
            self.labour.ready = False

    def _have_made(self, round_: OpenRound, mine: Offer, norm: float) -> None:
        self.held[mine.packet] = Held(mine, norm)
        round_.mine = round_.present[mine.contributor] = mine

    def _on_applied(self, event: ev.Applied, now: float) -> list[Effect]:
        assert self.chain is not None
        assert self.round is not None
        moving, self.moving = self.moving, None
        self.rootless.clear()
        had_told = self.round.mine is not None
        notes: list[Effect] = []
        redo = moving.redo if isinstance(moving, Path) else ()
        self.round.teach(self.tempo, self.settings.me, redo, now)
        if isinstance(moving, Path):
            self.chain.move(moving, event.head)
            me = self.settings.me
            self.labour.account(told=told_by(me, moving.redo), untold=told_by(me, moving.undo))
            if moving.undo:
                self.labour.ready |= had_told and self.labour.owed_samples > 0
                lost, won = len(moving.undo), len(moving.redo)
                notes.append(
                    Note(f"left {lost} round(s) of a lighter chain for {won} of a heavier")
                )
            self.doubted -= {manifest.digest for manifest in moving.redo}
        else:
            assert moving is not None
            self.chain.restart(event.head, moving.manifest)
            self.labour.account(told=event.told, untold=event.untold)
            notes += self._unaccounted(event)
        notes += self._forget(event.lost)
        if self.leaving is not None and self.leaving.tell:
            self.labour.ready |= self.labour.owed_samples > 0
        self.fingerprint = event.fingerprint
        self._open(now)
        return notes

    def _forget(self, samples: int) -> list[Effect]:
        """So much that is owed is not in the worker's model."""
        lost = self.labour.forget(samples)
        if lost == 0:
            return []
        text = f"{lost} samples that were owed are lost: what held them is gone from the disk"
        return [Note(text, warning=True)]

    @staticmethod
    def _unaccounted(event: ev.Applied) -> list[Effect]:
        if event.unknown is None:
            return []
        rounds = f"what was told in rounds up to {event.unknown} cannot be accounted for"
        return [Note(f"{rounds}: nobody has their manifests; it stays as it is", warning=True)]

    def _on_apply_failed(self, event: ev.ApplyFailed) -> list[Effect]:
        """My state is wrong, or the manifest: a snapshot tells."""
        self.moving = None
        if event.lacking:
            self.rootless.add(event.manifest)
            return [Note(f"manifest {short(event.manifest)} waits for a snapshot: {event.why}")]
        if event.manifest in self.doubted:
            self.doubted.discard(event.manifest)
            return [self.refuse(event.manifest, f"it does not apply: {event.why}")]
        self.broken.add(event.manifest)
        return [Note(f"manifest {short(event.manifest)} does not apply: {event.why}", warning=True)]

    def _on_leave_requested(self, at_once: bool, now: float) -> None:
        if at_once:
            self.leaving = Leaving(now, tell=False)
        elif self.leaving is None:
            self.leaving = Leaving(now + self.settings.leave_seconds, tell=True)

    def _open(self, now: float) -> None:
        """A new head opens a new round; what belongs neither to it nor to the way is forgotten."""
        assert self.chain is not None
        head = self.chain.head
        expected = self.company() | {self.settings.me}
        self.round = OpenRound(Round(head.round + 1), head.digest, now, frozenset(expected))
        if self.leaving is None and 0 < self.settings.stop_after <= head.round:
            self.leaving = Leaving(now + self.settings.leave_seconds, tell=False)
        beyond = self.chain.beside()
        if any(manifest.parent == head.digest for manifest in beyond):
            self.round.heard = now
        parents = {
            head.digest,
            *(m.digest for m in beyond),
            *(h.digest for h in self.members.heads()),
        }
        wanted = {entry.packet for manifest in beyond for entry in manifest.entries}
        self.offers.keep(parents, wanted)
        offered = {offer.packet for parent in parents for offer in self.offers.under(parent)}
        self.held = {p: held for p, held in self.held.items() if p in offered or p in wanted}
        for held in self.held.values():
            if held.offer.parent == head.digest:
                self.round.take_in(held.offer)
        self.errands.forget_idle()
