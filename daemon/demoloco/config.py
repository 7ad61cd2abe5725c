"""What can be set: RunConfig is agreed by all nodes of a run and hashed, NodeConfig is this node's own."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

Scalar = str | int | float | bool


@dataclass(frozen=True, kw_only=True)
class RunConfig:
    """Everything that must be equal on all nodes. A task's own defaults come before these."""

    name: str = "demoloco"
    """What people call the run."""
    task: str = "lm"
    """A built-in task's name, or module:attr."""
    task_args: dict[str, Scalar] = field(default_factory=dict)
    """The task's own settings (`--set task.depth=12`)."""
    method: str = "decoupled"
    """How told and untold parts combine: decoupled | synced."""
    inner_steps: int = 50
    """H: local optimizer steps between two rounds, 1 or more."""
    k: int = 64
    """Coefficients kept of each chunk of 4096."""
    ladder: tuple[int, ...] = (8, 16, 32, 64, 128, 256, 512)
    """The values of k that a packet may have."""
    bits: int = 2
    """Bits per value, sign included: 1, 2, 4 or 8."""
    alpha: float = 1.0
    """Outer step size."""
    beta: float = 0.95
    """Decay of the owed part, method synced only."""
    seed: int = 0
    """Initial model and data order."""
    batch_size: int = 16
    """Samples per inner step."""
    learning_rate: float = 1e-3
    """Peak learning rate of the inner optimizer."""
    weight_decay: float = 0.1
    """AdamW's decoupled weight decay."""
    clip_norm: float = 1.0
    """Gradients are clipped to this norm; 0 = not."""
    warmup_rounds: int = 2
    """Rounds over which the learning rate rises."""
    decay_rounds: int = 1000
    """Round at which the cosine ends."""
    final_lr_share: float = 0.1
    """Learning rate after the cosine, as a share of the peak."""
    evaluate_every: int = 5
    """Rounds between evaluations of the held-out part; 0 = never."""
    quorum: float = 0.67
    """Share of the live members that must be in before a round may close without the rest."""
    grace_share: float = 0.5
    """How long a round waits for the rest after its quorum, as a share of the time that the quorum took."""
    grace_seconds: float = 2.0
    """…but at least this long."""
    succession_seconds: float = 5.0
    """How long each next proposer waits for the ones before it."""
    max_contributors: int = 64
    """Packets in one manifest, at most."""
    snapshot_every: int = 10
    """Every node keeps the agreed state of each round that this divides, for joiners."""


@dataclass(frozen=True, kw_only=True)
class NodeConfig:
    """What concerns this node alone."""

    home: Path
    """Everything that the node keeps: identity, log, states, blobs, checkpoint, control socket."""
    peers: tuple[str, ...] = ()
    """Multiaddrs with /p2p/<peer id>, to join by; empty = start a new run, or go on with the one in the home."""
    listen: tuple[str, ...] = ("/ip4/0.0.0.0/tcp/0",)
    """Multiaddrs to listen on; port 0 = the port of the last start, or any."""
    announce: tuple[str, ...] = ()
    """Multiaddrs to tell others instead of the ones found."""
    device: str = "auto"
    """auto | cpu | cuda | mps"""
    threads: int = 0
    """CPU threads of the worker; 0 = cores shared among the nodes of this machine."""
    accumulate: int = 1
    """Micro-batches per inner step."""
    checkpoint_share: float = 0.05
    """Share of the time that checkpoints may take."""
    stop_after: int = 0
    """Leave when the agreed state has this many rounds; 0 = never."""
    leave_seconds: float = 20.0
    """How long a leaving node waits for others to fetch its last packet."""
    max_worker_restarts: int = 3
    """Restarts of a failing worker without a round in between, before the node gives up."""
    log_format: str = "text"
    """text | json"""
    log_level: str = "info"
    """debug | info | warning"""
