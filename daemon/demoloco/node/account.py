"""Learnt = told + owed, in samples: what this node's part in the run comes to, over all its lives.

Rule: three sources that know nothing of each other. Learnt is what the worker counts, told is what
the winning chain has of this node, owed is what the machine reckons. All that is shown is of one
moment: the newest event that the machine has handled.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace

from demoloco.types import Entry, Manifest, Offer, PeerId


@dataclass
class Tally:
    """This node's part in the winning chain."""

    rounds_contributed: int = 0
    rounds_left_out: int = 0
    samples_told: int = 0


class Account:
    """Told and learnt. `tally` runs ahead of `shown` while a manifest is being applied."""

    def __init__(self, me: PeerId) -> None:
        self._me = me
        self.tally = Tally()
        self.shown = Tally()
        self.learnt = 0
        self._heard = 0  # the newest figure of the worker, between two events too
        self._lost = 0  # not told to the operator yet

    # -- the chain ---------------------------------------------------------------------------------
    def enter(self, manifest: Manifest, mine_was_out: bool = False) -> Entry | None:
        """One manifest of the winning chain more; this node's part in it."""
        entry = manifest.entry_of(self._me)
        if entry is not None:
            self.tally.rounds_contributed += 1
            self.tally.samples_told += entry.samples
        elif mine_was_out:
            self.tally.rounds_left_out += 1
        return entry

    def undo(self, manifest: Manifest) -> Entry | None:
        """A manifest left the winning chain; this node's part in it."""
        entry = manifest.entry_of(self._me)
        if entry is not None:
            self.tally.rounds_contributed -= 1
            self.tally.samples_told -= entry.samples
        return entry

    def show(self) -> None:
        """The machine knows of all that was entered and undone."""
        self.shown = replace(self.tally)

    # -- the worker --------------------------------------------------------------------------------
    def hear(self, learnt: int) -> None:
        """The worker's count in the midst of its inner steps: a fall now would lose that much."""
        self._heard = max(self._heard, learnt)

    def trained(self, learnt: int) -> None:
        """The worker's count after the inner steps that the machine has heard of."""
        self.learnt = self._heard = learnt

    def forget(self, samples: int) -> None:
        """Of what was learnt so much is neither told nor in the model any longer."""
        self.learnt -= samples
        self._heard -= samples

    def start_from(self, saved: int, mine: Offer | None) -> int:
        """A worker starts from a checkpoint that counts so many samples: what it owes.

        `mine`: my packet for the open round. What was told after the checkpoint is learnt too; all
        else that came after it is lost."""
        self.learnt = max(saved, self.told_with(mine))
        self._lost += max(0, self._heard - self.learnt)
        self._heard = self.learnt
        return self.learnt - self.shown.samples_told

    def told_with(self, mine: Offer | None) -> int:
        """Samples that are told, or are on their way."""
        return self.shown.samples_told + (mine.samples if mine is not None else 0)

    def take_lost(self) -> int:
        """Samples lost that the operator was not told of."""
        lost, self._lost = self._lost, 0
        return lost

    # -- over the lives ----------------------------------------------------------------------------
    def note(self, head: str) -> dict[str, object]:
        """What `recall` wants: the figures of after this head."""
        return {"head": head, "heard": self._heard, **asdict(self.tally)}

    def recall(self, noted: object) -> None:
        """Go on counting where the last life ended; shown when the machine has started."""
        if not isinstance(noted, dict):
            return
        known = {name: noted[name] for name in asdict(self.tally) if name in noted}
        self.tally = Tally(**known)
        self._heard = int(noted.get("heard", 0))

    def catch_up(self, undone: Iterable[Manifest], redone: Iterable[Manifest]) -> None:
        """The last life ended after its head had moved, and before that was noted here."""
        for manifest in undone:
            self.undo(manifest)
        for manifest in redone:
            self.enter(manifest)
