"""The figures of a run, and its rows as a table for people."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from math import nan
from typing import Any

from rich.console import Console
from rich.table import Table

Facts = Mapping[str, Any]

TARGETS: Mapping[str, str] = {
    "worst_ratio_to_limit": "<= 1.25",
    "training_share_min": ">= 0.98",
    "training_share_10mbit": ">= 0.95",
    "speedup_over_hivemind_fp16_min": ">= 30",
    "speedup_over_hivemind_8bit_min": "",
    "fast_node_slowdown": "<= 0.03",
    "join_ratio_to_limit": "<= 1.2",
}
TEN_MBIT = 10


def figures(found: Facts) -> dict[str, float]:
    """See the text of `__main__.py`; what was not measured is not a number."""
    ours = found["ours"]
    slowdown, join = found["slowdown"], found["join"]
    return {
        "worst_ratio_to_limit": _worst(max, (row["ratio_to_limit"] for row in ours)),
        "training_share_min": _worst(min, (row["training_share"] for row in ours)),
        "training_share_10mbit": _worst(
            min, (row["training_share"] for row in ours if row["mbit"] == TEN_MBIT)
        ),
        "speedup_over_hivemind_fp16_min": _worst(min, speedups(found, "float16")),
        "speedup_over_hivemind_8bit_min": _worst(min, speedups(found, "uniform8")),
        "fast_node_slowdown": (
            slowdown["thin_round_seconds"] / slowdown["fast_round_seconds"] - 1 if slowdown else nan
        ),
        "join_ratio_to_limit": join["seconds"] / join["limit_seconds"] if join else nan,
    }


def _worst(pick: Any, values: Iterable[float]) -> float:
    known = [value for value in values if value is not None and value == value]
    return float(pick(known, default=nan))


def speedups(found: Facts, compression: str) -> Iterator[float]:
    """Their all-reduce / our exchange, where both were measured at one size."""
    for row in found["pinned"]:
        for other in found["hivemind"]:
            alike = (row["link"], row["millions"]) == (other["link"], other["millions"])
            if alike and other["compression"] == compression:
                yield other["seconds"] / row["exchange_seconds"]


def complaints(found: Facts) -> list[str]:
    """What makes the run worth less."""
    wrong = []
    for row in (*found["ours"], *found["pinned"]):
        where = f"{row['link']}, {row['millions']:g} M"
        if row["overrun"]:
            wrong.append(f"{where}: the router was too slow for {row['overrun']} packets")
        if row["whole_rounds"] < row["rounds"]:
            left = row["rounds"] - row["whole_rounds"]
            wrong.append(f"{where}: {left} of {row['rounds']} rounds closed without some member")
    for row in found["hivemind"]:
        where = f"{row['link']}, hivemind {row['compression']}"
        wrong += [f"{where}: {one}" for one in row["wrong"]]
        if row["overrun"]:
            wrong.append(f"{where}: the router was too slow for {row['overrun']} packets")
        if row["gave_up_after"] is not None:
            wrong.append(f"{where}: given up after {row['gave_up_after']:g} s")
    if found["join"] and found["join"]["rounds_lost"]:
        wrong.append(f"others lost {found['join']['rounds_lost']} packets while a node joined")
    return wrong


Column = tuple[str, str, str]
"""Its title, the fact, how a number is written."""

OUR_COLUMNS: tuple[Column, ...] = (
    ("link", "link", ""),
    ("M par.", "millions", "g"),
    ("round s", "round_seconds", ".2f"),
    ("exchange s", "exchange_seconds", ".3f"),
    ("limit s", "limit_seconds", ".3f"),
    ("ratio", "ratio_to_limit", ".2f"),
    ("apply s", "apply_seconds", ".2f"),
    ("training", "training_share", ".1%"),
    ("k", "k", ""),
    ("packet B", "packet_bytes", ",.0f"),
    ("up B", "bytes_up_per_round", ",.0f"),
    ("down B", "bytes_down_per_round", ",.0f"),
    ("whole", "whole_rounds", ""),
)
THEIR_COLUMNS: tuple[Column, ...] = (
    ("link", "link", ""),
    ("M par.", "millions", "g"),
    ("as", "compression", ""),
    ("all-reduce s", "seconds", ".2f"),
    ("search s", "matchmaking_seconds", ".2f"),
    ("up B", "bytes_up", ",.0f"),
)


def show(told: Facts, console: Console) -> None:
    """For people."""
    found = told["facts"]
    _rows(console, "Our rounds, k by the link", OUR_COLUMNS, found["ours"])
    _rows(console, "Our rounds, k = 64", OUR_COLUMNS, found["pinned"])
    _rows(console, "hivemind's DecentralizedAverager", THEIR_COLUMNS, found["hivemind"])
    table = Table("figure", "value", "target", title="Figures")
    for name, value in told["figures"].items():
        table.add_row(name, f"{value:.3f}", TARGETS[name])
    console.print(table)
    for one in told["wrong"]:
        console.print(f"NOTE: {one}", markup=False)


def _rows(console: Console, title: str, columns: Sequence[Column], rows: Sequence[Facts]) -> None:
    if not rows:
        return
    table = Table(title=title)
    for name, _, how in columns:
        table.add_column(name, justify="right" if how else "left", no_wrap=True)
    for row in rows:
        table.add_row(*(_shown(row[fact], how) for _, fact, how in columns))
    console.print(table)


def _shown(value: Any, how: str) -> str:
    if isinstance(value, list):
        return " ".join(format(one, how) for one in value)
    return format(value, how)
