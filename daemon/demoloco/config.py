"""What can be set: RunConfig is agreed by all nodes and hashed, NodeConfig is this node's own.

A value that exists is a possible one: each class checks its fields when it is made, and refuses
with a ConfigError that says the field, its bounds and the default. Where values come from is the
business of `settings.py`.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields
from pathlib import Path
from typing import Any

from demoloco.errors import ConfigError

Scalar = str | int | float | bool

MAX_TASK_ARGS = 256
MAX_TEXT = 4096  # characters of one value
MAX_LADDER = 16
CHUNK_COEFFICIENTS = 4096

MIN_LIMIT, MAX_LIMIT = 16_000.0, 125e9  # bytes a second
_SCALE = {"": 1.0, "k": 1e3, "m": 1e6, "g": 1e9}

Bounds = tuple[float, float]  # both ends are allowed

RUN_BOUNDS: Mapping[str, Bounds] = {
    "inner_steps": (1, 1_000_000),
    "round_seconds": (0, 86_400),
    "k": (1, CHUNK_COEFFICIENTS),
    "alpha": (0.001, 2),
    "beta": (0, 1),
    "outer_momentum": (0, 0.999),
    "seed": (0, 2**63 - 1),
    "batch_size": (1, 2**24),
    "learning_rate": (1e-12, 100),
    "weight_decay": (0, 100),
    "clip_norm": (0, 1e9),
    "warmup_rounds": (0, 10**9),
    "decay_rounds": (1, 10**9),
    "final_lr_share": (0, 1),
    "evaluate_every": (0, 10**9),
    "quorum": (0.01, 1),
    "max_contributors": (1, 256),
    "ramp_rounds": (1, 128),
    "snapshot_every": (1, 1_000_000),
}
NODE_BOUNDS: Mapping[str, Bounds] = {
    "direct_port": (0, 65_535),
    "threads": (0, 4096),
    "accumulate": (1, 2**20),
    "checkpoint_share": (0.0001, 1),
    "stop_after": (0, 10**12),
    "leave_seconds": (0, 86_400),
    "max_worker_restarts": (0, 1_000_000),
}
RUN_CHOICES: Mapping[str, Sequence[object]] = {
    "method": ("decoupled", "synced", "paper", "diloco"),
    "mean_over": ("all", "senders"),
    "bits": (1, 2, 4, 8),
    "overlap": (0, 1),
}
NODE_CHOICES: Mapping[str, Sequence[object]] = {
    "exchange": ("auto", "libp2p", "grpc"),
    "log_format": ("text", "json"),
    "log_level": ("debug", "info", "warning"),
}

METHOD_DEFAULTS: Mapping[str, Mapping[str, Any]] = {
    "paper": {"alpha": 0.7, "k": 32, "bits": 8},
    "diloco": {
        "alpha": 0.7,
        "outer_momentum": 0.9,
        "k": CHUNK_COEFFICIENTS,
        "ladder": (CHUNK_COEFFICIENTS,),
        "bits": 8,
    },
}
"""What takes the place of a class default where only the method was asked for."""

DRIFTING = frozenset({"paper"})
"""Methods that do not hold the nodes' models together."""


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
    """How told and untold parts combine: decoupled | synced | paper | diloco."""
    inner_steps: int = 50
    """H: local optimizer steps between two rounds, 1 or more."""
    round_seconds: float = 0.0
    """Time between two packets of a node, in which it makes as many steps as it can, instead of
    inner_steps; 0 = inner_steps."""
    overlap: int = 1
    """1 = train for the next round while the packets of this one travel; 0 = wait for them."""
    k: int = 64
    """Coefficients kept of each chunk of 4096."""
    ladder: tuple[int, ...] = (8, 16, 32, 64, 128, 256, 512)
    """The values of k that a packet may have."""
    bits: int = 2
    """Bits per value, sign included: 1, 2, 4 or 8."""
    alpha: float = 1.0
    """Outer step size."""
    beta: float = 0.95
    """Decay of the owed part (method synced) or of the momentum (paper)."""
    outer_momentum: float = 0.0
    """Nesterov momentum of the outer step; its velocity is a part of the agreed state. Method paper
    has beta instead."""
    mean_over: str = "all"
    """What a coefficient's sum is divided by: the weight of all contributors, or only of those that
    sent it (senders), as the code published with method paper has it, and which diverges."""
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
    quorum: float = 0.66
    """Share of the live members that must be in before a round may close without the rest."""
    max_contributors: int = 64
    """Packets in one manifest, at most."""
    ramp_rounds: int = 4
    """Rounds over which the weight of a new contributor rises; 1 = at once."""
    snapshot_every: int = 10
    """Every node keeps the agreed state of each round that this divides, for joiners."""

    def __post_init__(self) -> None:
        _check_fields(self, RUN_BOUNDS, RUN_CHOICES)
        _check_name(self.name)
        _check_task(self.task)
        _check_task_args(self.task_args)
        _check_method(self)
        _check_ladder(self.ladder, self.k)
        if self.decay_rounds <= self.warmup_rounds:
            raise ConfigError(
                f"decay_rounds = {self.decay_rounds} must be more than warmup_rounds = "
                f"{self.warmup_rounds}; make it larger, or the warm-up shorter"
            )

    @classmethod
    def of(cls, **values: Any) -> RunConfig:
        """These values, and for the rest what suits their method."""
        return cls(**{**METHOD_DEFAULTS.get(values.get("method", cls.method), {}), **values})


