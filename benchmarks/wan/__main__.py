"""Rounds over thin and unequal links, beside hivemind's averaging and beside what physics allows.

    python -m benchmarks.wan [--json] [--quick] [--only LINK …] [--sizes 10M,100M] [--tcp cubic|bbr]
                             [--record FILE]

On links that `benchmarks.wanlab` emulates (root is needed), in one run: (a) four real daemons with
a task whose inner steps take a set time (`synthetic_task.py`), (b) four peers of hivemind's
DecentralizedAverager with dense tensors, in float16 and in 8 bits, (c) the limit (`limit.py`).
Settings (`cases.py`): 100 Mbit/s and 30 ms; 20 Mbit/s, 100 ms; 10 Mbit/s, 100 ms, 1 % loss;
2 Mbit/s, 300 ms; one uplink of 5 Mbit/s among 50 Mbit/s. Both sides have the same kernel, the same
windows and the same TCP congestion control. Times are medians over nodes and rounds, bytes are the
interfaces'. `--json` prints one object. Its `figures`:

worst_ratio_to_limit    Exchange / its limit, the worst of all settings and sizes. The exchange of a
    round lasts from when the last member's packet is made until the manifest and all its packets
    are durable on a node. The limit is that of the same packets. The worker's work on the round
    (`apply_seconds`) needs no link and goes on beside training: it is told apart.
training_share_min      (Inner steps x the time that one takes) / the time that passed, from a
    node's first packet to its last; median of the nodes, the least of all settings and sizes. What
    is missing is waiting and computing around the steps: making packets, applying rounds.
training_share_10mbit   The same at 10 Mbit/s, 100 ms, 1 % loss.
speedup_over_hivemind_fp16_min   Their all-reduce, from the first peer's beginning to the last
    peer's end and without the search for a group before it / our exchange with k = 64, at 25 M
    parameters and at most 20 Mbit/s; the least. With --quick: at 20 Mbit/s, the small size.
speedup_over_hivemind_8bit_min   The same with uniform 8-bit quantisation.
fast_node_slowdown      How much longer a round takes the three fast nodes (50 Mbit/s, 30 ms) when
    the fourth has 2 Mbit/s up and is 300 ms away, than when it is like them. 0.03 = 3 %.
join_ratio_to_limit     A fifth node joins, all having 20 Mbit/s and 100 ms: from the beginning of
    its fetching until it stands on the agreed state / the bytes of snapshot and gift on its
    downlink.

Exit code 1 if a figure was asked for and could not be measured.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import time
from math import isfinite
from pathlib import Path

from rich.console import Console

from benchmarks.summary import as_json
from benchmarks.wan.cases import SETTINGS
from benchmarks.wan.figures import complaints, figures, show
from benchmarks.wan.measure import Choice, Facts, measure, nothing
from benchmarks.wanlab.lab import why_unavailable

QUICK_SETTINGS = ("100mbit-30ms", "20mbit-100ms", "10mbit-100ms-1%")
QUICK_SIZES = "4M"
SIZES = "10M,100M"
FILE_WIDTH = 140


def millions(text: str) -> list[float]:
    """10M,100M → 10, 100."""
    return sorted(float(one.strip().upper().removesuffix("M")) for one in text.split(","))


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.wan", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--quick", action="store_true", help="three links, one small size, minutes")
    parser.add_argument("--only", nargs="+", choices=list(SETTINGS), metavar="LINK", default=None)
    parser.add_argument("--sizes", help=f"parameters, {SIZES} by default")
    parser.add_argument("--tcp", default="cubic", help="congestion control, of both sides")
    parser.add_argument("--record", type=Path, help="keep what is measured here, and go on from it")
    arguments = parser.parse_args()
    if reason := why_unavailable():
        raise SystemExit(f"the links cannot be emulated here: {reason}")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # what was started is still ended
    names = arguments.only or (QUICK_SETTINGS if arguments.quick else list(SETTINGS))
    choice = Choice(
        settings=[SETTINGS[name] for name in names],
        sizes=millions(arguments.sizes or (QUICK_SIZES if arguments.quick else SIZES)),
        quick=arguments.quick,
        tcp=arguments.tcp,
    )
    load, began = os.getloadavg()[0], time.monotonic()
    errors = Console(stderr=True)

    def told(found: Facts) -> Facts:
        return {
            "figures": figures(found),
            "facts": found,
            "wrong": complaints(found),
            "tcp": choice.tcp,
            "load_before": load,
            "seconds": time.monotonic() - began,
        }

    def keep(found: Facts) -> None:
        if arguments.record is not None:
            arguments.record.write_text(as_json(told(found)) + "\n")

    def say(text: str) -> None:
        errors.print(f"{_clock(began)} {text}", highlight=False)

    whole = told(measure(choice, say, _recorded(arguments.record), keep))
    if arguments.json:
        print(as_json(whole))
    else:
        show(whole, Console() if sys.stdout.isatty() else Console(width=FILE_WIDTH))
    sys.exit(0 if all(map(isfinite, whole["figures"].values())) else 1)


def _recorded(record: Path | None) -> Facts:
    """What an earlier run left."""
    if record is None or not record.exists():
        return nothing()
    found: Facts = json.loads(record.read_text())["facts"]
    return found


def _clock(began: float) -> str:
    minutes, seconds = divmod(round(time.monotonic() - began), 60)
    return f"{minutes:3}:{seconds:02}"


if __name__ == "__main__":
    main()
