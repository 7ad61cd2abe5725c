"""Real nodes on emulated links: what their rounds took.

Rule: nodes start and meet on open links, for that is measured elsewhere; the links become thin
then, and some rounds pass before the first that counts.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.daemons import Daemon, World, sets, world
from benchmarks.wan.cases import HOSTS, OPEN
from benchmarks.wan.course import Round, read
from benchmarks.wanlab.lab import Lab

TASK = "synthetic_task:Synthetic"
TASK_FILE = Path(__file__).parents[1] / "synthetic_task.py"
BATCH_SIZE = 8
START_SECONDS = 300.0


@dataclass(frozen=True)
class Plan:
    """What the nodes do."""

    millions: float
    inner_steps: int = 10
    step_seconds: float = 0.5
    warm_rounds: int = 3
    rounds: int = 5
    settings: tuple[str, ...] = ()  # further arguments of each node

    @property
    def round_seconds(self) -> float:
        return self.inner_steps * self.step_seconds


@dataclass
class Outcome:
    rounds: list[Round]
    before: dict[str, Any]
    after: dict[str, Any]
    statuses: dict[str, Any] = field(default_factory=dict)

    def per_round(self, host: str, way: str) -> float:
        """Bytes of a host's interface."""
        passed = self.after["hosts"][host][way]["bytes"] - self.before["hosts"][host][way]["bytes"]
        return float(passed) / max(1, len(self.rounds))

    @property
    def overrun(self) -> int:
        return sum(int(host["overrun"]) for host in self.after["hosts"].values())


class Party:
    """Nodes on a lab's hosts."""

    def __init__(self, lab: Lab, held: ExitStack, hosts: tuple[str, ...] = HOSTS) -> None:
        self.lab = lab
        self.world: World = held.enter_context(world())
        shutil.copy(TASK_FILE, self.world.root)
        self.nodes = {host: self._node(host) for host in hosts}

    def _node(self, host: str) -> Daemon:
        made = self.world.daemon(host)
        made.place = partial(self.lab.inside, host)
        made.listen = f"/ip4/{self.lab.ip(host)}/tcp/0"
        return made

    def start(self, plan: Plan) -> None:
        """All nodes, until each has been in two rounds."""
        first, *others = self.nodes.values()
        own = [*sets(threads=1, log_level="debug"), *plan.settings]
        first.start("--task", TASK, *run_settings(plan), *own)
        for node in others:
            node.start("--task", TASK, "--peers", first.address, *own)
        for node in self.nodes.values():
            node.wait_for(lambda status: status.rounds_contributed >= 2, START_SECONDS)

    def await_round(self, number: int, seconds: float) -> None:
        for node in self.nodes.values():
            node.wait_for_round(number, seconds)

    @property
    def newest(self) -> int:
        return max(int(node.status.round) for node in self.nodes.values())

    def rounds(self) -> list[Round]:
        return read({host: node.facts() for host, node in self.nodes.items()})


def run_settings(plan: Plan) -> list[str]:
    return sets(
        inner_steps=plan.inner_steps,
        batch_size=BATCH_SIZE,
        evaluate_every=0,
        task__millions=plan.millions,
        task__pace_ms=plan.step_seconds * 1000,
    )


def play(links: Mapping[str, Mapping[str, Any]], plan: Plan, **lab_options: Any) -> Outcome:
    """Rounds on these links, from the first that counts."""
    with ExitStack() as held:
        lab = held.enter_context(Lab(dict.fromkeys(links, OPEN), seed=1, **lab_options))
        party = Party(lab, held, tuple(links))
        party.start(plan)
        for host, link in links.items():
            lab.set_link(host, **link)
        patience = 60 + 20 * plan.round_seconds
        first = party.newest + plan.warm_rounds
        party.await_round(first, patience * plan.warm_rounds)
        before = lab.stats()
        last = first + plan.rounds
        party.await_round(last, patience * plan.rounds)
        after = lab.stats()
        rounds = [one for one in party.rounds() if first < one.number <= last]
        statuses = {host: node.status for host, node in party.nodes.items()}
        return Outcome(rounds, before, after, statuses)