@dataclass(frozen=True, kw_only=True)
class NodeConfig:
    """What concerns this node alone."""

    home: Path
    """Everything that the node keeps: identity, log, states, blobs, checkpoint, control socket."""
    peers: tuple[str, ...] = ()
    """Multiaddrs with /p2p/<peer id>, to join by; empty = those that the home was given last, if it
    was ever given any, else the run in the home, or a new one."""
    listen: tuple[str, ...] = ("/ip4/0.0.0.0/tcp/0",)
    """Multiaddrs to listen on; port 0 = the port of the last start, or any."""
    announce: tuple[str, ...] = ()
    """Multiaddrs to tell others instead of the ones found."""
    exchange: str = "auto"
    """How blobs travel. auto: over libp2p or gRPC, whichever is faster for each peer | libp2p: no
    direct road | grpc: over the direct road only."""
    direct_port: int = 0
    """TCP port of the direct road (gRPC); 0 = any free one. Others must reach it to use it."""
    device: str = "auto"
    """auto | cpu | cuda | cuda:<number> | mps"""
    threads: int = 0
    """CPU threads of the worker; 0 = cores shared among the nodes of this machine."""
    accumulate: int = 1
    """Micro-batches per inner step."""
    checkpoint_share: float = 0.05
    """Share of the time that checkpoints may take."""
    stop_after: int = 0
    """Leave when the agreed state has this many rounds; 0 = never."""
    max_upload: str = ""
    """No more than this goes out, in all and at any time: 2mbit, 500kbit, 1.5MB/s; empty = no
    limit."""
    max_download: str = ""
    """No more than this comes in."""
    leave_seconds: float = 20.0
    """How long a leaving node waits, at most, for the others to have its last packet."""
    max_worker_restarts: int = 3
    """Restarts of a failing worker without a round in between, before the node gives up."""
    log_format: str = "text"
    """text | json"""
    log_level: str = "info"
    """debug | info | warning"""

    def __post_init__(self) -> None:
        _check_fields(self, NODE_BOUNDS, NODE_CHOICES)
        for name in ("peers", "listen", "announce"):
            for address in getattr(self, name):
                _check_address(name, address)
        if not self.listen:
            raise ConfigError(
                "listen is empty; leave it out for the default, all interfaces and any free port"
            )
        for name in ("max_upload", "max_download"):
            bytes_a_second(getattr(self, name), name)
        if not re.fullmatch(r"auto|cpu|mps|cuda(:\d{1,3})?", self.device):
            raise ConfigError(
                f"device = {shown(self.device)} is not known; "
                "choose auto, cpu, cuda, cuda:<number> or mps"
            )


def bytes_a_second(text: str, name: str) -> float:
    """A limit as people write it, in bytes a second; 0 for none.

    Raises: ConfigError for what is no rate, or less than any node can live with."""
    if not text:
        return 0.0
    found = re.fullmatch(r"(\d{1,9}(?:\.\d{1,9})?) ?([kKmMgG]?)(\w{1,4}(?:/s)?)", text)
    unit = {"bit": 1 / 8, "bit/s": 1 / 8, "bps": 1 / 8, "B": 1.0, "B/s": 1.0}
    if found is None or found[3] not in unit:
        raise ConfigError(
            f"{name} = {shown(text)} is not a rate; write one such as 2mbit, 500kbit or 1.5MB/s"
        )
    rate = float(found[1]) * _SCALE[found[2].lower()] * unit[found[3]]
    if not MIN_LIMIT <= rate <= MAX_LIMIT:
        raise ConfigError(
            f"{name} = {shown(text)} is out of bounds: it must be {MIN_LIMIT / 125:.6g} kbit/s to "
            f"{MAX_LIMIT / 125e6:.6g} Gbit/s; leave it out for no limit"
        )
    return rate


