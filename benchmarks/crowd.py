"""As many real nodes as the machine holds, in one run: `python -m benchmarks.crowd [--nodes 12]`.

What `benchmarks.scale` reckons in the simulator, here with real processes on 127.0.0.1, whose inner
steps take a set time (`synthetic_task.py`), so that training costs no CPU and all of it is the
swarm's. Nodes join one after the other while the others train. Counted from the round after that in
which the last of them was first heard. `figures`:

packets_share        Packets in the manifests / (rounds x nodes): 1 is nobody left out.
round_stretch        Seconds a round / the time of its inner steps.
bytes_per_node       Sent by a node in a round, everything, its packet and others' included.
join_seconds         From a node's start to its first packet in a manifest; median of the joiners.

Exit code 1 if nodes that kept the same round did not agree on its state.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import sys
import time
from pathlib import Path
from typing import Any

from rich.console import Console

from benchmarks.daemons import Daemon, World, sets, world
from benchmarks.summary import as_json

TASK, TASK_FILE = "synthetic_task:Synthetic", Path(__file__).with_name("synthetic_task.py")
BATCH_SIZE = 8
STEP_SECONDS = 0.5
PATIENCE_SECONDS = 600.0
OWN = sets(threads=1)
MEANINGS = {
    "packets_share": "packets in the manifests / (rounds x nodes)",
    "round_stretch": "seconds a round / those of its inner steps",
    "bytes_per_node": "sent by a node in a round",
    "join_seconds": "from a node's start to its first packet in a manifest",
}


def gather(
    place: World, count: int, steps: int, millions: float
) -> tuple[list[Daemon], list[float]]:
    """So many nodes in one run, and how long each joiner took to its first packet."""
    shutil.copy(TASK_FILE, place.root)
    nodes: list[Daemon] = []
    seconds: list[float] = []
    for number in range(count):
        began, node = time.monotonic(), place.daemon(f"node{number:02}")
        if not nodes:
            run = sets(
                inner_steps=steps,
                batch_size=BATCH_SIZE,
                evaluate_every=0,
                task__millions=millions,
                task__pace_ms=STEP_SECONDS * 1000,
            )
            node.start("--task", TASK, *run, *OWN)
        else:
            node.start("--task", TASK, "--peers", nodes[0].address, *OWN)
        node.wait_for(lambda status: status.rounds_contributed >= 1, PATIENCE_SECONDS)
        seconds.append(time.monotonic() - began)
        nodes.append(node)
    return nodes, seconds[1:]


def play(nodes: list[Daemon], rounds: int) -> dict[str, Any]:
    """What the next rounds were, of all nodes."""
    first = max(int(node.status.round) for node in nodes) + 1
    for node in nodes:
        node.wait_for_round(first, PATIENCE_SECONDS)
    began, sent = time.monotonic(), [node.status.bytes_sent for node in nodes]
    for node in nodes:
        node.wait_for_round(first + rounds, PATIENCE_SECONDS)
    took = time.monotonic() - began
    spent = [node.status.bytes_sent - before for node, before in zip(nodes, sent, strict=True)]
    chain = nodes[0].chain()
    packets = [chain[number]["packets"] for number in range(first + 1, first + rounds + 1)]
    return {
        "round_seconds": took / rounds,
        "packets": packets,
        "bytes_per_node": statistics.mean(spent) / rounds,
        "agree": agree(nodes),
    }


def agree(nodes: list[Daemon]) -> bool:
    """Whether all that were in a round at the same time stood on the same state."""
    states: dict[int, set[tuple[str, str]]] = {}
    for node in nodes:
        for moment in node.moments():
            states.setdefault(moment.round, set()).add((moment.head, moment.fingerprint))
    return all(len(one) == 1 for one in states.values())


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--nodes", type=int, default=12)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=20, help=f"a round, each {STEP_SECONDS} s")
    parser.add_argument("--millions", type=float, default=0.5, help="parameters")
    args = parser.parse_args()
    with world() as place:
        nodes, seconds = gather(place, args.nodes, args.steps, args.millions)
        found = play(nodes, args.rounds)
    figures = {
        "packets_share": sum(found["packets"]) / (args.rounds * args.nodes),
        "round_stretch": found["round_seconds"] / (args.steps * STEP_SECONDS),
        "bytes_per_node": found["bytes_per_node"],
        "join_seconds": statistics.median(seconds),
    }
    told = {"figures": figures, "facts": found | {"join_seconds": seconds}, "nodes": args.nodes}
    if args.json:
        print(as_json(told))
    else:
        for name, value in figures.items():
            Console().print(f"{name:14} {value:14,.3f}   {MEANINGS[name]}", highlight=False)
    return 0 if found["agree"] else 1


if __name__ == "__main__":
    sys.exit(main())
