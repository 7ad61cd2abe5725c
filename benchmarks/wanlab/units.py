"""How a link is written down: "20mbit", "30ms", "1%", "256kb".

Rule: a number without a unit is bit/s, seconds, a probability (0..1) or bytes; what cannot be read
is refused with an example of what can.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from typing import Any

INFINITE = math.inf

_RATE = re.compile(r"([\d.]+)\s*([kmg]?)bit(?:/s|ps)?", re.IGNORECASE)
_TIME = re.compile(r"([\d.]+)\s*(us|ms|s)", re.IGNORECASE)
_SIZE = re.compile(r"([\d.]+)\s*(b|kb|mb|kib|mib)", re.IGNORECASE)
_RATE_UNITS = {"": 1.0, "k": 1e3, "m": 1e6, "g": 1e9}
_TIME_UNITS = {"us": 1e-6, "ms": 1e-3, "s": 1.0}
_SIZE_UNITS = {"b": 1.0, "kb": 1e3, "mb": 1e6, "kib": 1024.0, "mib": 1024.0**2}


class LabError(RuntimeError):
    """The lab cannot be made, cannot do what it was asked for, or has died."""


def rate(value: str | float | None) -> float:
    """Bits a second; None and "unlimited" are infinity."""
    if value is None or value == "unlimited":
        return INFINITE
    found = _number(value, _RATE, _RATE_UNITS, "20mbit")
    if found <= 0:
        raise LabError(f"a rate is above zero, not {value!r}; partition() cuts a host off")
    return found


def seconds(value: str | float) -> float:
    return _number(value, _TIME, _TIME_UNITS, "30ms")


def probability(value: str | float) -> float:
    """0..1, or a percentage."""
    try:
        if isinstance(value, str) and value.strip().endswith("%"):
            found = float(value.strip()[:-1]) / 100
        else:
            found = float(value)
    except ValueError:
        raise LabError(f"cannot read {value!r}: write it like 1%") from None
    if not 0 <= found <= 1:
        raise LabError(f"a loss is between 0% and 100%, not {value!r}")
    return found


def queue(value: str | float) -> dict[str, float]:
    """{"bytes": n}, or {"seconds": s} at the link's own rate."""
    if isinstance(value, str) and _TIME.fullmatch(value.strip()):
        return {"seconds": seconds(value)}
    return {"bytes": _number(value, _SIZE, _SIZE_UNITS, "100ms or 256kb")}


def _number(
    value: str | float, pattern: re.Pattern[str], units: Mapping[str, float], example: str
) -> float:
    if isinstance(value, int | float):
        return float(value)
    match = pattern.fullmatch(value.strip())
    if match is None:
        raise LabError(f"cannot read {value!r}: write it like {example}")
    return float(match[1]) * units[match[2].lower()]


READERS: Mapping[str, Callable[[Any], Any]] = {
    "up": rate,
    "down": rate,
    "queue": queue,
    "delay": seconds,
    "jitter": seconds,
    "loss": probability,
}
DEFAULTS: Mapping[str, Any] = {
    "up": None,
    "down": None,
    "queue": "100ms",
    "delay": 0.0,
    "jitter": 0.0,
    "loss": 0.0,
}


def link(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Each setting in base units."""
    unknown = sorted(set(settings) - set(READERS))
    if unknown:
        raise LabError(f"a link has no {', '.join(unknown)}: it has {', '.join(READERS)}")
    return {name: READERS[name](value) for name, value in settings.items()}