def _check_fields(
    config: RunConfig | NodeConfig,
    bounds: Mapping[str, Bounds],
    choices: Mapping[str, Sequence[object]],
) -> None:
    for name, (low, high) in bounds.items():
        value = getattr(config, name)
        if not low <= value <= high:  # also refuses nan
            raise ConfigError(
                f"{name} = {shown(value)} is out of bounds: it must be {low:.6g} to {high:.6g}"
                f"{_advice(config, name)}"
            )
    for name, allowed in choices.items():
        value = getattr(config, name)
        if value not in allowed:
            listed = ", ".join(str(one) for one in allowed)
            raise ConfigError(
                f"{name} = {shown(value)} is not known: it must be one of {listed}"
                f"{_advice(config, name)}"
            )


def _advice(config: RunConfig | NodeConfig, name: str) -> str:
    default: Any = next(one.default for one in fields(config) if one.name == name)
    return "" if default is MISSING else f"; leave it out for the default, {default}"


def _check_name(name: str) -> None:
    if not 1 <= len(name) <= 64 or not name.isprintable():
        raise ConfigError(
            f"name = {shown(name)} must be 1 to 64 printable characters; choose another"
        )


def _check_task(task: str) -> None:
    if len(task) > 256 or not re.fullmatch(r"[A-Za-z_][\w.-]*(:[A-Za-z_]\w*)?", task):
        raise ConfigError(
            f"task = {shown(task)} is not a task; "
            "name a built-in one, such as lm, or your own as module:attr"
        )


def _check_task_args(task_args: Mapping[str, Scalar]) -> None:
    if len(task_args) > MAX_TASK_ARGS:
        raise ConfigError(
            f"{len(task_args)} settings of the task are too many; {MAX_TASK_ARGS} are possible"
        )
    for name, value in task_args.items():
        if len(name) > 64 or not (name.isascii() and name.isidentifier()):
            raise ConfigError(
                f"task.{shown(name)} is not a possible name; a task's setting is a Python name "
                "of at most 64 ASCII characters"
            )
        if isinstance(value, float) and not math.isfinite(value):
            raise ConfigError(f"task.{name} = {value} must be a finite number")
        if isinstance(value, int) and abs(value) >= 2**63:
            raise ConfigError(f"task.{name} = {shown(value)} must fit in 64 bits")
        if isinstance(value, str) and (len(value) > MAX_TEXT or not _is_text(value)):
            raise ConfigError(
                f"task.{name} must be valid Unicode text of at most {MAX_TEXT} characters"
            )


def _check_ladder(ladder: tuple[int, ...], k: int) -> None:
    rising = all(low < high for low, high in itertools.pairwise(ladder))
    in_bounds = all(1 <= rung <= CHUNK_COEFFICIENTS for rung in ladder)
    if not (1 <= len(ladder) <= MAX_LADDER and rising and in_bounds):
        raise ConfigError(
            f"ladder = {shown(ladder)} must be 1 to {MAX_LADDER} rising numbers, each 1 to "
            f"{CHUNK_COEFFICIENTS}; leave it out for the default"
        )
    if k not in ladder:
        raise ConfigError(
            f"k = {k} is not on the ladder; choose one of {','.join(map(str, ladder))}"
        )


def _check_method(config: RunConfig) -> None:
    if config.method == "diloco" and (config.k, config.ladder) != (4096, (4096,)):
        raise ConfigError(
            f"k = {config.k}, ladder = {shown(config.ladder)}: method diloco tells every "
            "coefficient, k = 4096 and ladder = 4096; leave both out, or take method decoupled"
        )
    if config.method == "paper" and config.outer_momentum:
        raise ConfigError(
            f"outer_momentum = {config.outer_momentum} does not go with method paper, whose "
            "momentum is beta; leave it out"
        )
    if config.method != "paper" and config.mean_over != "all":
        raise ConfigError(
            f"mean_over = {config.mean_over} goes with method paper only; leave it out"
        )


def _check_address(name: str, address: str) -> None:
    if not address.startswith("/"):
        host, _, port = address.rpartition(":")
        guessed = bool(host) and port.isdecimal() and len(address) < 100
        guess = f"/ip4/{host}/tcp/{port}" if guessed else "/ip4/203.0.113.7/tcp/24470"
        end = f"/p2p/<peer id>; {_ASK_THE_PEER}" if name == "peers" else ""
        raise ConfigError(
            f"{name}: {shown(address)} is not a multiaddr; one looks like {guess}{end}"
        )
    if name == "peers" and not re.search(r"/p2p/\w+$", address):
        raise ConfigError(
            f"peers: {shown(address)} does not say which node it is; "
            f"it must end in /p2p/<peer id>; {_ASK_THE_PEER}"
        )


_ASK_THE_PEER = "the other node prints its own address: demoloco status"


def shown(value: object) -> str:
    """A value as an error message can carry it, whoever sent it."""
    text = repr(value)
    return text if len(text) <= 120 else f"{text[:117]}..."


def _is_text(value: str) -> bool:
    """False for lone surrogates, which JSON can carry and nothing can print."""
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True
