"""Where the worker's model stands, and what it has told: this node's side of the algorithm.

Rule: commands reach the worker in the order of the protocol's effects, so the model always stands
on the state that was told last. What a packet told leaves the model exactly once, also when the
worker was restored from a checkpoint that is older than the packet.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

from demoloco.config import RunConfig
from demoloco.errors import StoreError
from demoloco.node.crew import Crew
from demoloco.node.ledger import Ledger
from demoloco.rounds import effects as ef
from demoloco.types import Digest, Head, Manifest, Offer, PeerId, short
from demoloco.worker.checkpoint import Checkpoint
from demoloco.worker.port import (
    Contribute,
    Contributed,
    Correct,
    Cut,
    NotSaved,
    Restore,
    SaveCheckpoint,
    Saved,
    TakeAgreed,
    Train,
)

SAVE_SECONDS = 60.0
"""The last checkpoint of a leaving node may take this long."""


class Stance:
    """Commands the worker for the driver; remembers what its model stands on."""

    def __init__(
        self, me: PeerId, crew: Crew, ledger: Ledger, config: RunConfig, share: float
    ) -> None:
        self._me = me
        self._crew = crew
        self._ledger = ledger
        self._config = config
        self._share = share
        self._standing: Digest | None = None
        self._ahead: set[Digest] = set()  # my packets that a restored model has told already
        self._tickets: dict[int, ef.Contribute] = {}
        self._ticket = 0
        self._saving = False
        self._saved_at = -float("inf")
        self._save_seconds = 0.0

    @property
    def standing(self) -> Digest | None:
        """The state that the model stands on, or will once it has worked off its commands."""
        return self._standing

    def fell(self) -> None:
        """The worker is gone."""
        self._standing = None
        self._saving = False
        self._ahead.clear()
        self._tickets.clear()

    def settle(self, head: Head, checkpoint: Checkpoint | None, mine: Offer | None) -> str:
        """Put a fresh worker's model on the head's state; says from where.

        `mine`: my packet for the open round, if one is out; what it tells is taken out of a
        restored model now."""
        self._standing = head.digest
        agreed = self._path(head.digest)
        if checkpoint is None:
            self._crew.tell(TakeAgreed(agreed=agreed, round=head.round))
            return "the agreed state"
        told = self._mine_since(checkpoint.head, head.digest)
        if mine is not None and mine.parent == head.digest:
            told.append(mine.packet)
            self._ahead = {mine.packet}
        self._crew.tell(
            Restore(
                checkpoint=checkpoint.path,
                agreed=agreed,
                round=head.round,
                told_since=tuple(self._ledger.body(packet) for packet in told),
            )
        )
        return f"the checkpoint of round {checkpoint.round}"

    def _mine_since(self, then: Digest, now: Digest) -> list[Digest]:
        """My packets in the chain above `then`, oldest first, as far as the log is kept."""
        packets: list[Digest] = []
        for manifest in self._ledger.chain(now):
            if manifest.digest == then:
                packets.clear()
            elif (entry := manifest.entry_of(self._me)) is not None:
                packets.append(entry.packet)
        return packets

    def train(self, effect: ef.Train) -> None:
        self._crew.tell(Train(round=effect.round, steps=effect.steps))

    def cut(self) -> None:
        self._crew.tell(Cut())

    def contribute(self, effect: ef.Contribute) -> None:
        """Ask for a packet against the state that it builds on."""
        self._ticket += 1
        self._tickets[self._ticket] = effect
        agreed = self._path(effect.parent)
        self._crew.tell(Contribute(ticket=self._ticket, agreed=agreed, k=self._config.k))

    def wanted(self, event: Contributed) -> ef.Contribute | None:
        """Which effect this answers; None if it is of a worker that is gone."""
        return self._tickets.get(event.ticket)

    def contributed(self, event: Contributed) -> bool:
        """The packet is stored; False if the worker that made it is gone by now."""
        return self._tickets.pop(event.ticket, None) is not None

    def move(self, head: Head, undo: Sequence[Manifest], redo: Sequence[Manifest]) -> None:
        """The agreed state moved: the model follows."""
        if self._standing is None:
            return
        told = self._mine(redo)
        untold = self._mine(undo)
        early, self._ahead = self._ahead, set()
        every = self._config.evaluate_every
        before, self._standing = self._standing, head.digest
        self._crew.tell(
            Correct(
                before=self._path(before),
                after=self._path(head.digest),
                round=head.round,
                told=self._bodies([p for p in told if p not in early]),
                untold=self._bodies([*untold, *(p for p in early if p not in told)]),
                evaluate=every > 0 and head.round % every == 0,
            )
        )

    def _mine(self, manifests: Sequence[Manifest]) -> list[Digest]:
        entries = (manifest.entry_of(self._me) for manifest in manifests)
        return [entry.packet for entry in entries if entry is not None]

    def _bodies(self, packets: Sequence[Digest]) -> tuple[bytes, ...]:
        return tuple(self._ledger.body(packet) for packet in packets)

    def _path(self, state: Digest) -> Path:
        path = self._ledger.store.state_path(state)
        if path is None:
            raise StoreError(f"the agreed state after {short(state)} is gone")
        return path

    # -- checkpoints -------------------------------------------------------------------------------
    def save_if_due(self) -> None:
        """Checkpoints take at most their share of the time."""
        pause = self._save_seconds / self._share
        if self._standing is None or self._saving or time.monotonic() - self._saved_at < pause:
            return
        self._saving = True
        self._crew.tell(self._save())

    def saved(self, event: Saved | NotSaved) -> None:
        self._saving = False
        self._saved_at = time.monotonic()
        if isinstance(event, Saved):
            self._save_seconds = event.seconds

    async def save_at_last(self) -> Saved | None:
        """One more checkpoint before the worker ends."""
        if self._standing is None:
            return None
        return await self._crew.ask(self._save(), Saved, SAVE_SECONDS)

    def _save(self) -> SaveCheckpoint:
        assert self._standing is not None
        return SaveCheckpoint(
            directory=self._ledger.store.checkpoint_dir(),
            agreed=self._path(self._standing),
            head=self._standing,
        )
