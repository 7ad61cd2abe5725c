"""What a node of a swarm costs as the swarm grows: `python -m benchmarks.scale`.

In the simulator, with the real round machines and the real choice of who is told what: messages and
bytes that a node sends per round, seconds from the last packet to the commit, seconds to join, and
until a death is noticed. Growth is the exponent of the number of nodes in a fit of a power: 0 is a
cost that stays, 1 one that grows as the swarm.

Bytes are those of all messages without packets: hellos (they go by time: a round here has some ten
seconds of training), announcements, manifests, and what is asked for again; without the framing of
the road. Packets are told beside them. Sizes come from the real encoders.

`figures`: bytes_per_node_growth_exponent and messages_per_node_growth_exponent, over all sizes.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table

from benchmarks.simulator.census import Census, take

NODES = (4, 8, 16, 32, 64, 128, 256)
ROUNDS = 20
MANY = 128
ROUNDS_OF_MANY = 8
"""So many rounds from MANY nodes on: the figures are means over nodes too."""


def exponent(sizes: Sequence[float], costs: Sequence[float]) -> float:
    """The power of the size with which the cost grows, by least squares over logarithms; nan where
    that is not determined."""
    if len(set(sizes)) < 2 or min(*sizes, *costs) <= 0:
        return math.nan
    xs, ys = [math.log(size) for size in sizes], [math.log(cost) for cost in costs]
    x, y = sum(xs) / len(xs), sum(ys) / len(ys)
    over = sum((one - x) * (other - y) for one, other in zip(xs, ys, strict=True))
    return over / sum((one - x) ** 2 for one in xs)


def larger_half(found: Sequence[Census]) -> Sequence[Census]:
    """The larger half of the sizes, the middle one among them."""
    return found[len(found) // 2 :]


def figures(found: Sequence[Census]) -> dict[str, float]:
    """See the text above; `found` in order of size."""
    told: dict[str, float] = {}
    for name, some in (("", found), ("_of_larger_half", larger_half(found))):
        sizes = [one.nodes for one in some]
        sent = [one.bytes_per_node for one in some]
        calls = [one.messages_per_node for one in some]
        told[f"bytes_per_node_growth_exponent{name}"] = exponent(sizes, sent)
        told[f"messages_per_node_growth_exponent{name}"] = exponent(sizes, calls)
    return told


def table(found: Sequence[Census]) -> Table:
    """For a terminal of 80 columns; a death: until half and until all others gave the node up."""
    title = "what a node sends in a round, without packets: messages, kB; and seconds"
    shown = Table(title=title, box=SIMPLE, pad_edge=False)
    columns = ("nodes", "messages", "kB", "hellos", "offers", "manifests")
    for name in (*columns, "commit", "join", "death"):
        shown.add_column(name, justify="right", no_wrap=True)
    for one in found:
        manifests = one.sent.get("publication", 0.0) + one.sent.get("manifests", 0.0)
        shown.add_row(
            str(one.nodes),
            f"{one.messages_per_node:.0f}",
            f"{one.bytes_per_node / 1e3:.1f}",
            f"{one.sent.get('hello', 0.0) / 1e3:.1f}",
            f"{one.sent.get('announcement', 0.0) / 1e3:.1f}",
            f"{manifests / 1e3:.1f}",
            f"{one.commit_seconds:.1f}",
            f"{one.join_seconds:.1f}",
            "{:.0f}-{:.0f}".format(*one.death_seconds),
        )
    return shown


def report(found: Sequence[Census], seconds: float) -> dict[str, Any]:
    """All that was found, for machines."""
    return {
        "figures": {name: _known(value) for name, value in figures(found).items()},
        "sizes": [
            {key: _known(value) for key, value in asdict(one).items()}
            | {"messages_per_node": one.messages_per_node, "bytes_per_node": one.bytes_per_node}
            for one in found
        ],
        "seconds": seconds,
    }


def _known(value: Any) -> Any:
    """JSON has no word for what is not known."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return [_known(one) for one in value] if isinstance(value, tuple) else value


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", action="store_true", help="figures and facts as JSON")
    parser.add_argument("--nodes", default=",".join(map(str, NODES)), help="sizes, with commas")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help=f"up to {MANY} nodes")
    parser.add_argument("--loss", type=float, default=0.0, help="share of messages that get lost")
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    began, found = time.monotonic(), []
    for nodes in sorted({int(size) for size in args.nodes.split(",")}):
        rounds = args.rounds if nodes < MANY else min(args.rounds, ROUNDS_OF_MANY)
        found.append(take(nodes, rounds, seed=args.seed, loss=args.loss))
        print(f"{nodes} nodes, {time.monotonic() - began:.0f} s", file=sys.stderr, flush=True)
    told = report(found, time.monotonic() - began)
    if args.json:
        print(json.dumps(told))
        return 0
    console = Console()
    console.print(table(found))
    for name, value in told["figures"].items():
        console.print(f"{name}  {'not known' if value is None else f'{value:.3f}'}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
