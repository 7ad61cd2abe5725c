"""The figures of a pair of courses, the facts beside them, and both as a table."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from math import isfinite, nan
from typing import Any

from benchmarks import reckoning
from benchmarks.faults import DEATHS, Kind
from benchmarks.leaks import ROLES, Slope, descriptor_slope, memory_slope
from benchmarks.records import Course, Sample

TARGETS: Mapping[str, str] = {
    "useful_work_share": ">= 0.95",
    "rounds_lost_per_death": "0",
    "rejoin_rounds": "<= 1",
    "rejoin_seconds": "",
    "loss_ratio": "0.99 - 1.01",
    "rss_slope_mb_per_hour": "no growth",
    "fd_slope_per_hour": "no growth",
}


def figures(struck: Course, calm: Course) -> dict[str, float]:
    """See the text of `churn.py`."""
    usual = reckoning.usual_seconds(calm)
    back = reckoning.returns(struck)
    with_faults, without = _end_losses(struck, calm)
    return {
        "useful_work_share": reckoning.rate(struck) / reckoning.rate(calm),
        "rounds_lost_per_death": reckoning.lost_per_death(struck, usual),
        "rejoin_rounds": reckoning.median(one.rounds for one in back),
        "rejoin_seconds": reckoning.median(one.seconds for one in back),
        "loss_ratio": reckoning.mean_loss(with_faults) / reckoning.mean_loss(without),
        "rss_slope_mb_per_hour": _worst(struck.samples, memory_slope),
        "fd_slope_per_hour": _worst(struck.samples, descriptor_slope),
    }


def details(struck: Course, calm: Course) -> dict[str, Any]:
    """What the figures come from."""
    usual = reckoning.usual_seconds(calm)
    back = reckoning.returns(struck)
    ends = _end_losses(struck, calm)
    return {
        "share_of_bare_pace": reckoning.rate(struck) * struck.pace,
        "share_of_bare_pace_without_faults": reckoning.rate(calm) * calm.pace,
        "round_seconds": usual,
        "round_seconds_with_faults": reckoning.usual_seconds(struck),
        "rounds": len(reckoning.counted(struck)) - 1,
        "rounds_without_faults": len(reckoning.counted(calm)) - 1,
        "faults": dict(Counter(str(stroke.kind) for stroke in struck.strokes)),
        "rounds_lost_per_fault": {
            str(kind): _mean(reckoning.stalls(struck, usual, [kind])) for kind in Kind
        },
        "forgotten_samples": reckoning.forgotten_samples(struck),
        "deaths": sum(stroke.kind in DEATHS for stroke in struck.strokes),
        "rejoin_rounds_max": max((one.rounds for one in back if one.rounds is not None), default=0),
        "rejoin_seconds_max": max((one.seconds for one in back if one.seconds), default=nan),
        "never_back": sum(one.rounds is None for one in back),
        "worker_back_seconds": reckoning.median(reckoning.worker_returns(struck)),
        "loss": [reckoning.mean_loss(one) for one in ends],
        "loss_noise": [reckoning.loss_noise(one) for one in ends],
        "phases": reckoning.phase_shares(struck),
        "phases_without_faults": reckoning.phase_shares(calm),
        "memory": _slopes(struck.samples, memory_slope),
        "memory_without_faults": _slopes(calm.samples, memory_slope),
        "descriptors": _slopes(struck.samples, descriptor_slope),
        "descriptors_without_faults": _slopes(calm.samples, descriptor_slope),
    }


def _end_losses(struck: Course, calm: Course) -> tuple[list[list[float]], list[list[float]]]:
    """Both after the same time."""
    until = min(reckoning.counted(course)[-1].at for course in (struck, calm)) + 1.0
    return reckoning.losses(struck, until), reckoning.losses(calm, until)


Measure = Callable[[Sequence[Sample], str], Slope]


def _slopes(samples: Sequence[Sample], measure: Measure) -> dict[str, dict[str, float]]:
    return {role: asdict(measure(samples, role)) for role in ROLES}


def _worst(samples: Sequence[Sample], measure: Measure) -> float:
    slopes = [measure(samples, role).per_hour for role in ROLES]
    known = [one for one in slopes if one == one]
    return max(known, default=nan)


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None


def as_json(told: object) -> str:
    """One object; what is not known is null, for JSON has no NaN."""
    return json.dumps(_known(told), allow_nan=False)


def _known(value: object) -> object:
    match value:
        case dict():
            return {name: _known(one) for name, one in value.items()}
        case list() | tuple():
            return [_known(one) for one in value]
        case float() if not isfinite(value):
            return None
    return value


def as_text(told: Mapping[str, Any]) -> str:
    """For people."""
    plan, found = told["plan"], told["details"]
    lines = [
        f"{plan['nodes']} nodes, {plan['minutes']:g} minutes, {plan['faults_per_hour']:g} faults an"
        f" hour, seed {plan['seed']}: {found['rounds']} rounds and "
        + ", ".join(f"{count} x {kind}" for kind, count in found["faults"].items()),
        "",
    ]
    for name, value in told["figures"].items():
        lines.append(f"{name:24} {value:9.3f}   {TARGETS[name]}")
    lines.append("")
    lines += [f"{name:34} {_shown(value)}" for name, value in found.items()]
    lines += ["", *(f"WRONG: {one}" for one in told["wrong"])]
    return "\n".join(lines)


def _shown(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.3f}"
    if isinstance(value, dict):
        return ", ".join(f"{name} {_shown(one)}" for name, one in value.items())
    if isinstance(value, list):
        return ", ".join(_shown(one) for one in value)
    return str(value)
