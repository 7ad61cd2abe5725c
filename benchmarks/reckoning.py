"""From records of a run with faults, and of one without, to figures.

Rule: pure. What each figure means is said in `churn.py`; where a fact can be read in two ways, the
harsher one is taken.
"""

from __future__ import annotations

import statistics
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import inf, nan

from benchmarks.faults import DEATHS, Kind
from benchmarks.records import Course, Line, Stroke, Word

EVALUATIONS = 5
"""The newest of each node, whose mean is its loss at the end."""

TRANSIENT_SECONDS = 3.0
"""Told and owed of one status may be of two moments; what comes back in this time was not lost."""


@dataclass(frozen=True, slots=True)
class Round:
    """One round of the winning chain."""

    number: int
    head: str
    at: float  # when the first node had applied it
    samples: int
    packets: int


# -- the winning chain -----------------------------------------------------------------------------
def chains(course: Course) -> list[dict[int, Line]]:
    """Each node's round → line about it, without what was undone later."""
    found: list[dict[int, Line]] = [{} for _ in range(course.nodes)]
    for line in course.lines:
        if line.event == "round committed":
            found[line.node][int(line.facts["round"])] = line
        elif line.event == "round undone":
            found[line.node].pop(int(line.facts["round"]), None)
    return found


def winning(course: Course) -> dict[int, Round]:
    """The chain on which most nodes agree, round by round."""
    seen: dict[int, list[Line]] = defaultdict(list)
    for chain in chains(course):
        for number, line in chain.items():
            seen[number].append(line)
    return {number: _round(number, lines) for number, lines in sorted(seen.items())}


def _round(number: int, lines: Sequence[Line]) -> Round:
    ((head, _),) = Counter(str(line.facts["head"]) for line in lines).most_common(1)
    alike = [line for line in lines if line.facts["head"] == head]
    facts = alike[0].facts
    at = min(line.at for line in alike)
    return Round(number, head, at, int(facts["samples"]), int(facts["packets"]))


def counted(course: Course) -> list[Round]:
    """The rounds that figures are of, the one before them first."""
    return [one for number, one in winning(course).items() if course.first <= number <= course.last]


# -- useful work -----------------------------------------------------------------------------------
def useful_steps(course: Course) -> float:
    """Inner steps that are in the counted rounds."""
    return sum(one.samples for one in counted(course)[1:]) / course.batch_size


def healthy_seconds(course: Course) -> float:
    """Sum over the nodes of the time that they were not out."""
    rounds = counted(course)
    began, ended = rounds[0].at, rounds[-1].at
    out = sum(
        max(0.0, min(ended, one.ended if one.ended is not None else inf) - max(began, one.began))
        for one in course.outages
    )
    return course.nodes * (ended - began) - out


def rate(course: Course) -> float:
    """Useful inner steps in a healthy second of a node."""
    return useful_steps(course) / healthy_seconds(course)


# -- rounds lost -----------------------------------------------------------------------------------
def usual_seconds(course: Course) -> float:
    """Mean length of a round."""
    rounds = counted(course)
    return (rounds[-1].at - rounds[0].at) / (len(rounds) - 1)


def stalls(course: Course, usual: float, kinds: Iterable[Kind]) -> list[float]:
    """By each fault of these kinds: how much longer than usual its round and the next one took
    together, in usual rounds. Not rounded; below 0 where they were shorter."""
    rounds = counted(course)
    found = []
    for stroke in course.strokes:
        after = next((n for n, one in enumerate(rounds) if one.at >= stroke.at), 0)
        if stroke.kind in kinds and 0 < after < len(rounds) - 1:
            took = rounds[after + 1].at - rounds[after - 1].at
            found.append((took - 2 * usual) / usual)
    return found


def forgotten_samples(course: Course) -> int:
    """Samples that a node had learnt, and that were neither told nor owed later, though neither it
    nor its worker fell in between."""
    falls = [(line.node, line.at) for line in course.lines if line.event.startswith(_FALLS)]
    stretches: dict[tuple[int, int, int], list[Word]] = defaultdict(list)
    for word in course.words:
        if word.head:
            fallen = sum(node == word.node and at <= word.at for node, at in falls)
            stretches[word.node, word.life, fallen].append(word)
    return sum(_forgotten(words) for words in stretches.values())


