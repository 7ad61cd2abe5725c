"""The inner optimizer that a setting names: the product's AdamW, or Muon for the matrices."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from demoloco.config import RunConfig
from demoloco.worker.inner import BETAS, make_optimizer

MUON_MOMENTUM = 0.95


class MuonAndAdam(torch.optim.Optimizer):
    """Muon for the matrices inside, its steps as large as AdamW's; AdamW for what is embedding,
    head or vector. arXiv:2502.16982."""

    def __init__(self, model: nn.Module, config: RunConfig) -> None:
        named = list(model.named_parameters())
        inside = [p for name, p in named if p.ndim == 2 and not name.startswith(("embed", "head"))]
        chosen = {id(one) for one in inside}
        rest = [p for _, p in named if id(p) not in chosen]
        self.parts: tuple[torch.optim.Optimizer, ...] = (
            torch.optim.Muon(
                inside,
                lr=config.learning_rate,
                weight_decay=config.weight_decay,
                momentum=MUON_MOMENTUM,
                adjust_lr_fn="match_rms_adamw",
            ),
            torch.optim.AdamW(rest, config.learning_rate, BETAS, weight_decay=0.0, fused=True),
        )

    @property
    def param_groups(self) -> list[dict[str, Any]]:  # type: ignore[override]
        return [group for part in self.parts for group in part.param_groups]

    @property
    def state(self) -> Mapping[Any, Any]:  # type: ignore[override]
        return {key: value for part in self.parts for key, value in part.state.items()}

    def zero_grad(self, set_to_none: bool = True) -> None:
        for part in self.parts:
            part.zero_grad(set_to_none)

    def step(self, closure: None = None) -> None:  # type: ignore[override]
        for part in self.parts:
            part.step()


def optimizer_of(inner: str, model: nn.Module, config: RunConfig) -> torch.optim.Optimizer:
    """Raises: SystemExit for a name that is none."""
    if inner == "adamw":
        return make_optimizer(model, config)
    if inner == "muon":
        return MuonAndAdam(model, config)
    raise SystemExit(f"no inner optimizer {inner}; choose adamw or muon")
