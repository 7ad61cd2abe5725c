"""Daemons under faults, beside the same daemons without: what of their work survives.

    python -m benchmarks.churn [--json] [--minutes M] [--nodes N] [--faults-per-hour F] [--seed S]

Real daemons train a paced task (`paced.py`) on this machine in two runs side by side: in one,
processes are killed and stopped and cables cut as `faults.py` drew it, in the other nothing is.
Cables need root and iproute2; elsewhere a cut stops the node's p2pd. `--json` prints one object.
Its `figures` are of the rounds from the first with all nodes in it to the last, after all was
mended:

useful_work_share       Inner steps in the winning chain / those that healthy nodes could have made:
    their time x the rate of a node in the run without faults. A node is healthy from the exec of a
    restart to the next SIGKILL, SIGSTOP or SIGTERM: while it starts up, brings back its worker or
    p2pd, or is cut off, it counts.
rounds_lost_per_death   How much longer than usual the round of a SIGKILL or SIGTERM and the next
    one took together, in usual rounds: the mean, not rounded, less than 0 where they were shorter.
    And what any node learnt and later neither told nor owed, in rounds.
rejoin_rounds           Rounds that closed without a restarted node, from its first inner step to
    the first with its packet; median. 0 = it was in the first that closed.
rejoin_seconds          From the exec of the restart to the first inner step; median.
loss_ratio              Held-out loss at the end, with faults / without: the mean over nodes of
    their last five evaluations.
rss_slope_mb_per_hour   Growth of a process's own memory (USS), pooled over the processes of a role
    with an intercept for each, without their first six minutes, or half of the longest life in
    a short run; the worst of node, worker and p2pd.
fd_slope_per_hour       The same of file descriptors.

Exit code 1 if nodes end on different chains, a node ends by itself or with an error, something that
was learnt is neither told nor owed, or anything is left running.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack, closing
from dataclasses import asdict, dataclass
from math import inf
from pathlib import Path

from benchmarks.cables import make_network
from benchmarks.daemons import Daemon, World, sets, world
from benchmarks.faults import schedule
from benchmarks.reckoning import winning
from benchmarks.records import Course
from benchmarks.strikes import Striker
from benchmarks.summary import as_json, as_text, details, figures
from benchmarks.verdicts import complaints
from benchmarks.watching import Watcher

PACED = Path(__file__).with_name("paced.py")
TASK = "paced:Paced"
BATCH_SIZE = 8
TICK_SECONDS = 0.1
START_SECONDS = 180.0
FULL_ROUNDS = 2
"""So many rounds with all nodes in them come before the first that counts: all are warm."""

SETTLE_ROUNDS = 2
PATIENCE_SECONDS = 180.0
LEAVE_SECONDS = 60.0


@dataclass(frozen=True)
class Plan:
    """What is played."""

    nodes: int
    minutes: float
    faults_per_hour: float
    seed: int
    inner_steps: int
    pace_ms: float


class Party:
    """The daemons of one course and all that watches and strikes them."""

    def __init__(self, plan: Plan, held: ExitStack) -> None:
        self.world: World = held.enter_context(world())
        network = held.enter_context(closing(make_network()))
        shutil.copy(PACED, self.world.root)
        self.daemons = [self.world.daemon(f"node{number}") for number in range(plan.nodes)]
        for daemon in self.daemons:
            network.join(daemon)
        self.course = Course(plan.nodes, plan.inner_steps, BATCH_SIZE, plan.pace_ms / 1000)
        self.watcher = Watcher(self.daemons, self.course)
        self.striker = Striker(self.daemons, network, self.course)

    def found(self, plan: Plan) -> None:
        """Start the run's creator."""
        run = sets(inner_steps=plan.inner_steps, evaluate_every=1, task__pace_ms=plan.pace_ms)
        self.daemons[0].start("--task", TASK, *run, *sets(batch_size=BATCH_SIZE))

    def join(self) -> None:
        """Start the others."""
        address = self.daemons[0].address
        for daemon in self.daemons[1:]:
            daemon.start("--task", TASK, "--peers", address)

    def tick(self, now: float) -> None:
        self.watcher.tick(now)
        self.striker.tick(now)

    def full_rounds(self, after: float) -> list[int]:
        """Rounds since then with all nodes in them."""
        rounds = winning(self.course).values()
        return [one.number for one in rounds if one.at > after and one.packets == len(self.daemons)]

    @property
    def agreed(self) -> bool:
        """All nodes say that they have one head, and live."""
        words = [daemon.newest() for daemon in self.daemons]
        heads = {word.head if word is not None else "" for word in words}
        return len(heads) == 1 and all(daemon.alive() for daemon in self.daemons)


