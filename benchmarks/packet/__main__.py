"""Our packets' size and speed, beside other formats and beside what information theory says.

    python -m benchmarks.packet [--json] [--quick] [--models 1M odd …] [--record FILE]
    python -m benchmarks.packet --from FILE … [--picture docs/img/packet.png]

In one process, on one thread: nodes of a small swarm train on Python source, tell with k = 64 and
follow the agreed state for some rounds (`models.py`, `momenta.py`); what they owe then is written
down in every format (`sizes.py`, `formats.py`), what could be saved is estimated (`tries.py`), and
outer steps are timed in turns with DeMo's (`speed.py`). `--record` keeps what `--json` prints;
`--from` shows records again, joined, instead of measuring; `--picture` needs matplotlib, which
`make setup` does not install. Times are of the CPU, medians, per million parameters. Its `figures`:

bits_per_coefficient_k64, _k32   8 x a packet's bytes, everything in it / its coefficients, at 2
    bits per value; the worst of all models.
compression_k64         Bytes of the model's tensors in float32 / those of a packet, k = 64, 2 bits;
    the worst of the GPTs. It is less for the odd model, whose embedding of 40 columns is padded to
    chunks of 64: see the table.
outer_step_ms_per_million   A whole outer step with k = 32: own packet, four members' packets read,
    agreed state advanced, own model corrected.
outer_step_speedup_over_demo   DeMo's outer step of the same tensors / ours.
advance_ms_per_million  The daemon's part of it, per packet: decode, norm and a quarter of advance.
peak_bytes_per_parameter   Memory that the worker's part of a step takes beside the model and the
    mapped states, k = 32, at 25 M parameters (`memory.py`).
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from benchmarks.packet import sizes, speed, tries
from benchmarks.packet.figures import figures, show
from benchmarks.packet.models import SIZES
from benchmarks.packet.momenta import LADDER, grow
from benchmarks.summary import as_json

TIMED = "4M"  # all four nodes of it are trained
TIMED_K = 32
PICTURED = "4M"  # the whole ladder, where the others have two rungs
FEW = (32, 64)
QUICK = ("1M", "odd", "4M")
MEMORY_MILLIONS = 25
FILE_WIDTH = 140


def measure(names: list[str], repeats: int, console: Console) -> dict[str, Any]:
    """Everything; trains first."""
    torch.set_num_threads(1)
    began = time.monotonic()

    def say(text: str) -> None:
        console.print(f"{time.monotonic() - began:5.0f} s  {text}", highlight=False)

    rows, times, tried = [], {}, []
    for name in names:
        found = grow(SIZES[name], speed.PEERS if name == TIMED else 2, say)
        rows += sizes.measure(name, found, LADDER if name == PICTURED else FEW)
        tried += [tries.measure(name, found, k) for k in FEW]
        if name == TIMED:
            say(f"{name}: outer steps")
            times = speed.measure(found, TIMED_K, repeats)
            threads = min(4, os.cpu_count() or 1)
            times["contribute_by_threads"] = speed.by_threads(found, TIMED_K, threads, repeats)
            times["threads"] = threads
    say("memory")
    return {
        "sizes": rows,
        "times": times,
        "tries": tried,
        "peak": _peak(),
        "load": os.getloadavg()[0],
    }


def _peak() -> dict[str, float]:
    command = [sys.executable, "-m", "benchmarks.packet.memory", str(MEMORY_MILLIONS), str(TIMED_K)]
    done = subprocess.run(command, capture_output=True, check=True, text=True)
    return {"millions": MEMORY_MILLIONS, "bytes": float(done.stdout)}


def _joined(records: list[Path]) -> dict[str, Any]:
    """All sizes; times and memory of the last record that has them."""
    all_facts = [json.loads(record.read_text())["facts"] for record in records]
    joined = {name: value for facts in all_facts for name, value in facts.items() if value}
    rows = {
        name: [row for facts in all_facts for row in facts[name]] for name in ("sizes", "tries")
    }
    return {"times": {}, **joined, **rows}


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.packet", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--quick", action="store_true", help="small models, a minute or two")
    parser.add_argument("--models", nargs="+", choices=list(SIZES), help="instead of all")
    parser.add_argument("--repeats", type=int, default=9, help="of each outer step")
    parser.add_argument("--record", type=Path, help="write what --json prints to this file")
    parser.add_argument("--from", nargs="+", type=Path, dest="sources", help="records to show")
    parser.add_argument("--picture", type=Path, help="draw bits against k to this PNG")
    arguments = parser.parse_args()
    if arguments.sources is not None:
        facts = _joined(arguments.sources)
    else:
        names = arguments.models or (list(QUICK) if arguments.quick else list(SIZES))
        facts = measure(names, arguments.repeats, Console(stderr=True))
    told = {"figures": figures(facts), "facts": facts}
    if arguments.record is not None:
        arguments.record.write_text(as_json(told) + "\n")
    if arguments.picture is not None:
        from benchmarks.packet.picture import draw

        draw(facts["sizes"], PICTURED, arguments.picture)
    if arguments.json:
        print(as_json(told))
    else:
        show(told, Console() if sys.stdout.isatty() else Console(width=FILE_WIDTH))


if __name__ == "__main__":
    main()
