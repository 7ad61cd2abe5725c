"""Real nodes on emulated links: what their rounds took.

Rule: nodes meet on open links, for that is measured elsewhere. On each setting they begin another
life, which knows nothing of the links before, and some rounds pass before the first that counts.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.daemons import Daemon, World, sets, world
from benchmarks.wan.cases import OPEN
from benchmarks.wan.course import Facts, Round, moment, read
from benchmarks.wan.limit import WIRE_SHARE
from benchmarks.wanlab.lab import Lab

TASK = "synthetic_task:Synthetic"
TASK_FILE = Path(__file__).parents[1] / "synthetic_task.py"
BATCH_SIZE = 8
START_SECONDS = 600.0

Links = Mapping[str, Mapping[str, Any]]


@dataclass(frozen=True)
class Plan:
    """What the nodes do."""

    millions: float
    inner_steps: int
    step_seconds: float
    warm_rounds: int
    rounds: int
    settings: tuple[str, ...] = ()  # further arguments of the founder

    @property
    def round_seconds(self) -> float:
        return self.inner_steps * self.step_seconds


@dataclass(frozen=True)
class Outcome:
    """Some rounds in a row, and the lab's counters before and after."""

    rounds: list[Round]
    before: dict[str, Any]
    after: dict[str, Any]

    def bytes_per_round(self, host: str, way: str) -> float:
        """Of a host's interface."""
        passed = self.after["hosts"][host][way]["bytes"] - self.before["hosts"][host][way]["bytes"]
        return float(passed) / max(1, len(self.rounds))

    @property
    def overrun(self) -> int:
        return sum(
            int(host["overrun"]) - int(self.before["hosts"][name]["overrun"])
            for name, host in self.after["hosts"].items()
        )


@dataclass(frozen=True)
class Joining:
    """One node's way into the run."""

    seconds: float  # from the start of fetching to standing on the agreed state
    limit_seconds: float  # what had to be fetched / the downlink
    bytes: int
    rounds_lost: int  # by the others, meanwhile


class Party:
    """Nodes on a lab's hosts; `spare` hosts have none yet."""

    def __init__(
        self, held: ExitStack, plan: Plan, hosts: tuple[str, ...], spare: tuple[str, ...], tcp: str
    ) -> None:
        self.plan = plan
        named = dict.fromkeys((*hosts, *spare), OPEN)
        self.lab = held.enter_context(Lab(named, seed=1, congestion_control=tcp))
        self._world: World = held.enter_context(world())
        shutil.copy(TASK_FILE, self._world.root)
        self.nodes = {host: self._node(host) for host in hosts}

    def _node(self, host: str) -> Daemon:
        made = self._world.daemon(host)
        made.place = partial(self.lab.inside, host)
        made.listen = f"/ip4/{self.lab.ip(host)}/tcp/0"
        return made

    def start(self) -> None:
        """All nodes, until each has been in two rounds."""
        plan = self.plan
        first, *others = self.nodes.values()
        run = sets(
            inner_steps=plan.inner_steps,
            batch_size=BATCH_SIZE,
            evaluate_every=0,
            task__millions=plan.millions,
            task__pace_ms=plan.step_seconds * 1000,
        )
        first.start("--task", TASK, *run, *plan.settings, *_OWN)
        for node in others:
            self._join(node)
        for node in self.nodes.values():
            node.wait_for(lambda status: status.rounds_contributed >= 2, START_SECONDS)

    def _join(self, node: Daemon) -> None:
        address = next(iter(self.nodes.values())).address
        node.start("--task", TASK, "--peers", address, *_OWN)

    def play(self, links: Links, rounds: int | None = None) -> Outcome:
        """Rounds on these links, in a new life of each node."""
        for node in self.nodes.values():
            node.kill()
        for host, link in links.items():
            self.lab.set_link(host, **link)
        for node in self.nodes.values():
            node.start()
        for node in self.nodes.values():
            node.wait_for(lambda status: len(status.members) == len(self.nodes), START_SECONDS)
        plan, count = self.plan, rounds or self.plan.rounds
        patience = 120 + 10 * plan.round_seconds
        first = self._newest + plan.warm_rounds
        self._await_round(first, patience * plan.warm_rounds)
        before = self.lab.stats()
        last = first + count
        self._await_round(last, patience * count)
        after = self.lab.stats()
        found = [one for one in self._rounds() if first < one.number <= last]
        return Outcome(found, before, after)

    def join(self, host: str, link: Mapping[str, Any]) -> Joining:
        """A further node, on a spare host with this link."""
        self.lab.set_link(host, **link)
        before = self._newest
        node = self._node(host)
        self._join(node)
        node.wait_for(lambda status: status.rounds_contributed >= 1, START_SECONDS)
        lost = sum(
            1
            for one in self._rounds()
            if one.number > before
            for name in self.nodes
            if name in one.samples and one.samples[name] == 0
        )
        began, ended, size = _fetched(node.facts())
        return Joining(ended - began, size * WIRE_SHARE * 8 / link["down"], size, lost)

    def _await_round(self, number: int, seconds: float) -> None:
        for node in self.nodes.values():
            node.wait_for_round(number, seconds)

    @property
    def _newest(self) -> int:
        return max(int(node.status.round) for node in self.nodes.values())

    def _rounds(self) -> list[Round]:
        return read({host: node.facts() for host, node in self.nodes.items()})


_OWN = sets(threads=1, log_level="debug")


def _fetched(lines: list[Facts]) -> tuple[float, float, int]:
    """When fetching began, when the agreed state was taken, and the bytes in between."""
    began = ended = 0.0
    size = 0
    for facts in lines:
        event = str(facts.get("event"))
        if event == "fetching the agreed state":
            began = began or moment(facts)
            size += facts["bytes"]
        elif event == "fetched a gift":
            size += facts["bytes"]
        elif event.startswith("took the agreed state"):
            ended = moment(facts)
            break
    assert began < ended, "a joiner did not tell of its state"
    return began, ended, size
