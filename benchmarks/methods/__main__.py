"""The methods of a run side by side: what each costs in bytes and gives in loss.

    python -m benchmarks.methods [--quick] [--json] [--report] [--sweep NAME …] [--seeds 0,1,2]
                                 [--only METHOD …] [--set FIELD=VALUE …] [--records FOLDER]

K nodes train in one process, with the product's own inner loop, packets and outer step, and no
sockets: one node alone, all-reduce each step (`ddp`), local averaging, DiLoCo with its outer
learning rate and momentum taken from a grid, and the coded methods. Same first model, same data,
same number of samples. Every finished run is one line in FOLDER (docs/results), and is not run
again: a sweep may be stopped at any time and goes on where it was. One thread; hours for all
sweeps, about half an hour for the default one. `--report` runs nothing and writes docs/results.md
and the pictures from what is recorded; `--quick` runs a tiny setting and records nothing that
stays. `--set` changes the setting that the sweeps go around (see `settings.py`). `--json` prints
one object. Its `figures`, at the default setting, four nodes, means over the seeds; losses are of
the held-out part, nats per byte:

loss_dense              Local averaging: every parameter as float32, every round.
loss_diloco_tuned       The best cell of DiLoCo's grid.
loss_synced             Error feedback with reset; all models are the agreed state.
loss_decoupled_own      A node's own model.
loss_decoupled_merged   The mean of all nodes' models.
loss_paper              The mean of all nodes' models under the published method.
bytes_ratio_to_diloco   Bytes of a float32 pseudo-gradient / bytes of a packet.

Exit code 1 if a figure was asked for and could not be measured.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import fields, replace
from math import isfinite
from pathlib import Path
from typing import Any

import torch

from benchmarks.methods import plans, records
from benchmarks.methods.page import write_report
from benchmarks.methods.records import Record
from benchmarks.methods.report import figures
from benchmarks.methods.settings import Setting
from benchmarks.methods.swarm import play
from benchmarks.methods.synchronous import play_synchronous
from benchmarks.summary import as_json

FOLDER = Path("docs/results")


def main() -> None:
    arguments = _parse()
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    torch.set_num_threads(1)
    base = _changed(plans.QUICK if arguments.quick else plans.BASE, arguments.set)
    if arguments.quick:
        with tempfile.TemporaryDirectory(prefix="demoloco-methods-") as folder:
            for sweep in ("grid", "default"):
                run(_wanted(sweep, base, arguments, Path(folder)), Path(folder))
            found = records.read(Path(folder))
    else:
        if not arguments.report:
            for sweep in arguments.sweep:
                wanted = _wanted(sweep, base, arguments, arguments.records)
                run(wanted, arguments.records, sweep)
        found = records.read(arguments.records)
        if arguments.report:
            write_report(found, base)
    told = figures(found, base)
    if arguments.json:
        print(as_json({"figures": told, "runs": len(found), "versions": records.versions()}))
    else:
        for name, value in told.items():
            print(f"{name:24} {value:9.3f}")
    sys.exit(0 if all(map(isfinite, told.values())) else 1)


def run(wanted: Iterable[Setting], folder: Path, sweep: str = "runs") -> int:
    """Play what has no record yet; how many that were."""
    played = 0
    for setting in records.missing(wanted, folder):
        print(f"{setting.name} …", end=" ", file=sys.stderr, flush=True)
        course = play_synchronous(setting) if setting.method == "ddp" else play(setting)
        record = Record(setting, course)
        records.append(folder / f"{sweep}.jsonl", record)
        last = record.last
        losses = f"own {last.own:.4f} merged {last.merged:.4f} agreed {last.agreed:.4f}"
        print(f"{losses} in {course.cpu_seconds:.0f} s of CPU", file=sys.stderr)
        played += 1
    return played


def _wanted(
    sweep: str, base: Setting, arguments: argparse.Namespace, folder: Path
) -> Iterator[Setting]:
    seeds = [0] if arguments.quick else [int(one) for one in arguments.seeds.split(",")]
    for setting in plans.wanted(sweep, base, seeds, lambda: records.read(folder)):
        if arguments.only is None or setting.method in arguments.only:
            yield setting


def _changed(base: Setting, changes: list[str]) -> Setting:
    kinds: dict[str, Any] = {one.name: type(one.default) for one in fields(Setting)}
    for change in changes:
        name, _, text = change.partition("=")
        if name not in kinds:
            raise SystemExit(f"{name} is no field of a setting; choose from {', '.join(kinds)}")
        base = replace(base, **{name: kinds[name](text)})
    return base


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.methods", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--quick", action="store_true", help="a tiny setting, a minute")
    parser.add_argument("--report", action="store_true", help="from what is recorded; no runs")
    parser.add_argument("--sweep", nargs="+", choices=plans.SWEEPS, default=["default"])
    parser.add_argument("--seeds", default=",".join(map(str, plans.SEEDS)))
    parser.add_argument("--only", nargs="+", metavar="METHOD")
    parser.add_argument("--set", action="append", default=[], metavar="FIELD=VALUE")
    parser.add_argument("--records", type=Path, default=FOLDER)
    return parser.parse_args()


if __name__ == "__main__":
    main()
