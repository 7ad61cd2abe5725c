"""The task `lm`, small, on a device of fixed speed: a batch comes no sooner than `pace_ms` after
the one before.

A node that trains it takes little of the CPU and waits for the rest, as for an accelerator. So many
nodes on few cores do not slow each other down, and what a healthy node could do is known. Time that
a step itself takes is within the pace; a step that comes late by more is not made up for.
"""

from __future__ import annotations

import time
from collections.abc import Iterator

from torch import Tensor

from demoloco.task.lm import LanguageModel
from demoloco.task.port import Shard


class Paced(LanguageModel):
    """A small `lm` that makes at most 1000 / pace_ms inner steps a second."""

    def __init__(
        self, pace_ms: float = 100.0, depth: int = 1, width: int = 64, context: int = 64
    ) -> None:
        super().__init__(depth=depth, width=width, context=context)
        self._pace = float(pace_ms) / 1000.0
        self._due = time.monotonic()

    def batches(self, shard: Shard, start: int) -> Iterator[Tensor]:
        for batch in super().batches(shard, start):
            late = time.monotonic() - self._due
            if late < 0:
                time.sleep(-late)
            self._due += self._pace if late < self._pace else late + self._pace
            yield batch
