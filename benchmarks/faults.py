"""When what breaks where: a schedule of faults, drawn before anything runs.

Rule: pure; the same seed gives the same schedule. Faults come as a Poisson process, of a mix of
kinds; each takes its node for a while, and never the last one that is whole.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum


class Kind(StrEnum):
    """What can break."""

    KILL_NODE = "kill node"  # SIGKILL; a supervisor starts it again
    KILL_WORKER = "kill worker"  # SIGKILL; the node is to bring a new one
    KILL_P2PD = "kill p2pd"  # SIGKILL; likewise
    STOP = "stop"  # SIGSTOP of the node and its worker, while p2pd goes on; then SIGCONT
    CUT = "cut"  # its cable, then mended
    LEAVE = "leave"  # SIGTERM; started again when it is gone


DEATHS = (Kind.KILL_NODE, Kind.LEAVE)
"""After these the node's process is gone and is started again."""

SHARES: Mapping[Kind, float] = {
    Kind.KILL_NODE: 0.40,
    Kind.KILL_WORKER: 0.15,
    Kind.KILL_P2PD: 0.10,
    Kind.STOP: 0.12,
    Kind.CUT: 0.13,
    Kind.LEAVE: 0.10,
}
SECONDS: Mapping[Kind, tuple[float, float]] = {
    Kind.KILL_NODE: (1.0, 5.0),  # until it is started again
    Kind.KILL_WORKER: (0.0, 0.0),
    Kind.KILL_P2PD: (0.0, 0.0),
    Kind.STOP: (5.0, 20.0),
    Kind.CUT: (10.0, 30.0),
    Kind.LEAVE: (1.0, 5.0),  # from its end until it is started again
}
RECOVERY_SECONDS = 15.0
"""So long after a fault its node may not be whole yet, when it is asked who else may break."""


@dataclass(frozen=True, slots=True)
class Fault:
    """`at`: seconds after the beginning; `seconds`: see SECONDS."""

    at: float
    kind: Kind
    node: int
    seconds: float

    @property
    def over(self) -> float:
        """When its node should be whole again."""
        return self.at + self.seconds + RECOVERY_SECONDS


def schedule(nodes: int, per_hour: float, seconds: float, seed: int) -> tuple[Fault, ...]:
    """Faults of so many seconds, in their order.

    A node is not struck again before it should be whole; a fault that finds only one node whole is
    left out."""
    draw = random.Random(seed)
    kinds, shares = list(SHARES), list(SHARES.values())
    struck: list[Fault] = []
    whole_from = [0.0] * nodes
    at = 0.0
    while per_hour > 0:
        at += draw.expovariate(per_hour / 3600.0)
        if at >= seconds:
            break
        (kind,) = draw.choices(kinds, shares)
        lasts = draw.uniform(*SECONDS[kind])
        place = draw.random()
        whole = [node for node in range(nodes) if whole_from[node] <= at]
        if len(whole) > 1:
            fault = Fault(at, kind, whole[int(place * len(whole))], lasts)
            whole_from[fault.node] = fault.over
            struck.append(fault)
    return tuple(struck)
