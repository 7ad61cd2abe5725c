"""A real round machine in a simulated node.

Rule: it does with effects what the driver does, with a toy disk and a toy worker: an agreed state
is the hash of its history, a packet tells all samples that its node owes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, assert_never

from benchmarks.simulator import sizes
from benchmarks.simulator.parts import RUN, SNAPSHOT_EVERY, Disk, digest, newcomer
from demoloco.node.descent import Descent
from demoloco.rounds import effects as ef
from demoloco.rounds import events as ev
from demoloco.rounds.facts import Settings
from demoloco.rounds.machine import Machine
from demoloco.rounds.rules import head_of, told_by
from demoloco.types import Digest, Head, Manifest, Offer, PeerId, Round

if TYPE_CHECKING:
    from benchmarks.simulator.world import World

LEAVE_SECONDS = 20.0
TOGETHER_SECONDS = 0.05


class SimNode:
    """One machine with its disk, its worker and its place in the network."""

    def __init__(self, world: World, name: str, speed: float) -> None:
        self.world, self.name, self.speed = world, PeerId(name), speed
        self.disk = Disk()
        self.learnt = 0  # samples; what a crash took is taken out
        self.alive = False
        self.deaf = False  # its machine rests; its words go on
        self.trains = True
        self.life = 0
        self.job = -1.0  # when the worker's inner steps began
        self.worker_life = 0
        self.notes: list[str] = []
        self.applied: list[tuple[int, Digest, Digest]] = []
        self.waking: float | None = None
        self._told: dict[Digest, int] = {}
        self.excused: set[str] = set()  # what a warning may say has been lost just now

    # -- life ------------------------------------------------------------
    def start(self, stop_after: int = 0) -> None:
        self.alive, self.life = True, self.life + 1
        self.machine = Machine(
            Settings(
                me=self.name,
                run=RUN,
                creator=self.world.creator,
                pace=self.world.pace,
                inner_steps=10,
                leave_seconds=LEAVE_SECONDS,
                snapshot_bytes=self.world.snapshot_bytes,
                snapshot_every=SNAPSHOT_EVERY,
                step_samples=1,
                round_seconds=self.world.round_seconds,
                overlap=self.world.overlap,
                stop_after=stop_after,
                has_worker=self.trains,
            )
        )
        self.member = newcomer(self.name)
        self.words = self.world.words_of(self)
        self.descent = Descent()
        self._waiting: list[ev.Event] = []
        disk = self.disk
        if disk.head is not None:
            owed, pending = self._restore()
            at, chain = disk.states[disk.head.digest], self.disk.chain(disk.head.digest)
            self.hear(ev.Started(disk.head, at, chain, pending, 1.0, owed_samples=owed))
        if self.trains:
            self.later(0.5, lambda: self.hear(ev.WorkerCame()))
        self.words.start()

    def _restore(self) -> tuple[int, Offer | None]:
        """What is owed according to the disk, and the packet for the open round."""
        pending, head = self.disk.pending, self.disk.head
        if pending is None or head is None or pending.parent != head.digest:
            pending = None
        owed = max(self.disk.owed, pending.samples if pending is not None else 0)
        self.learnt = self.told() + owed
        return owed, pending

    def lose_worker(self) -> None:
        """The worker dies and comes back; what it had trained since the checkpoint is gone."""
        if not self.alive:
            return
        self.worker_life, self.job = self.worker_life + 1, -1.0
        owed, _ = self._restore()
        self.hear(ev.WorkerLost(owed))
        self.work(1.0, lambda: self.hear(ev.WorkerCame()))

    def crash(self) -> None:
        self.alive = False

    def later(self, seconds: float, act: Callable[[], None]) -> None:
        """Do it if this life still lasts then."""
        life = self.life
        self.world.at(
            self.world.now + seconds,
            lambda: act() if self.alive and self.life == life else None,
        )

    def work(self, seconds: float, act: Callable[[], None]) -> None:
        """Do it if this worker still lives then."""
        life = self.worker_life
        self.later(seconds, lambda: act() if self.worker_life == life else None)

    def hear(self, event: ev.Event) -> None:
        if self.alive and not self.deaf:
            effects = self.machine.handle(event, self.world.now)
            self.world.listen(self.name, event, effects)
            self._excuse(effects)
            for effect in effects:
                self.carry_out(effect)
            self.world.check(self)

    def hear_all(self, events: Sequence[ev.Event]) -> None:
        """What came together: all is noted, then what is wanted is decided once."""
        if self.alive and events and not self.deaf:
            for event in events[:-1]:
                noted = self.machine.state.note(event, self.world.now)
                self.world.listen(self.name, event, noted)
                for effect in noted:
                    self.carry_out(effect)
            self.hear(events[-1])

    def soon(self, event: ev.Event) -> None:
        """It is heard with all else of the same moment, which is TOGETHER_SECONDS long."""
        if not self.world.by_mouth:
            return self.hear(event)
        self._waiting.append(event)
        if len(self._waiting) == 1:
            self.later(TOGETHER_SECONDS, self._hear_waiting)
        return None

    def _hear_waiting(self) -> None:
        waiting, self._waiting = self._waiting, []
        self.hear_all(waiting)

    # -- the law ------------------------------------------------------------
    def _excuse(self, effects: list[ef.Effect]) -> None:
        """The law holds but for what a warning names; and a warning comes only where it must."""
        for note in effects:
            if isinstance(note, ef.Note) and " are lost:" in note.text:
                assert "lost" in self.excused, note.text
                self.learnt -= int(note.text.split()[0])
            elif isinstance(note, ef.Note) and "cannot be accounted for" in note.text:
                assert "unknown" in self.excused, note.text
                self.learnt = self.told() + self.machine.state.labour.owed_samples
        if "found" in self.excused:
            self.learnt = self.told() + self.machine.state.labour.owed_samples
        self.excused.clear()

    def told(self) -> int:
        """Samples of this node in the chain under its head."""
        return 0 if self.disk.head is None else self._told_under(self.disk.head.digest)

    def _told_under(self, head: Digest) -> int:
        if head not in self._told:
            manifest = self.world.manifests.get(head)
            if manifest is None:
                return 0
            entry = manifest.entry_of(self.name)
            below = self._told_under(manifest.parent)
            self._told[head] = below + (entry.samples if entry is not None else 0)
        return self._told[head]

    # -- effects ------------------------------------------------------------
    def carry_out(self, effect: ef.Effect) -> None:
        match effect:
            case ef.Settle():
                pass
            case ef.Train(_, steps):
                start = self.job = self.world.now
                if steps is not None:
                    self.work(steps / self.speed, lambda: self._trained(start, steps))
            case ef.Cut(least):
                passed = self.world.now - self.job
                done = max(int(passed * self.speed), least)
                self.job = -1.0
                self.work(max(0.01, done / self.speed - passed), lambda: self._finish(done))
            case ef.Contribute(round_, parent, samples):
                self.work(0.1, lambda: self._contributed(round_, parent, samples))
            case ef.Announce(offers):
                self.words.announce(offers)
            case ef.Fetch(_, _, _, offer):
                assert offer is not None
                seconds = self.world.random.uniform(*self.world.faults.transfer)
                self.world.call(self, lambda: self._fetch(offer, effect.holders), seconds)
            case ef.FetchManifests(holder, head):
                self.world.call(self, lambda: self._fetch_manifests(holder, head))
            case ef.FetchSnapshot(holders):
                self.world.call(self, lambda: self._fetch_snapshot(holders))
            case ef.Propose(draft):
                fields = {name: getattr(draft, name) for name in draft.__slots__}
                manifest = Manifest(**fields, digest=digest(draft))
                self.later(0.01, lambda: self.hear(ev.ManifestHeard(self.name, manifest)))
            case ef.Commit(manifest):
                self.world.manifests[manifest.digest] = manifest
                self.disk.manifests[manifest.digest] = manifest
            case ef.Publish(manifest):
                assert manifest.digest in self.disk.manifests, "told before it was durable"
                self.words.publish(manifest)
            case ef.Apply():
                self.later(0.05, lambda: self._apply(effect))
            case ef.Adopt(head, fingerprint):
                self.later(0.05, lambda: self._adopt(head, fingerprint))
            case ef.Say(phase, head):
                sequence = max(self.member.sequence + 1, int(self.world.now * 1000))
                before = self.member
                self.member = replace(before, phase=phase, head=head, sequence=sequence)
                self.words.say(before)
            case ef.Note(text):
                self.notes.append(text)
            case ef.WakeMe(at):
                self.waking = at
                self.later(max(0.0, at - self.world.now), lambda: self._wake(at))
            case ef.Stop():
                self.alive = False
                self.words.goodbye()
            case _:
                assert_never(effect)

    def _wake(self, at: float) -> None:
        if self.waking == at:
            self.hear(ev.Woken())

    def _trained(self, start: float, steps: int) -> None:
        if self.job == start:
            self._finish(steps)

    def _finish(self, samples: int) -> None:
        self.learnt += samples
        self.hear(ev.Trained(samples))

    def _contributed(self, round_: int, parent: Digest, samples: int) -> None:
        packet = digest(self.name, round_, parent, samples, self.life)
        offer = Offer(
            packet=packet,
            contributor=self.name,
            round=round_,  # type: ignore[arg-type]
            parent=parent,
            samples=samples,
            size=100,
        )
        self.disk.packets[packet] = self.disk.mine[packet] = Round(round_)
        self.disk.pending = offer
        self.hear(ev.Contributed(offer, 1.0))

    def _fetch(self, offer: Offer, holders: tuple[PeerId, ...]) -> None:
        packet = offer.packet
        if packet in self.disk.packets:
            return self.soon(ev.PacketFetched(packet, 1.0))
        for holder in holders:
            other = self.world.nodes.get(holder)
            if other and self.world.answers(self, other) and packet in other.disk.packets:
                self.disk.packets[packet] = offer.round
                self.world.count(other, "packet", offer.size)
                return self.soon(ev.PacketFetched(packet, 1.0))
        return self.soon(ev.FetchFailed(packet))

    def _fetch_manifests(self, holder: PeerId, head: Digest) -> None:
        other = self.world.nodes[holder]
        if self.world.answers(self, other) and head in other.disk.manifests:
            count = self.descent.count(head)
            chain = other.disk.chain(head)[::-1][:count]
            self.descent.found(head, chain[-1].parent)
            entries = [len(manifest.entries) for manifest in chain]
            self.world.count(self, "manifests", sizes.manifests_request())
            self.world.count(other, "manifests", sizes.manifests_reply(entries))
            return self.hear(ev.ManifestsFetched(holder, chain))
        return self.hear(ev.ManifestsFailed(holder, head))

    def _fetch_snapshot(self, holders: tuple[PeerId, ...]) -> None:
        for holder in holders:
            other = self.world.nodes[holder]
            if self.world.answers(self, other) and other.disk.head is not None:
                base, manifest = other.disk.snapshot()
                if manifest is not None:
                    self.disk.manifests[manifest.digest] = manifest
                self.disk.states[base.digest] = other.disk.states[base.digest]
                self._bridge(base.digest, (holder, *holders))
                if self.disk.head is None:
                    self.disk.head = base
                return self.hear(ev.SnapshotFetched(base, self.disk.states[base.digest], manifest))
        return self.hear(ev.SnapshotFailed("nobody answers"))

    def _bridge(self, at: Digest, holders: tuple[PeerId, ...]) -> None:
        """The log up to the snapshot, as far as anybody who answers has it."""
        for other in (self.world.nodes[name] for name in holders):
            if self.disk.head is not None and self.world.answers(self, other):
                at = self.disk.bridge(at, other.disk)

    def _apply(self, apply: ef.Apply) -> None:
        head = self.disk.head
        assert head is not None
        below = apply.undo[-1].parent if apply.undo else head.digest
        fingerprint = self.disk.states.get(below)
        for manifest in apply.redo:
            here = all(entry.packet in self.disk.packets for entry in manifest.entries)
            if fingerprint is None or not here:
                return self.hear(ev.ApplyFailed(manifest.digest, "it is not here", lacking=True))
            if manifest.state != fingerprint:
                return self.hear(ev.ApplyFailed(manifest.digest, "not from the state that is here"))
            fingerprint = digest(fingerprint, manifest.digest)
            self.disk.states[manifest.digest] = fingerprint
        lost = self._gone(apply.undo, apply.redo)
        return self._applied(ev.Applied(head_of(apply.redo[-1]), fingerprint, lost))

    def _adopt(self, head: Head, fingerprint: Digest) -> None:
        assert self.disk.head is not None
        fork = self.disk.fork(self.disk.head.digest, head.digest)
        undo, redo = fork or ((), ())
        unknown: Round | None = None
        if fork is None:
            unknown = self.disk.unknown(self.disk.head.digest, head.digest)
            self.excused.add("unknown")
        told, untold = told_by(self.name, redo), told_by(self.name, undo)
        lost = self._gone(undo, redo)
        self._applied(ev.Applied(head, fingerprint, lost, told, untold, unknown))

    def _gone(self, undo: Iterable[Manifest], redo: Iterable[Manifest]) -> int:
        lost, words = self.disk.gone(self.name, undo, redo)
        self.excused |= words
        return lost

    def _applied(self, event: ev.Applied) -> None:
        head = self.disk.head = event.head
        self.disk.prune()
        self.applied.append((head.round, head.digest, event.fingerprint))
        self.hear(event)
        self.disk.owed = self.machine.state.labour.owed_samples
