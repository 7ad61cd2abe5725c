"""docs/results.md and its pictures: a template's text around tables and figures from records.

Rule: no number of a result stands in the template; what a run did not give is not on the page.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from string import Template

from benchmarks.methods import pictures, report, tables
from benchmarks.methods.records import Record
from benchmarks.methods.settings import Setting

ROOT = Path(__file__).parents[2]
TEMPLATE = Path(__file__).with_name("results.template.md")
PAGE = ROOT / "docs/results.md"
IMAGES = ROOT / "docs/img"


def write_report(found: Sequence[Record], base: Setting) -> None:
    """Write the page, and the pictures that it shows."""
    PAGE.write_text(page(found, base))
    pictures.draw_all(found, base, IMAGES)


def page(found: Sequence[Record], base: Setting) -> str:
    """The page's text."""
    one = report.row(found, base)
    parameters = one.records[0].course.parameters if one.records else 0
    shown = {
        "methods": tables.methods_table(found, base),
        "grid": tables.grid_table(found, base),
        "k": tables.k_table(found, base),
        "nodes": tables.axis_table(found, base, "nodes"),
        "inner_steps": tables.axis_table(found, base, "inner_steps"),
        "published": tables.published_table(found, base),
        "variants": tables.variants_table(found, base),
        "subjects": tables.subjects_table(found),
    }
    facts = {
        "parameters": f"{parameters:,}",
        "nodes_count": str(base.nodes),
        "steps": f"{base.steps:,}",
        "h": str(base.inner_steps),
        "rounds": str(base.rounds),
        "default_k": str(base.k),
        "batch": str(base.batch_size),
        "runs": str(len(found)),
        "cpu_hours": f"{sum(r.course.cpu_seconds for r in found) / 3600:.1f}",
        **{name: f"{value:.3f}" for name, value in report.figures(found, base).items()},
    }
    return Template(TEMPLATE.read_text()).substitute(shown | facts)
