"""All that one node is made of: built by `app.py` and `assembly.py`, used by the driver."""

from __future__ import annotations

from dataclasses import dataclass

from demoloco.config import NodeConfig, RunConfig
from demoloco.node.crew import Crew
from demoloco.node.disk import Disk
from demoloco.node.gifts import Shelf
from demoloco.node.ledger import Ledger
from demoloco.node.lending import Lending
from demoloco.node.report import Report
from demoloco.node.stance import Stance
from demoloco.rounds.machine import Machine
from demoloco.store.port import Store
from demoloco.swarm.identity import Identity
from demoloco.swarm.port import Swarm
from demoloco.types import Digest, PeerId


@dataclass(frozen=True, kw_only=True, slots=True)
class Ground:
    """What a node stands on before it knows its run."""

    identity: Identity
    node: NodeConfig
    store: Store
    disk: Disk
    swarm: Swarm
    crew: Crew
    report: Report
    shelf: Shelf
    lending: Lending


@dataclass(frozen=True, kw_only=True, slots=True)
class Parts:
    """One node's parts in a run."""

    identity: Identity
    run: Digest
    config: RunConfig
    node: NodeConfig
    machine: Machine
    swarm: Swarm
    ledger: Ledger
    disk: Disk
    crew: Crew
    stance: Stance
    report: Report
    shelf: Shelf
    lending: Lending

    @property
    def me(self) -> PeerId:
        return self.identity.peer_id
