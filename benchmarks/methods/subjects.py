"""What is trained: the built-in language task at set sizes, and images."""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import nn

from benchmarks.methods.images import Images, digits, fashion
from demoloco.task.corpus import load
from demoloco.task.lm import LanguageModel
from demoloco.task.port import Task

HELD_OUT_BYTES = 16_384
EVALUATED_AT_ONCE = 32  # windows

LANGUAGE_SIZES = {
    "0.1M": {"depth": 1, "width": 64, "heads": 1, "context": 32},
    "0.5M": {"depth": 2, "width": 128, "heads": 2, "context": 64},
    "1M": {"depth": 2, "width": 192, "heads": 2, "context": 64},
    "4M": {"depth": 4, "width": 256, "heads": 4, "context": 128},
    "10M": {"depth": 5, "width": 384, "heads": 6, "context": 128},
}
IMAGE_WIDTHS = {"0.02M": 8, "0.08M": 16, "0.3M": 32}


class Language(LanguageModel):
    """The built-in task, with more of the held-out text evaluated, so that less of it is chance."""

    def evaluate(self, model: nn.Module, device: torch.device) -> float:
        """Mean loss over windows spread evenly over the held-out files, nats per byte."""
        _, text = load()
        count = HELD_OUT_BYTES // self.context
        offsets = np.linspace(0, len(text) - self.context - 1, count).astype(np.int64)
        windows = text[offsets[:, None] + np.arange(self.context + 1)].astype(np.int64)
        parts = torch.split(torch.from_numpy(windows), EVALUATED_AT_ONCE)
        losses = [float(self.loss(model, part.to(device))) * len(part) for part in parts]
        return math.fsum(losses) / count


def subject_of(subject: str, size: str) -> Task:
    """The task of a setting.

    Raises: SystemExit for a name that is none, or data that is not here.
    """
    sizes = LANGUAGE_SIZES if subject == "language" else IMAGE_WIDTHS
    if size not in sizes:
        raise SystemExit(f"{subject} has no size {size}; choose one of {', '.join(sizes)}")
    if subject == "language":
        return Language(**LANGUAGE_SIZES[size])
    if subject == "fashion":
        return Images(fashion(), IMAGE_WIDTHS[size])
    if subject == "digits":
        return Images(digits(), IMAGE_WIDTHS[size])
    raise SystemExit(f"no subject {subject}; choose language, fashion or digits")
