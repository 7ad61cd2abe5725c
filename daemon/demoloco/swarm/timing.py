"""How patient a node is with its peers.

Rule: every wait for a peer has its limit here, in seconds.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Timing:
    """How patient a node is with its peers, in seconds."""

    heartbeat_seconds: float = 2.0
    missed_heartbeats: int = 5
    call_seconds: float = 10.0
    connect_seconds: float = 10.0
    settle_seconds: float = 2.0
    """How long announce and publish wait for slow members before they go on in the background."""
    chunk_seconds: float = 15.0
    """In this time a holder must send 64 KiB of a blob, or the rest of it."""
    transfer_seconds: float = 60.0
    """For a whole blob, on top of its size at 64 KiB in `chunk_seconds`."""
    batch_seconds: float = 0.25
    """So long new offers are gathered before they are passed on, in a large swarm."""
    hint_seconds: float = 20.0
    seed_retry_seconds: float = 30.0
    """The longest pause between two dials of an absent seed."""
    known_retry_seconds: float = 300.0

    @property
    def patience_seconds(self) -> float:
        return self.heartbeat_seconds * self.missed_heartbeats

    @property
    def ask_seconds(self) -> float:
        """How long a hello waits for its answer where a member is asked only now and then."""
        return self.patience_seconds / 4
