"""The figures of a run, and its rows as tables for people."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from math import nan
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.packet.sizes import OURS, Row
from benchmarks.packet.speed import BITS, PEERS

Facts = Mapping[str, Any]

TARGETS: Mapping[str, str] = {
    "bits_per_coefficient_k64": "<= 9.1",
    "bits_per_coefficient_k32": "<= 10.0",
    "compression_k64": ">= 220",
    "outer_step_ms_per_million": "<= 12",
    "outer_step_speedup_over_demo": "",
    "advance_ms_per_million": "<= 0.5",
    "peak_bytes_per_parameter": "",
}


def figures(facts: Facts) -> dict[str, float]:
    """See the text of `__main__.py`; what was not measured is not a number."""
    times, rows = facts["times"], facts["sizes"]

    def worst(pick: Callable[..., float], fact: str, k: int, without: str = "") -> float:
        some = (row[fact] for row in _ours(rows, k) if row["model"] != without)
        return pick(some, default=nan)

    return {
        "bits_per_coefficient_k64": worst(max, "bits_per_coefficient", 64),
        "bits_per_coefficient_k32": worst(max, "bits_per_coefficient", 32),
        "compression_k64": worst(min, "compression", 64, without="odd"),
        "outer_step_ms_per_million": times.get("ours", nan),
        "outer_step_speedup_over_demo": times["demo"] / times["ours"] if times else nan,
        "advance_ms_per_million": (
            (times["ours_read"] + times["ours_advance"]) / PEERS if times else nan
        ),
        "peak_bytes_per_parameter": facts["peak"]["bytes"] / facts["peak"]["millions"] / 1e6,
    }


def _ours(rows: Iterable[Row], k: int) -> list[Row]:
    return [row for row in rows if row["format"] == OURS.format(BITS) and row["k"] == k]


def show(told: Facts, console: Console) -> None:
    """For people."""
    facts = told["facts"]
    table = Table(title="Packets of real momenta")
    columns = ("model", "M par.", "k", "format", "bits/coef.", "bits/par.", "x smaller", "error")
    for name in columns:
        table.add_column(name, justify="left" if name in ("model", "format") else "right")
    for row in facts["sizes"]:
        error = row["error"]
        table.add_row(
            row["model"],
            f"{row['millions']:.2f}",
            str(row["k"]),
            row["format"],
            f"{row['bits_per_coefficient']:.3f}",
            f"{row['bits_per_parameter']:.4f}",
            f"{row['compression']:.0f}",
            "" if error is None or error != error else f"{error:.4f}",
        )
    console.print(table)
    tries = Table(title="Bits per coefficient that could be saved at most, 2 bit")
    for column in ("model", "k", "packet", *facts["tries"][0]["saved"]):
        tries.add_column(column, justify="right")
    for one in facts["tries"]:
        saved = (f"{bits:.3f}" for bits in one["saved"].values())
        tries.add_row(one["model"], str(one["k"]), f"{one['bits']:.3f}", *saved)
    console.print(tries)
    times = Table("part", "CPU ms per M parameters", title="An outer step, k = 32, one thread")
    for name, value in facts["times"].items():
        times.add_row(name, f"{value:.2f}")
    console.print(times)
    summary = Table("figure", "value", "target", title="Figures")
    for name, value in told["figures"].items():
        summary.add_row(name, f"{value:.3f}", TARGETS[name])
    console.print(summary)
