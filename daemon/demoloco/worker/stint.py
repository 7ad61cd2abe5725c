"""The inner steps of one Train: how far they are, as the learning rate and people see it.

No torch here.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from demoloco.config import RunConfig
from demoloco.types import Round


@dataclass
class Stint:
    """`planned`: the steps that Train named; None = until a Cut."""

    round: Round
    planned: int | None
    began: float  # seconds, on the worker's clock
    done: int = 0
    samples: int = 0
    loss_sum: float = 0.0
    good: int = 0  # steps with a finite loss
    end: int | None = None  # with so many it ends, since it was cut

    @property
    def loss(self) -> float:
        """Mean of the steps; nan if there were none."""
        return self.loss_sum / self.good if self.good else math.nan

    @property
    def is_done(self) -> bool:
        """Nothing more is to be made."""
        ends = [end for end in (self.planned, self.end) if end is not None]
        return bool(ends) and self.done >= min(ends)

    def share(self, config: RunConfig, now: float) -> float:
        """Of the round that will be over with the next step, 0..1: by time in a run that has
        `round_seconds`; steps beyond those of a round stay at its end."""
        if config.round_seconds > 0:
            return min(1.0, (now - self.began) / config.round_seconds)
        return 1.0 if self.planned is None else (self.done + 1) / self.planned

    def shown(self, config: RunConfig) -> tuple[int, int]:
        """The step and of how many, as Progress has them."""
        if self.planned is not None:
            return self.done, self.planned
        if config.round_seconds > 0:
            return self.done, 0
        return config.inner_steps + self.done, config.inner_steps
