"""The pictures of the default setting: loss against bytes and samples, drift against rounds.

Needs matplotlib, which `make setup` does not install.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.methods import plans, report
from benchmarks.methods.records import Record
from benchmarks.methods.report import Row
from benchmarks.methods.settings import Setting
from benchmarks.methods.swarm import Point

COLOURS = {
    "ddp": "0.55",
    "local": "0.2",
    "diloco": "tab:purple",
    "synced": "tab:orange",
    "decoupled": "tab:blue",
    "paper": "tab:red",
    "alone": "tab:brown",
}
LABELS = {
    "ddp": "all-reduce each step",
    "local": "dense averaging each round",
    "diloco": "DiLoCo, tuned",
    "alone": "one node alone",
}
Read = Callable[[Point], float]


def draw_all(found: Sequence[Record], base: Setting, folder: Path) -> None:
    """Write methods-bytes.png, methods-samples.png and methods-drift.png."""
    folder.mkdir(parents=True, exist_ok=True)
    rows = [one for one in _rows(found, base) if one.records]
    _curves(rows, lambda at: at.told_bytes, "bytes that a node has told", folder / "methods-bytes")
    _curves(rows, lambda at: at.samples, "samples, all nodes", folder / "methods-samples")
    _drift(rows, folder / "methods-drift")


def _rows(found: Sequence[Record], base: Setting) -> Iterator[Row]:
    for method in ("ddp", "local"):
        yield report.row(found, plans.of(base, method))
    best = plans.tuned(base, found)
    if best != plans.GRID[0]:
        yield report.row(found, plans.diloco(base, *best, seed=0))
    for method in ("decoupled", "synced", "paper"):
        yield report.row(found, plans.of(base, method))
    yield report.row(found, replace(plans.alone(base, 0), steps=base.steps * base.nodes))


def curve(row: Row, across: Read, up: Read) -> tuple[list[float], list[float]]:
    """Means over the seeds, point by point."""
    points = list(zip(*(record.course.points for record in row.records), strict=True))
    return (
        [statistics.fmean(map(across, seeds)) for seeds in points],
        [statistics.fmean(map(up, seeds)) for seeds in points],
    )


def _curves(rows: Sequence[Row], across: Read, title: str, path: Path) -> None:
    figure, axes = _axes(title, "held-out loss, nats per byte")
    for row in rows:
        method = row.setting.method
        if "bytes" in title and method == "alone":
            continue
        label = LABELS.get(method, method)
        told, loss = curve(row, across, report.merged)
        axes.plot(told, loss, color=COLOURS[method], label=label, linewidth=1.8)
        if method in ("decoupled", "paper"):
            told, loss = curve(row, across, report.own)
            label = f"{method}, a node's own model"
            axes.plot(told, loss, "--", color=COLOURS[method], label=label, linewidth=1.4)
        if method == "decoupled":
            told, loss = curve(row, across, report.agreed)
            label = f"{method}, the agreed state"
            axes.plot(told, loss, ":", color=COLOURS[method], label=label, linewidth=1.4)
    if "bytes" in title:
        axes.set_xscale("log")
    _save(figure, axes, path)


def _drift(rows: Sequence[Row], path: Path) -> None:
    figure, axes = _axes("round", "distance / norm of the mean model")
    for row in rows:
        method = row.setting.method
        if method not in ("decoupled", "synced", "paper"):
            continue
        rounds, apart = curve(row, lambda at: at.round, lambda at: at.apart)
        axes.plot(rounds, apart, color=COLOURS[method], label=f"{method}: models from their mean")
        rounds, behind = curve(row, lambda at: at.round, lambda at: at.behind)
        label = f"{method}: agreed state from it"
        axes.plot(rounds, behind, ":", color=COLOURS[method], label=label)
    _save(figure, axes, path)


def _axes(across: str, up: str) -> tuple[Any, Any]:
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(figsize=(7.5, 4.2), dpi=130)
    axes.set_xlabel(across)
    axes.set_ylabel(up)
    axes.grid(alpha=0.3)
    return figure, axes


def _save(figure: Any, axes: Any, path: Path) -> None:
    axes.legend(frameon=False, fontsize=8)
    figure.tight_layout()
    figure.savefig(path.with_suffix(".png"))
