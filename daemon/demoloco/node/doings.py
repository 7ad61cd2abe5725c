"""What single effects take: sealing, applying, settling; and what the worker's words mean.

Rule: each doing ends in an event or in the end of the node; an error of this machine's own is
never turned into silence.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

from demoloco.errors import PacketError, StoreError
from demoloco.node.gifts import Given
from demoloco.node.ledger import DoesNotApply, Lacking
from demoloco.node.parts import Parts
from demoloco.node.revival import Post, Revival, Spawn
from demoloco.node.room import Room
from demoloco.node.stance import MIDWAY_SECONDS
from demoloco.node.version import software_version
from demoloco.rounds import effects as ef
from demoloco.rounds import events as ev
from demoloco.rounds.facts import CONTRIBUTING
from demoloco.rounds.rules import head_of, told_by
from demoloco.types import (
    Digest,
    Draft,
    Gift,
    Head,
    Manifest,
    Member,
    Offer,
    PacketHeader,
    Phase,
    Round,
    short,
)
from demoloco.wire import decode_manifest, encode_manifest, seal_packet
from demoloco.worker import port as worker

WAITING = "waiting for the disk"


class Doings:
    """The driver's hands."""

    def __init__(self, parts: Parts, post: Post) -> None:
        self._parts = parts
        self._post = post
        self.revival = Revival(parts, post)
        self.room = Room(parts.disk, self._complain, self._say)
        self._said: tuple[Phase, Head | None] | None = None
        self._sequence = 0
        self._speed = 0.0
        self._noted_peers: frozenset[str] = frozenset()

    # -- manifests ---------------------------------------------------------------------------------
    def propose(self, draft: Draft) -> None:
        """→ ManifestHeard from myself."""
        ledger = self._parts.ledger
        sealed = self._parts.swarm.seal("manifest", encode_manifest(draft))
        try:
            manifest = decode_manifest(sealed, ledger.expected.verify)
        except PacketError as error:  # a member's absurd claims add up to what nobody would take
            self._parts.report.warn("nothing to propose", round=draft.round, why=str(error))
            return
        ledger.remember(manifest, sealed)
        self._post(ev.ManifestHeard(self._parts.me, manifest))

    def sealed(self, manifest: Manifest) -> bytes:
        """The bytes of a committed manifest."""
        sealed = self._parts.ledger.sealed(manifest.digest)
        if sealed is None:
            raise StoreError(f"manifest {short(manifest.digest)} is gone from the log")
        return sealed

    async def commit(self, manifest: Manifest) -> None:
        """Durable on return."""
        await self.room(self._parts.ledger.commit, manifest)
        self._parts.report.debug("manifest kept", round=manifest.round)

    async def apply(self, effect: ef.Apply) -> None:
        """→ Applied | ApplyFailed. The worker follows before anybody hears of it."""
        parts = self._parts
        try:
            head, name = await self.room(parts.ledger.apply, effect.undo, effect.redo)
        except (DoesNotApply, Lacking) as error:
            lacking = isinstance(error, Lacking)
            self._post(ev.ApplyFailed(effect.redo[0].digest, str(error), lacking))
            return
        lost = await self._follow(head, effect.undo, effect.redo)
        mine = parts.machine.state.round.mine if parts.machine.state.round is not None else None
        for manifest in effect.undo:
            parts.report.round_undone(manifest)
        for manifest in effect.redo:
            was_out = mine is not None and mine.parent == manifest.parent
            parts.report.round_applied(manifest, was_out)
        self._post(lambda: self._applied(ev.Applied(head, name, lost=lost)))
        await self._keep_house(head)

    async def adopt(self, head: Head, fingerprint: Digest) -> None:
        """→ Applied. As far as the log tells, what I told on the way here and there counts."""
        parts = self._parts
        before = parts.machine.head or head
        fork = await parts.disk(parts.ledger.fork, before.digest, head.digest)
        undo, redo = fork or ((), ())
        unknown: Round | None = None
        if fork is None:
            unknown = await parts.disk(parts.ledger.unknown, before.digest, head.digest)
        await self.room(parts.ledger.adopt, head)
        lost = await self._follow(head, tuple(reversed(undo)), redo)
        for manifest in reversed(undo):
            parts.report.round_undone(manifest)
        for manifest in redo:
            parts.report.round_applied(manifest, mine_was_out=False)
        parts.report.warn("took a snapshot", round=head.round, head=short(head.digest))
        told, untold = told_by(parts.me, redo), told_by(parts.me, undo)
        applied = ev.Applied(head, fingerprint, lost, told, untold, unknown)
        self._post(lambda: self._applied(applied))

    async def _follow(self, head: Head, undo: Sequence[Manifest], redo: Sequence[Manifest]) -> int:
        """How many samples that are owed the model lacks now."""
        lost = await self._parts.stance.move(head, undo, redo)
        if lost is not None:
            return lost
        self._parts.report.warn("what the model owes is not known: a packet of mine is gone")
        await self.revival.put_back()
        return 0

    def _applied(self, applied: ev.Applied) -> ev.Event:
        account = self._parts.report.account
        account.show()
        account.forget(applied.lost)
        return applied

    async def _keep_house(self, head: Head) -> None:
        """What can wait: nothing is lost if it fails."""
        parts, stance = self._parts, self._parts.stance
        try:
            lent = parts.lending.wanted(await parts.disk(parts.ledger.store.snapshots))
            keep = (parts.run, head.digest, *stance.states, *lent)
            await parts.disk(parts.ledger.prune, keep, stance.checkpoints, parts.me)
            tally = parts.report.account.note(head.digest.hex())
            await parts.disk(parts.ledger.note_json, "tally", tally)
            await self._note_peers()
        except StoreError as error:
            parts.report.warn("housekeeping failed", why=str(error))

    async def _note_peers(self) -> None:
        """Who was ever met, and where: a node that is killed finds them again without --peers."""
        known = self._parts.swarm.known_addresses()
        if self._noted_peers != frozenset(known):
            await self._parts.disk(self._parts.ledger.note_json, "peers", list(known))
            self._noted_peers = frozenset(known)

    def _complain(self, why: str) -> None:
        self._parts.report.count("disk_full")
        self._parts.report.warn(WAITING, why=why)
        self._train_on()

    def _train_on(self) -> None:
        """The round waits for the disk; what is learnt meanwhile is owed like all that is."""
        state = self._parts.machine.state
        if state.round is not None and self._parts.stance.standing is not None:
            self._parts.stance.train(ef.Train(state.round.round, self._steps_of_a_round()))

    def _steps_of_a_round(self) -> int:
        """A number, for meanwhile nobody cuts them."""
        config = self._parts.config
        if config.round_seconds == 0:
            return config.inner_steps
        return max(1, int(config.round_seconds * self._speed / config.batch_size))

    # -- words -------------------------------------------------------------------------------------
    def say(self, phase: Phase, head: Head | None) -> None:
        """This is what I am now; while the disk takes nothing nobody is to wait for me."""
        self._said = phase, head
        self._say()

    def _say(self) -> None:
        if self._said is None:
            return
        phase, head = self._said
        if self.room.lacking and phase in CONTRIBUTING:
            phase = Phase.CATCHING_UP
        self._parts.report.hindrance = WAITING if self.room.lacking else ""
        self._sequence = max(self._sequence + 1, int(time.time() * 1000))
        self._parts.swarm.say(
            Member(
                peer=self._parts.me,
                run=self._parts.run,
                addresses=self._parts.swarm.addresses,
                head=head,
                phase=phase,
                sequence=self._sequence,
                samples_per_second=self._speed,
                version=software_version(),
                up=self._parts.swarm.link.up,
                down=self._parts.swarm.link.down,
            )
        )

    # -- the worker --------------------------------------------------------------------------------
    async def settle(self) -> None:
        """Put the worker's model on the head's state."""
        state = self._parts.machine.state
        head = self._parts.machine.head
        assert head is not None
        mine = state.round.mine if state.round is not None else None
        checkpoint = self.revival.checkpoint
        told = self._parts.report.account.told_with(mine)
        source = await self._parts.stance.settle(head, checkpoint, mine, told)
        if source is None:
            self.revival.forget_checkpoint()
            return
        self._parts.report.stands(head.round, source)

    def hear_worker(self, event: worker.WorkerEvent, spawn: Spawn) -> None:
        """What the worker tells without having been asked."""
        parts = self._parts
        match event:
            case worker.Progress():
                self._speed = event.samples_per_second
                parts.report.progress(event)
                parts.report.refresh(parts.machine)
                parts.stance.save_if_due(MIDWAY_SECONDS)
            case worker.Trained():
                self._post(lambda: self._trained(event))
                if self.room.lacking:
                    self._train_on()
            case worker.Contributed():
                spawn(self._contributed(event))
            case worker.Corrected():
                parts.stance.followed()
                parts.stance.save_if_due()
            case worker.GiftTried():
                self._tell_of_gift(event)
            case worker.Skipped():
                self._tell_of_skipped(event)
            case worker.Lapsed():
                self.revival.lapsed(event, spawn)
            case worker.Evaluated():
                parts.report.evaluated(event)
            case worker.Saved():
                parts.stance.saved(event)
                self.revival.saved = event.learnt
                spawn(self._give(event))
            case worker.NotSaved():
                parts.stance.saved(event)
                parts.report.count("checkpoints_failed")
                parts.report.warn("checkpoint not written", why=event.why)
            case worker.Failed() | worker.Died():
                self.revival.fell(event, spawn)
            case worker.Described() | worker.Ready() | worker.InitialWritten():
                pass  # answers that nobody waits for any longer

    def _trained(self, event: worker.Trained) -> ev.Event:
        self._parts.report.account.trained(event.learnt)
        self._parts.report.diligence.hear(event.busy_seconds)
        return ev.Trained(event.samples)

    def _tell_of_gift(self, event: worker.GiftTried) -> None:
        losses = {"gift_loss": event.gift_loss, "agreed_loss": event.agreed_loss}
        facts = {name: round(loss, 4) for name, loss in losses.items()}
        if event.taken:
            self._parts.report.line("started with a gift", **facts)
            return
        self._parts.stance.declined()
        self._parts.report.warn("gift not taken", why=event.why, **facts)

    def _tell_of_skipped(self, event: worker.Skipped) -> None:
        first, last = event.first_batch, event.last_batch
        batch = first if first == last else f"{first}-{last}"
        self._parts.report.count("steps_skipped")
        if event.in_a_row == 1:
            self._parts.report.warn(
                "inner step not taken: loss or gradient is not finite", batch=batch, loss=event.loss
            )

    async def _give(self, event: worker.Saved) -> None:
        """Joiners may start with what this checkpoint has; what I was given is in it by now."""
        parts = self._parts
        try:
            await parts.disk(self._put_on_shelf, event)
        except (OSError, StoreError) as error:
            parts.report.debug("no gift for joiners", why=str(error))

    def _put_on_shelf(self, event: worker.Saved) -> None:
        parts = self._parts
        Given(parts.ledger.store).forget()
        manifest = parts.ledger.manifest(Digest(event.head))
        if event.gift is None or manifest is None:
            return
        others = event.loan.lenders if event.loan is not None else ()
        lenders = tuple(dict.fromkeys((parts.me, *others)))
        gift = Gift(head=head_of(manifest), blobs=event.blobs, lenders=lenders)
        parts.shelf.put(gift, event.gift)

    async def _contributed(self, event: worker.Contributed) -> None:
        """Seal and keep my packet. → Contributed, unless the worker that made it fell meanwhile:
        what comes after it does not know that this was told."""
        parts = self._parts
        wanted = parts.stance.wanted(event)
        if wanted is None:
            return
        header = PacketHeader(
            run=parts.run,
            round=wanted.round,
            parent=wanted.parent,
            contributor=parts.me,
            samples=wanted.samples,
            spec=parts.ledger.expected.spec.digest,
            k=event.k,
        )
        sealed = seal_packet(parts.identity.sign, header, event.body)
        digest, norm = await self.room(self._keep_mine, sealed)
        if not parts.stance.contributed(event):
            return
        self.revival.proved()
        offer = Offer(
            packet=digest,
            contributor=parts.me,
            round=wanted.round,
            parent=wanted.parent,
            samples=wanted.samples,
            size=len(sealed),
        )
        parts.stance.density.made(len(sealed), event.k)
        parts.report.packet_made(wanted.round, len(sealed), event.k, parts.stance.density.why)
        self._post(ev.Contributed(offer, norm))

    def _keep_mine(self, sealed: bytes) -> tuple[Digest, float]:
        digest, norm = self._parts.ledger.store_packet(sealed, None)
        self._parts.ledger.keep_pending(digest)
        return digest, norm
