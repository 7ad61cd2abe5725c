"""Bits per kept coefficient against k, all formats and the limit, as a PNG."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from benchmarks.packet.sizes import Row

STYLES = {
    "DeMo, 64 + 32 bit": ("#9a9a9a", "s", "-"),
    "Psyche, 16 + 1 bit": ("#c98a2b", "^", "-"),
    "12 + 2 bit": ("#7a5ea8", "v", "-"),
    "ours, 4 bit": ("#8fc1e3", "o", "-"),
    "ours, 2 bit": ("#1f77b4", "o", "-"),
    "limit, 2 bit": ("#1f77b4", "", ":"),
    "ours, 1 bit": ("#2a9d5c", "o", "-"),
    "limit, 1 bit": ("#2a9d5c", "", ":"),
}
TICKS = (6, 8, 10, 12, 14, 17, 24, 32, 48, 64, 96)


def draw(rows: Iterable[Row], model: str, path: Path) -> None:
    """All formats of one model."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    mine = [row for row in rows if row["model"] == model]
    if not mine:
        raise SystemExit(f"nothing was recorded of {model}")
    figure, axes = plt.subplots(figsize=(7.5, 4.6), dpi=130)
    for name, (colour, marker, line) in STYLES.items():
        points = sorted(
            (row["k"], row["bits_per_coefficient"]) for row in mine if row["format"] == name
        )
        ks, bits = zip(*points, strict=True)
        axes.plot(ks, bits, color=colour, marker=marker or None, linestyle=line, label=name, ms=4)
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_xticks(ks, [str(k) for k in ks])
    axes.set_yticks(TICKS, [str(tick) for tick in TICKS])
    axes.minorticks_off()
    axes.set_xlabel("k: coefficients kept of each 4096")
    axes.set_ylabel("bits per kept coefficient, all in")
    millions = mine[0]["millions"]
    axes.set_title(f"Packets of real momenta: a GPT of {millions:.1f} M parameters", fontsize=10)
    axes.grid(alpha=0.25)
    axes.legend(fontsize=8, ncols=2, frameon=False)
    figure.tight_layout()
    figure.savefig(path)