def play(plan: Plan, kept: Path | None) -> tuple[Course, Course, list[str]]:
    """The course with faults and the one without, to their ends, and what went wrong."""
    with ExitStack() as held:
        struck, calm = parties = Party(plan, held), Party(plan, held)
        if kept is not None:
            held.callback(_keep, struck.world.root, kept / "with-faults")
            held.callback(_keep, calm.world.root, kept / "without-faults")
        began = _begin(parties, plan)
        now = time.monotonic()
        faults = schedule(plan.nodes, plan.faults_per_hour, plan.minutes * 60, plan.seed)
        struck.striker.play(faults, now)
        _go(parties, lambda: time.monotonic() >= now + plan.minutes * 60, inf)
        _go(parties, lambda: struck.striker.whole)
        wrong = [] if _settle(parties, struck) else ["no round with all nodes after all was mended"]
        for party in parties:
            party.course.last = party.full_rounds(began)[-1]
        wrong += [f"with faults: {one}" for one in _end(struck)]
        wrong += [f"without faults: {one}" for one in _end(calm)]
        wrong += _close(held.pop_all())
    return struck.course, calm.course, wrong


def _begin(parties: Sequence[Party], plan: Plan) -> float:
    """Start all, and let them come to the first round that counts; when all were there."""
    for party in parties:
        party.found(plan)
    for party in parties:
        party.join()
    for party in parties:
        for daemon in party.daemons:
            daemon.ready(START_SECONDS)
    began = time.monotonic()
    if not _go(parties, lambda: all(p.full_rounds(began)[FULL_ROUNDS - 1 :] for p in parties)):
        raise SystemExit("\n".join(d.tail() for party in parties for d in party.daemons))
    for party in parties:
        party.course.first = party.full_rounds(began)[-1]
    return began


def _settle(parties: Sequence[Party], struck: Party) -> bool:
    """Let all come to one head, with rounds that have all nodes in them."""
    mended = time.monotonic()
    return _go(parties, lambda: struck.agreed and len(struck.full_rounds(mended)) >= SETTLE_ROUNDS)


def _go(
    parties: Sequence[Party], until: Callable[[], bool], seconds: float = PATIENCE_SECONDS
) -> bool:
    """Let time pass until something holds; False if it did not in time."""
    end = time.monotonic() + seconds
    while not until():
        if time.monotonic() > end:
            return False
        for party in parties:
            party.tick(time.monotonic())
        time.sleep(TICK_SECONDS)
    return True


def _end(party: Party) -> list[str]:
    """Let all leave; what is not as it should be."""
    found = list(party.striker.gave_up)
    codes = _leave(party.daemons)
    party.watcher.tick(time.monotonic())
    found += [f"{name} left with code {code}" for name, code in codes.items() if code != 0]
    found += [f"still there: {process}" for process in party.world.processes()]
    return found + complaints(party.course, [daemon.home for daemon in party.daemons])


def _leave(daemons: Iterable[Daemon]) -> dict[str, int]:
    """SIGTERM to one after the other, so that the others close the round with its last packet;
    their exit codes."""
    codes = {}
    for daemon in daemons:
        daemon.signal(signal.SIGTERM)
        codes[daemon.name] = daemon.exit_code(LEAVE_SECONDS)
    return codes


def _close(held: ExitStack) -> list[str]:
    """End what is left; what the worlds complain of, the law of learnt, told and owed among it."""
    try:
        held.close()
    except AssertionError as complaint:
        return [str(complaint)]
    return []


def _keep(root: Path, target: Path) -> None:
    target.mkdir(parents=True, exist_ok=True)
    for log in root.glob("*.log"):
        shutil.copy(log, target)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--minutes", type=float, default=8.0)
    parser.add_argument("--nodes", type=int, default=4)
    parser.add_argument("--faults-per-hour", type=float, default=80.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--inner-steps", type=int, default=70)
    parser.add_argument("--pace-ms", type=float, default=100.0, help="an inner step takes")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--keep", type=Path, metavar="DIRECTORY", help="keep the nodes' logs here")
    arguments = parser.parse_args()
    plan = Plan(
        nodes=arguments.nodes,
        minutes=arguments.minutes,
        faults_per_hour=arguments.faults_per_hour,
        seed=arguments.seed,
        inner_steps=arguments.inner_steps,
        pace_ms=arguments.pace_ms,
    )
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # what was started is still ended
    load = os.getloadavg()[0]
    struck, calm, wrong = play(plan, arguments.keep)
    told: dict[str, object] = {"figures": figures(struck, calm), "details": details(struck, calm)}
    told |= {"wrong": wrong, "plan": asdict(plan), "load_before": load}
    if arguments.json:
        print(as_json(told))
    else:
        print(as_text(told))
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
