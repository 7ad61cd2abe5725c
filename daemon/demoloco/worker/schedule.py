"""The inner learning rate: a function of the round, so that a node which joins late has
everybody's, not its own.

No torch here: the daemon may ask too.
"""

from __future__ import annotations

import math

from demoloco.config import RunConfig
from demoloco.types import Round


def learning_rate(config: RunConfig, round: Round, done: float) -> float:
    """The rate in the open round (1 is the first) when the share `done`, 0..1, of its inner steps
    is made.

    Rises linearly over `warmup_rounds`, follows a cosine to `final_lr_share` of the peak at
    `decay_rounds`, stays there.
    """
    rounds = max(0, round - 1) + done
    if rounds < config.warmup_rounds:
        return config.learning_rate * rounds / config.warmup_rounds
    length = config.decay_rounds - config.warmup_rounds
    travelled = min(1.0, (rounds - config.warmup_rounds) / length) if length > 0 else 1.0
    cosine = (1 + math.cos(math.pi * travelled)) / 2
    return config.learning_rate * (config.final_lr_share + (1 - config.final_lr_share) * cosine)
