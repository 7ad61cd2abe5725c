"""The tables of the page, as markdown.

Rule: as in `report`, a pure function of the records.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from math import nan

from benchmarks.methods import plans
from benchmarks.methods.records import Record
from benchmarks.methods.report import Row, agreed, merged, own, row
from benchmarks.methods.settings import CODED, Setting

PUBLISHED_BITS = 96  # a coefficient in the published code: an int64 index and a float32 value

Columns = Sequence[tuple[str, Callable[[Row], str]]]

LOSSES: Columns = (
    ("own model", lambda one: one.shown(own)),
    ("mean of models", lambda one: one.shown(merged)),
    ("agreed state", lambda one: one.shown(agreed)),
)
DISTANCES: Columns = (
    ("apart", lambda one: one.shown(lambda last: last.apart)),
    ("behind", lambda one: one.shown(lambda last: last.behind)),
)
BYTES: Columns = (
    ("bytes a round", lambda one: f"{one.told_a_round:,.0f}"),
    ("fewer than DiLoCo", lambda one: ratio(one.dense_bytes, one.told_a_round)),
    (
        "fewer than DDP",
        lambda one: ratio(one.dense_bytes * one.setting.inner_steps, one.told_a_round),
    ),
)
SEEDS: Columns = (("seeds", lambda one: str(len(one.records))),)


def ratio(more: float, less: float) -> str:
    if not less:
        return "–"
    return f"{more / less:,.0f} ×" if more >= 10 * less else f"{more / less:.2g} ×"


def table(rows: Iterable[tuple[str, Row]], columns: Columns, first: str = "method") -> str:
    """As markdown; rows without a record are left out."""
    names = [first, *(name for name, _ in columns)]
    lines = ["| " + " | ".join(names) + " |", "| --- |" + " ---: |" * len(columns)]
    for name, one in rows:
        if one.records:
            lines.append(f"| {name} | " + " | ".join(show(one) for _, show in columns) + " |")
    return "\n".join(lines) if len(lines) > 2 else "*not recorded yet*"


def methods_table(found: Sequence[Record], base: Setting) -> str:
    best = plans.tuned(base, found)

    def coded(one: Setting) -> tuple[str, Row]:
        mean = ", mean over senders" if one.mean_over == "senders" else ""
        return f"`{one.method}`, k = {one.k}, {one.bits} bits{mean}", row(found, one)

    longer = replace(plans.alone(base, 0), steps=base.steps * base.nodes)
    rows = [
        ("DDP, all-reduce each step", row(found, replace(base, method="ddp"))),
        ("local averaging, each round", row(found, replace(base, method="local"))),
        (f"DiLoCo, tuned: {best[0]:g}, {best[1]:g}", row(found, plans.diloco(base, *best, seed=0))),
        *(coded(plans.of(base, name)) for name in CODED),
        coded(plans.of(base, "paper", mean_over="senders")),
        coded(replace(base, method="paper")),
        ("one node alone, all samples", row(found, longer)),
        ("one node alone, its share", row(found, plans.alone(base, 0))),
    ]
    return table(rows, (*BYTES, *LOSSES, *DISTANCES, *SEEDS))


def grid_table(found: Sequence[Record], base: Setting) -> str:
    rows = [
        (f"{rate:g}, {momentum:g}", row(found, plans.diloco(base, rate, momentum, seed=0)))
        for rate, momentum in plans.GRID
    ]
    columns = (("loss", lambda one: one.shown(merged)), *SEEDS)
    return table(rows, columns, "outer rate, momentum")


def k_table(found: Sequence[Record], base: Setting) -> str:
    rows = [
        (f"`{method}`, k = {k}", row(found, replace(base, method=method, k=k)))
        for method in ("decoupled", "synced")
        for k in plans.KS
    ]
    return table(rows, (*BYTES, *LOSSES, *DISTANCES, *SEEDS))


def axis_table(found: Sequence[Record], base: Setting, axis: str) -> str:
    """`axis`: nodes or inner_steps."""
    values = plans.NODES if axis == "nodes" else plans.INNER_STEPS
    sign = "K" if axis == "nodes" else "H"
    rows = [
        (
            f"`{method}`, {sign} = {value}",
            row(found, plans.of(base, method, **{axis: value})),
        )
        for value in values
        for method in ("local", *CODED)
    ]
    return table(rows, (BYTES[0], *LOSSES, *DISTANCES, *SEEDS))


def published_table(found: Sequence[Record], base: Setting) -> str:
    """Bytes a node tells against those of DiLoCo and DDP, beside the paper's."""
    lines = [
        "| | fewer than DiLoCo | fewer than DDP |",
        "| --- | ---: | ---: |",
        "| the paper, arXiv:2510.03371 | 16 × | about 3,000 × |",
    ]
    one = row(found, replace(base, method="decoupled"))
    if one.records:
        told, dense = one.told_a_round, one.dense_bytes
        coefficients = base.k * -(-one.records[0].course.parameters // 4096)
        theirs = coefficients * PUBLISHED_BITS / 8
        for name, size in (
            (f"the published code's format, k = {base.k}, H = {base.inner_steps}", theirs),
            (f"ours, k = {base.k}, H = {base.inner_steps}", told),
        ):
            lines.append(
                f"| {name} | {ratio(dense, size)} | {ratio(dense * base.inner_steps, size)} |"
            )
    return "\n".join(lines)


def variants_table(found: Sequence[Record], base: Setting) -> str:
    """Changes to `decoupled` that were tried at the default setting, beside it."""
    rows = [("as it is", row(found, replace(base, method="decoupled")))]
    rows += [(variant_name(one), row(found, one)) for one in _variants(found, base)]
    return table(rows, (BYTES[0], *LOSSES, *DISTANCES, *SEEDS), "change")


def variant_name(setting: Setting) -> str:
    """What was changed, in words."""
    shown = [f"{setting.method}"] if setting.method != "decoupled" else []
    names = ("variant", "strength", "alpha", "beta", "outer_momentum", "bits", "inner", "k")
    changed = (one for one in names if getattr(setting, one) != getattr(Setting(), one))
    return ", ".join([*shown, *(f"{one} {getattr(setting, one)}" for one in changed)])


def _variants(found: Sequence[Record], base: Setting) -> list[Setting]:
    tried = {
        replace(one.setting, seed=0)
        for one in found
        if one.setting.method not in ("paper", "diloco")
        and _is_variant(one.setting)
        and (one.setting.nodes, one.setting.inner_steps) == (base.nodes, base.inner_steps)
        and (one.setting.subject, one.setting.size) == (base.subject, base.size)
    }
    return sorted(tried, key=lambda one: one.name)


def _is_variant(setting: Setting) -> bool:
    usual = Setting()
    changed = ("variant", "alpha", "beta", "outer_momentum", "bits", "inner")
    return any(getattr(setting, name) != getattr(usual, name) for name in changed)


def subjects_table(found: Sequence[Record]) -> str:
    """Other subjects and sizes than the default one."""
    others = {
        replace(one.setting, seed=0)
        for one in found
        if (one.setting.subject, one.setting.size) != (Setting().subject, Setting().size)
    }
    ordered = sorted(others, key=lambda one: one.name)
    rows = [(f"{one.subject} {one.size}, `{one.method}`", row(found, one)) for one in ordered]
    accuracy = ("accuracy", lambda one: one.shown(lambda last: last.accuracy or nan))
    return table(rows, (BYTES[0], *LOSSES, accuracy, *SEEDS), "subject")
