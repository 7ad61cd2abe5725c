"""Held-out loss over time: nodes of one run, the last of which joins late, beside one node alone.

    python -m benchmarks.loss_curve [--json] [--picture docs/img/loss.png]

Real daemons on this machine train the default task. Nodes share the cores, so the clock favours the
node alone; what the picture shows is that the run's nodes agree, that a late node catches up, and
what each round tells. `--json` prints one object whose `figures` maps names to numbers; `--picture`
needs matplotlib, which `make setup` does not install.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import tempfile
import threading
import time
from collections import defaultdict
from pathlib import Path

from demoloco_client.local_node import LocalNode, node_program
from demoloco_proto.v1.control_pb2 import StatusReply

START_SECONDS = 120.0
LEAVE_SECONDS = 40.0
JOIN_AFTER_ROUNDS = 8


class Gallery:
    """Nodes of this benchmark and what they said of their held-out loss."""

    def __init__(self, home: Path) -> None:
        self._home = home
        self._changed = threading.Condition()
        self.nodes: dict[str, LocalNode] = {}
        self.losses: dict[str, dict[int, float]] = defaultdict(dict)

    def start(self, name: str, *arguments: str) -> LocalNode:
        """A node with one thread, so that all have the same share of the machine."""
        node = LocalNode(name, self._home / name)
        listen = ["--listen", "/ip4/127.0.0.1/tcp/0", "--set", "threads=1"]
        node.start([*node_program(), "--home", str(node.home), *listen, *arguments])
        node.follow(self._hear)
        self.nodes[name] = node
        return node

    def _hear(self, node: LocalNode, status: StatusReply) -> None:
        with self._changed:
            if status.HasField("eval_loss"):
                self.losses[node.name][status.eval_round] = status.eval_loss
            self._changed.notify_all()

    def wait_for_round(self, name: str, round_: int, seconds: float) -> StatusReply:
        """Its status then; the benchmark ends if the node does, or takes longer."""
        node = self.nodes[name]

        def reached() -> bool:
            if node.exit_code() is not None:
                raise SystemExit("\n".join(node.last_lines(20)))
            return (
                node.status is not None
                and bool(node.status.addresses)
                and node.status.round >= round_
            )

        with self._changed:
            if not self._changed.wait_for(reached, seconds):
                raise SystemExit(f"{name} did not reach round {round_} in {seconds:.0f} s")
        assert node.status is not None
        return node.status

    def stop(self) -> None:
        """Let all leave in order, and kill who has not by the deadline."""
        for node in self.nodes.values():
            node.ask_to_leave()
        deadline = time.monotonic() + LEAVE_SECONDS
        for node in self.nodes.values():
            while node.exit_code() is None and time.monotonic() < deadline:
                time.sleep(0.1)
            node.kill()


def measure(
    rounds: int, seconds_per_round: float, settings: list[str]
) -> dict[str, dict[int, float]]:
    """Held-out losses by node and round: three nodes together, then one alone."""
    wished = [part for one in ("evaluate_every=1", *settings) for part in ("--set", one)]
    home = Path(tempfile.mkdtemp(prefix="demoloco-loss-"))
    gallery = Gallery(home)
    try:
        gallery.start("first", *wished)
        address = gallery.wait_for_round("first", 0, START_SECONDS).addresses[0]
        gallery.start("second", "--peers", address)
        gallery.wait_for_round("first", JOIN_AFTER_ROUNDS, START_SECONDS + 8 * seconds_per_round)
        gallery.start("late", "--peers", address)
        for name in ("first", "second", "late"):
            gallery.wait_for_round(name, rounds, rounds * seconds_per_round)
        gallery.stop()
        gallery.start("alone", *wished)
        gallery.wait_for_round("alone", rounds, rounds * seconds_per_round)
    finally:
        gallery.stop()
        shutil.rmtree(home, ignore_errors=True)
    return {name: dict(curve) for name, curve in gallery.losses.items()}


def draw(losses: dict[str, dict[int, float]], picture: Path) -> None:
    """The curves as a PNG."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(figsize=(7.5, 4.2), dpi=130)
    styles = {"first": "-", "second": "--", "late": "-.", "alone": ":"}
    for name, curve in losses.items():
        label = "one node alone" if name == "alone" else f"{name} node of three"
        axes.plot(list(curve), list(curve.values()), styles[name], label=label, linewidth=1.8)
    axes.set_xlabel("round")
    axes.set_ylabel("held-out loss, nats per byte")
    axes.grid(alpha=0.3)
    axes.legend(frameon=False)
    figure.tight_layout()
    picture.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(picture)


def figures(losses: dict[str, dict[int, float]]) -> dict[str, float]:
    """The last held-out loss of each curve, and how far the run's nodes are apart at the end."""
    last = {name: curve[max(curve)] for name, curve in losses.items() if curve}
    together = [loss for name, loss in last.items() if name != "alone"]
    return {
        **{f"loss_{name}": loss for name, loss in last.items()},
        "spread": max(together) - min(together),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--seconds-per-round", type=float, default=60.0, help="patience")
    parser.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE", help="of the run"
    )
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--picture", type=Path)
    parser.add_argument("--from", dest="recorded", type=Path, help="losses of an earlier --json")
    arguments = parser.parse_args()
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    if arguments.recorded is not None:
        raw = json.loads(arguments.recorded.read_text())["losses"]
        losses = {name: {int(r): v for r, v in curve.items()} for name, curve in raw.items()}
    else:
        losses = measure(arguments.rounds, arguments.seconds_per_round, arguments.set)
    if arguments.picture is not None:
        draw(losses, arguments.picture)
    if arguments.json:
        json.dump({"figures": figures(losses), "losses": losses}, sys.stdout)
        print()
    else:
        for name, value in figures(losses).items():
            print(f"{name:12} {value:.3f}")


if __name__ == "__main__":
    main()
