"""The links and models that are measured.

Rule: rates are of the access link in both directions unless told otherwise; a round trip is the sum
of four one-way delays (there and back through two access links), and a loss of 1 % is half a per
cent on each of the two.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

NODES = 4
HOSTS = tuple(f"node{number}" for number in range(NODES))
OPEN: Mapping[str, Any] = {"up": None, "down": None, "delay": 0.0, "jitter": 0.0, "loss": 0.0}
"""While nodes start and join, which is not what is measured."""


@dataclass(frozen=True)
class Setting:
    """Four access links."""

    name: str
    mbit: float
    trip_ms: float
    loss: float = 0.0  # of a packet from one node to another
    thin_up_mbit: float | None = None  # of the first node

    @property
    def links(self) -> dict[str, dict[str, Any]]:
        usual: dict[str, Any] = {
            "up": self.mbit * 1e6,
            "down": self.mbit * 1e6,
            "delay": self.trip_ms / 4000,
            "loss": 1 - (1 - self.loss) ** 0.5,
        }
        found = {host: dict(usual) for host in HOSTS}
        if self.thin_up_mbit is not None:
            found[HOSTS[0]]["up"] = self.thin_up_mbit * 1e6
        return found

    @property
    def trip_seconds(self) -> float:
        return self.trip_ms / 1000


SETTINGS = {
    setting.name: setting
    for setting in (
        Setting("100mbit-30ms", 100, 30),
        Setting("20mbit-100ms", 20, 100),
        Setting("10mbit-100ms-1%", 10, 100, loss=0.01),
        Setting("2mbit-300ms", 2, 300),
        Setting("5-among-50", 50, 30, thin_up_mbit=5),
    )
}

_FAST: Mapping[str, Any] = {"up": 50e6, "down": 50e6, "delay": 0.0075, "loss": 0.0}
_THIN: Mapping[str, Any] = {"up": 2e6, "down": 50e6, "delay": 0.1425, "loss": 0.0}
SLOWDOWN: tuple[dict[str, Mapping[str, Any]], dict[str, Mapping[str, Any]]] = (
    dict.fromkeys(HOSTS, _FAST),
    dict.fromkeys(HOSTS, _FAST) | {HOSTS[0]: _THIN},
)
"""All alike; and the first node with 2 Mbit/s up, 300 ms from each of the others."""

JOINER = "joiner"
JOIN_SETTING: Mapping[str, Any] = {"up": 20e6, "down": 20e6, "delay": 0.025, "loss": 0.0}
