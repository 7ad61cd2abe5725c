"""What one run of the benchmark is: every value that its result follows from, and its name.

Rule: a run's name is a function of its setting, and a field that is added later does not change the
names of runs that do not use it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

CODED = ("decoupled", "synced", "paper")
"""Methods that send packets of few coefficients."""

DENSE = ("ddp", "local", "diloco")
"""Methods that send every parameter: each step, or each round."""

ALWAYS = ("subject", "size", "method", "nodes", "seed")


@dataclass(frozen=True, kw_only=True)
class Setting:
    """One run. `steps` are those of each node, so all methods see nodes × steps × batch samples."""

    subject: str = "language"
    """language | fashion | digits"""
    size: str = "0.5M"
    """Parameters of the model, as `subjects.py` names them."""
    method: str = "decoupled"
    """alone | ddp | local | diloco | synced | decoupled | paper"""
    variant: str = ""
    """A change to the method that is being tried; see `variants.py`."""
    strength: float = 0.0
    """How much of the variant."""
    nodes: int = 4
    inner_steps: int = 20
    steps: int = 800
    k: int = 64
    bits: int = 2
    alpha: float = 1.0
    """Outer step size of the coded methods."""
    beta: float = 0.95
    mean_over: str = "all"
    """paper only: all contributors, or the senders of a coefficient."""
    outer_rate: float = 1.0
    """Outer learning rate of diloco."""
    outer_momentum: float = 0.0
    """Nesterov momentum of diloco, or of a coded method's agreed state."""
    inner: str = "adamw"
    """Inner optimizer: adamw | muon"""
    learning_rate: float = 3e-3
    batch_size: int = 4
    warmup: int = 40
    """Inner steps over which the learning rate rises; its cosine ends with the run."""
    seed: int = 0

    @property
    def name(self) -> str:
        """What is always told, then what is not as usual."""
        shown = [str(getattr(self, one)) for one in ALWAYS[:3]]
        shown += [f"{one}={getattr(self, one)}" for one in ("nodes", "seed")]
        for one in fields(self):
            value = getattr(self, one.name)
            if one.name not in ALWAYS and value != one.default:
                shown.append(f"{one.name}={value}")
        return " ".join(shown)

    @property
    def rounds(self) -> int:
        return self.steps // self.inner_steps

    @property
    def samples(self) -> int:
        """That all nodes learn from, together."""
        return self.nodes * self.steps * self.batch_size

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def setting_of(told: Mapping[str, Any]) -> Setting:
    """A recorded setting; fields that it did not know have their defaults."""
    return Setting(**told)
