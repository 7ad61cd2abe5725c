"""Where the worker's model stands, and what it has told: this node's side of the algorithm.

Rule: commands reach the worker in the order of the protocol's effects, so the model always stands
on the state that was told last. What a packet told leaves the model exactly once, also when the
worker was restored from a checkpoint that is older or newer than the packet.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path

from demoloco.config import RunConfig
from demoloco.errors import StoreError, WorkerError
from demoloco.node.crew import Crew
from demoloco.node.density import Density
from demoloco.node.disk import Disk
from demoloco.node.gifts import Given
from demoloco.node.ledger import Ledger
from demoloco.node.loans import ALL, returned
from demoloco.rounds import effects as ef
from demoloco.types import Digest, Head, Loan, Manifest, Offer, PeerId, Round, short
from demoloco.worker.checkpoint import KEPT, Checkpoint
from demoloco.worker.port import (
    Contribute,
    Contributed,
    Correct,
    Cut,
    NotSaved,
    Restore,
    Returned,
    SaveCheckpoint,
    Saved,
    Start,
    TakeAgreed,
    Train,
)

MIDWAY_SECONDS = 5.0
"""Between two checkpoints in the midst of a round."""

SAVE_SECONDS = 60.0
"""The last checkpoint of a leaving node may take this long."""


class Stance:
    """Commands the worker for the driver; remembers what its model stands on."""

    def __init__(
        self, me: PeerId, crew: Crew, ledger: Ledger, disk: Disk, config: RunConfig, share: float
    ) -> None:
        self._me = me
        self._crew = crew
        self._ledger = ledger
        self._disk = disk
        self._config = config
        self._share = share
        self.density = Density(config)
        # States that queued commands name, from the one that the worker last said it stands on to
        # the one that it was told last; empty without a worker.
        self._states: deque[Digest] = deque()
        # My packets that are out of the model while the head's chain lacks them.
        self._ahead: frozenset[Digest] = frozenset()
        self._loan: Loan | None = None  # what of the model is borrowed
        self._loan_round = Round(0)  # as far as it was let go of
        self._given = Given(ledger.store)
        self._tickets: dict[int, ef.Contribute] = {}
        self._ticket = 0
        self._saving = False
        self._saved_at = -float("inf")
        self._save_seconds = 0.0
        self._checkpoints: deque[Digest] = deque(maxlen=KEPT)
        self._being_saved: Digest | None = None

    @property
    def standing(self) -> Digest | None:
        """The state that the model stands on, or will once it has worked off its commands."""
        return self._states[-1] if self._states else None

    @property
    def states(self) -> tuple[Digest, ...]:
        """States whose files the worker may still open."""
        return tuple(self._states)

    @property
    def checkpoints(self) -> tuple[Digest, ...]:
        """Heads of the checkpoints that a worker may be restored from. One that is being written
        may be durable before anybody hears of it."""
        coming = () if self._being_saved is None else (self._being_saved,)
        return (*self._checkpoints, *coming)

    def fell(self) -> None:
        """The worker is gone."""
        self._states.clear()
        self._saving = False
        self._ahead = frozenset()
        self._tickets.clear()
        self._loan = None

    def declined(self) -> None:
        """The worker did not take the gift: nothing is borrowed."""
        self._loan = None

    # -- a fresh worker ----------------------------------------------------------------------------
    async def settle(
        self, head: Head, checkpoint: Checkpoint | None, mine: Offer | None, told_samples: int = 0
    ) -> str | None:
        """Put a fresh worker's model on the head's state; says from where, or that the checkpoint
        is of no use: then nothing was done.

        `mine`: my packet for the open round, if one is out; what it tells is taken out of a
        restored model now."""
        pending = [mine.packet] if mine is not None and mine.parent == head.digest else []
        agreed = self._path(head.digest)
        if checkpoint is None:
            start, loan = await self._disk(self._start, head)
            self._stand(head, frozenset(pending), loan)
            self._crew.tell(
                TakeAgreed(agreed=agreed, round=head.round, start=start, told_samples=told_samples)
            )
            return "the agreed state" if start is None else "a member's model"
        early, since = await self._disk(self._told_around, checkpoint.head, head.digest)
        told = [packet for packet in (*since, *pending) if packet not in early]
        bodies = await self._disk(self._bodies, told)
        if bodies is None:
            return None
        gone, loan = await self._disk(self._gone_since, checkpoint, head)
        self._stand(head, frozenset(pending) | (early - set(since)), loan)
        self._checkpoints.append(checkpoint.head)
        self._being_saved = None
        self._crew.tell(
            Restore(
                checkpoint=checkpoint.path,
                agreed=agreed,
                round=head.round,
                told_since=bodies,
                returned=gone,
                told_samples=told_samples,
            )
        )
        return f"the checkpoint of round {checkpoint.round}"

    def _stand(self, head: Head, ahead: frozenset[Digest], loan: Loan | None) -> None:
        self._states.clear()
        self._states.extend((head.digest, head.digest))  # its word that it stands there is to come
        self._ahead = ahead
        self._loan, self._loan_round = loan, head.round

    def _start(self, head: Head) -> tuple[Start | None, Loan | None]:
        """The gift that was fetched for this, if the log tells what its lenders told since."""
        loan = self._given.loan()
        if loan is None:
            return None, None
        since = [m for m in self._ledger.chain(head.digest) if m.round > loan.since]
        gone = returned(loan, loan.since, head.round, since, self._ledger.body)
        return (None, None) if gone == ALL else (Start(self._given.path, gone), loan)

    def _gone_since(self, then: Checkpoint, head: Head) -> tuple[Returned, Loan | None]:
        """What of the borrowed part of a checkpoint's model goes on the way to the head."""
        if then.loan is None:
            return ALL, None
        fork = self._ledger.fork(then.head, head.digest)
        since = fork[1] if fork is not None else ()
        gone = returned(then.loan, then.round, head.round, since, self._ledger.body)
        return gone, None if gone == ALL else then.loan

    def _told_around(self, then: Digest, now: Digest) -> tuple[frozenset[Digest], list[Digest]]:
        """My packets that only the chain up to `then` has, and those that only the one up to `now`
        has."""
        before, since = map(self._mine, self._ledger.around(then, now))
        return frozenset(before) - set(since), [p for p in since if p not in before]

    def _bodies(self, packets: Sequence[Digest]) -> tuple[bytes, ...] | None:
        """None if one is gone, by damage or in a home that was restored from an old copy: then
        nobody can say what a model still owes, and it starts from the agreed state."""
        bodies = tuple(self._ledger.body(packet) for packet in dict.fromkeys(packets))
        return tuple(b for b in bodies if b is not None) if None not in bodies else None

    # -- the round ---------------------------------------------------------------------------------
    def train(self, effect: ef.Train) -> None:
        self._crew.tell(Train(round=effect.round, steps=effect.steps))

    def cut(self, effect: ef.Cut) -> None:
        self._crew.tell(Cut(least=effect.least))

    def contribute(self, effect: ef.Contribute) -> None:
        """Ask for a packet against the state that it builds on."""
        self._ticket += 1
        self._tickets[self._ticket] = effect
        agreed = self._path(effect.parent)
        self._crew.tell(Contribute(ticket=self._ticket, agreed=agreed, k=self.density.choose()))

    def wanted(self, event: Contributed) -> ef.Contribute | None:
        """Which effect this answers; None if it is of a worker that is gone."""
        return self._tickets.get(event.ticket)

    def contributed(self, event: Contributed) -> bool:
        """The packet is stored; False if the worker that made it is gone by now."""
        return self._tickets.pop(event.ticket, None) is not None

    async def move(
        self, head: Head, undo: Sequence[Manifest], redo: Sequence[Manifest]
    ) -> int | None:
        """The agreed state moved: the model follows. How many samples it now lacks of those that
        are owed, for the packets that held them are gone; None if nobody can say any longer what
        it owes: then it is of no use."""
        told, early = self._mine(redo), self._ahead
        entered = await self._disk(self._bodies, [p for p in told if p not in early])
        untold, lost = await self._disk(self._given_back, undo)
        late = await self._disk(self._bodies, [p for p in early if p not in told])
        loan, then = self._loan, self._loan_round
        gone = await self._disk(returned, loan, then, head.round, redo, self._ledger.body)
        if self.standing is None:  # it fell, now or before
            return 0
        if entered is None or late is None:
            self.fell()
            return None
        self._loan, self._loan_round = (None if gone == ALL else loan), head.round
        before, self._ahead = self._path(self.standing), frozenset()
        self._states.append(head.digest)
        every = self._config.evaluate_every
        self._crew.tell(
            Correct(
                before=before,
                after=self._path(head.digest),
                round=head.round,
                told=entered,
                untold=(*untold, *late),
                returned=gone,
                forgotten=lost,
                evaluate=every > 0 and head.round % every == 0,
            )
        )
        return lost

    def _given_back(self, undo: Iterable[Manifest]) -> tuple[list[bytes], int]:
        """What was told on a chain that is left, and how many samples of it are gone."""
        bodies: list[bytes] = []
        lost = 0
        for entry in filter(None, (manifest.entry_of(self._me) for manifest in undo)):
            body = self._ledger.body(entry.packet)
            if body is None:
                lost += entry.samples
            else:
                bodies.append(body)
        return bodies, lost

    def followed(self) -> None:
        """The worker worked off one command that moved its model."""
        if len(self._states) > 1:
            self._states.popleft()

    def _mine(self, manifests: Iterable[Manifest]) -> list[Digest]:
        entries = (manifest.entry_of(self._me) for manifest in manifests)
        return [entry.packet for entry in entries if entry is not None]

    def _path(self, state: Digest) -> Path:
        path = self._ledger.store.state_path(state)
        if path is None:
            raise StoreError(f"the agreed state after {short(state)} is gone")
        return path

    # -- checkpoints -------------------------------------------------------------------------------
    def save_if_due(self, at_least: float = 0.0) -> None:
        """Checkpoints take at most their share of the time, and that many seconds lie between."""
        pause = max(at_least, self._save_seconds / self._share)
        if self._saving or time.monotonic() - self._saved_at < pause:
            return
        if (command := self._save()) is not None:
            self._saving = True
            self._crew.tell(command)

    def saved(self, event: Saved | NotSaved) -> None:
        self._saving = False
        self._being_saved = None
        self._saved_at = time.monotonic()
        if isinstance(event, Saved):
            self._save_seconds = event.seconds
            self._checkpoints.append(Digest(event.head))

    async def save_at_last(self) -> Saved | None:
        """One more checkpoint before the worker ends."""
        if self._saving:  # else its answer would be taken for the last one's
            with suppress(WorkerError):
                await self._crew.hear_next(Saved, SAVE_SECONDS)
        command = self._save()
        return None if command is None else await self._crew.ask(command, Saved, SAVE_SECONDS)

    def _save(self) -> SaveCheckpoint | None:
        """None without a worker, and where a checkpoint would forget what `_ahead` knows."""
        if self.standing is None or self._ahead:
            return None
        self._being_saved = self.standing
        return SaveCheckpoint(
            directory=self._ledger.store.checkpoint_dir(),
            agreed=self._path(self.standing),
            head=self.standing,
            loan=self._loan,
        )