_FALLS = ("worker lost", "going back to the last checkpoint", "took a snapshot")


def _forgotten(words: Sequence[Word]) -> int:
    learnt = [(word.at, word.told + word.owed) for word in words]
    until = learnt[-1][0] - TRANSIENT_SECONDS
    newest = [samples for at, samples in learnt if at >= until]
    before = [samples for at, samples in learnt if at < until]
    return max(0, max(before, default=0) - max(newest))


def lost_per_death(course: Course, usual: float) -> float:
    """What the survivors lost by a death, in rounds: stalls, and what they forgot."""
    deaths = [stroke for stroke in course.strokes if stroke.kind in DEATHS]
    if not deaths:
        return nan
    whole = course.inner_steps * course.batch_size
    return _mean(stalls(course, usual, DEATHS)) + forgotten_samples(course) / whole / len(deaths)


# -- coming back -----------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class Return:
    """A node that was started again; None where it was not seen any more."""

    stroke: Stroke
    seconds: float | None  # exec → the first inner step
    rounds: int | None  # closed without it, from then on to the first one with its packet


def returns(course: Course) -> list[Return]:
    """Of each death after which the node was started again."""
    return [
        _return(course, stroke)
        for stroke in course.strokes
        if stroke.kind in DEATHS and stroke.mended is not None
    ]


def _return(course: Course, stroke: Stroke) -> Return:
    life = stroke.life + 1
    training = (
        word.at
        for word in course.words
        if (word.node, word.life) == (stroke.node, life) and word.step > 0
    )
    if (at := next(training, None)) is None or stroke.mended is None:
        return Return(stroke, None, None)
    rounds = [one for one in winning(course).values() if one.at > at]
    its = chains(course)[stroke.node]
    for missed, one in enumerate(rounds):
        line = its.get(one.number)
        if line is not None and line.facts["mine"] == "in":
            return Return(stroke, at - stroke.mended, missed)
    return Return(stroke, at - stroke.mended, None)


def worker_returns(course: Course) -> list[float]:
    """Seconds from the death of a worker until the next one stands."""
    found = []
    for stroke in course.strokes:
        if stroke.kind is Kind.KILL_WORKER:
            after = (
                line.at
                for line in course.lines
                if line.node == stroke.node and line.at > stroke.at
                if line.event == "worker stands"
            )
            if (at := next(after, None)) is not None:
                found.append(at - stroke.at)
    return found


# -- loss ------------------------------------------------------------------------------------------
def losses(course: Course, until: float) -> list[list[float]]:
    """Each node's newest held-out losses before this time."""
    by_node: list[list[float]] = [[] for _ in range(course.nodes)]
    for line in course.lines:
        if line.event == "evaluated" and line.at <= until:
            by_node[line.node].append(float(line.facts["eval_loss"]))
    return [values[-EVALUATIONS:] for values in by_node]


def mean_loss(values: Sequence[Sequence[float]]) -> float:
    """Mean over the nodes."""
    return _mean([_mean(one) for one in values if one])


def loss_noise(values: Sequence[Sequence[float]]) -> float:
    """Standard error of that mean, from how single evaluations scatter about their node's mean."""
    every = [value - _mean(one) for one in values for value in one]
    return statistics.pstdev(every) / len(every) ** 0.5 if every else nan


# -- what the time went to -------------------------------------------------------------------------
def phase_shares(course: Course) -> dict[str, float]:
    """Share of the statuses in each phase."""
    counts = Counter(word.phase for word in course.words)
    return {phase: count / len(course.words) for phase, count in counts.most_common()}


def median(values: Iterable[float | None]) -> float:
    known = [value for value in values if value is not None]
    return statistics.median(known) if known else nan


def _mean(values: Sequence[float]) -> float:
    return statistics.fmean(values) if values else nan
