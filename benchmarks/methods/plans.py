"""Which runs a sweep has. Every sweep goes around the default setting, one axis at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from benchmarks.methods.records import Record
from benchmarks.methods.settings import Setting
from demoloco.config import METHOD_DEFAULTS

SEEDS = (0, 1, 2)
BASE = Setting()
QUICK = Setting(size="0.1M", steps=60, inner_steps=10, warmup=10)

GRID = ((1.0, 0.0), (0.7, 0.9), (0.7, 0.6), (1.0, 0.5), (1.0, 0.3), (0.4, 0.9))
"""DiLoCo's outer learning rate and momentum. The first cell is local averaging."""

METHODS = ("decoupled", "local", "synced", "paper", "ddp")
NODES = (2, 4, 8)
KS = (16, 32, 64, 128, 256, 512)
INNER_STEPS = (10, 30, 100)


def default(base: Setting, seeds: Sequence[int]) -> Iterator[Setting]:
    """All methods at the default setting, seed by seed."""
    for seed in seeds:
        for method in METHODS:
            yield of(base, method, seed)
        yield alone(base, seed)
        yield replace(alone(base, seed), steps=base.steps * base.nodes)
    yield of(base, "paper", seeds[0], mean_over="senders")
    yield replace(base, method="paper", seed=seeds[0])  # with the packets of the others


def of(base: Setting, method: str, seed: int = 0, **changes: Any) -> Setting:
    """A method around a setting, with what suits it: the published method has its own k, bits and
    step."""
    suits = METHOD_DEFAULTS[method] if method == "paper" else {}
    return replace(base, method=method, seed=seed, **{**suits, **changes})


def alone(base: Setting, seed: int) -> Setting:
    """One node without the others, after the steps that it makes among them."""
    return replace(base, method="alone", nodes=1, seed=seed)


def grid(base: Setting) -> list[Setting]:
    """DiLoCo's grid, on one seed."""
    return [diloco(base, rate, momentum, seed=0) for rate, momentum in GRID]


def grid_and_best(
    base: Setting, seeds: Sequence[int], recorded: Callable[[], list[Record]]
) -> Iterator[Setting]:
    """The grid, and then its best cell on all seeds."""
    yield from grid(base)
    best = tuned(base, recorded())
    yield from (diloco(base, *best, seed=seed) for seed in seeds)


def diloco(base: Setting, rate: float, momentum: float, seed: int) -> Setting:
    if (rate, momentum) == GRID[0]:
        return replace(base, method="local", seed=seed)
    return replace(base, method="diloco", outer_rate=rate, outer_momentum=momentum, seed=seed)


def tuned(base: Setting, records: Iterable[Record]) -> tuple[float, float]:
    """The grid's best cell on its first seed; local averaging where nothing is recorded."""
    losses = {record.name: record.last.merged for record in records}
    cells = {cell: losses.get(diloco(base, *cell, seed=0).name) for cell in GRID}
    known = {cell: loss for cell, loss in cells.items() if loss is not None and loss == loss}
    return min(known, key=lambda cell: known[cell]) if known else GRID[0]


def axis_k(base: Setting, seeds: Sequence[int]) -> Iterator[Setting]:
    for seed in seeds:
        for k in KS:
            for method in ("decoupled", "synced"):
                yield replace(base, method=method, k=k, seed=seed)


def axis_nodes(base: Setting, seeds: Sequence[int]) -> Iterator[Setting]:
    for seed in seeds:
        for nodes in NODES:
            for method in ("local", "decoupled", "synced", "paper"):
                yield of(base, method, seed, nodes=nodes)


def axis_inner_steps(base: Setting, seeds: Sequence[int]) -> Iterator[Setting]:
    for seed in seeds:
        for inner_steps in INNER_STEPS:
            for method in ("local", "decoupled", "synced", "paper"):
                yield of(base, method, seed, inner_steps=inner_steps)


def vision(base: Setting) -> Setting:
    """Around which that sweep goes: digits, or the images that were asked for."""
    subject = "digits" if base.subject == "language" else base.subject
    return replace(base, subject=subject, **VISION)


def wanted(
    sweep: str, base: Setting, seeds: Sequence[int], recorded: Callable[[], list[Record]]
) -> Iterator[Setting]:
    """The runs of a sweep, in their order; `recorded` is asked when it is known what to ask."""
    match sweep:
        case "default":
            return default(base, seeds)
        case "grid":
            return grid_and_best(base, seeds, recorded)
        case "k":
            return axis_k(base, seeds)
        case "nodes":
            return axis_nodes(base, seeds)
        case "inner-steps":
            return axis_inner_steps(base, seeds)
        case "promising":
            return tried(base, seeds, TRIED[:PROMISING])
        case "variants":
            return tried(base, seeds, TRIED)
        case "vision":
            return default(vision(base), seeds)
    raise SystemExit(f"no sweep {sweep}; choose one of {', '.join(SWEEPS)}")


def tried(
    base: Setting, seeds: Sequence[int], changes: Sequence[dict[str, Any]]
) -> Iterator[Setting]:
    """Changes to `decoupled`."""
    for seed in seeds:
        for change in changes:
            yield replace(base, seed=seed, **change)


SWEEPS = ("default", "grid", "promising", "variants", "k", "nodes", "inner-steps", "vision")
PROMISING = 3
VISION: dict[str, Any] = {"size": "0.08M", "batch_size": 16, "steps": 400}
TRIED: tuple[dict[str, Any], ...] = (
    {"variant": "lowrank-worth", "strength": 3.0},
    {"alpha": 1.3},
    {"outer_momentum": 0.3},
    {"variant": "lowrank-worth", "strength": 2.0},
    {"variant": "lowrank", "strength": 3.0},
    {"variant": "lowrank-worth", "strength": 3.0, "outer_momentum": 0.3},
    {"variant": "energy"},
    {"inner": "muon"},
    {"inner": "muon", "method": "local"},
    {"outer_momentum": 0.5},
    {"variant": "energy", "outer_momentum": 0.3},
    {"variant": "rota", "strength": 0.034, "k": 32},
    {"variant": "echo"},
    {"variant": "pull", "strength": 0.03},
    {"bits": 1},
    {"variant": "energy", "strength": 1.0},
)
"""What is changed, the more promising first."""
