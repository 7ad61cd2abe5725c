"""A worker's loop on a desk: commands in, events out, inner steps when they are asked for."""

from __future__ import annotations

from pathlib import Path
from typing import TypeVar

import numpy as np
import torch
from numpy.typing import NDArray

from demoloco.codec.layout import CHUNK, layout_from_bytes
from demoloco.codec.packet import PacketSpec, decode
from demoloco.config import RunConfig
from demoloco.types import Round
from demoloco.worker.loop import Loop
from demoloco.worker.port import (
    Begin,
    Command,
    Contribute,
    Contributed,
    Describe,
    Described,
    TakeAgreed,
    Train,
    WorkerEvent,
    WriteInitial,
)

Event = TypeVar("Event")
CONFIG = RunConfig(
    task="tests.worker.tasks:Tiny", batch_size=8, learning_rate=1e-2, clip_norm=1.0, warmup_rounds=0
)


def describe(config: RunConfig = CONFIG, node: str = "a") -> Describe:
    return Describe(
        task=config.task,
        task_args=config.task_args,
        seed=config.seed,
        device="cpu",
        threads=1,
        node=node,
    )


class Desk:
    """One worker without a process or an event loop."""

    def __init__(self, config: RunConfig = CONFIG, node: str = "a", accumulate: int = 1) -> None:
        self.events: list[WorkerEvent] = []
        self.config = config
        self.loop = Loop(self.events.append)
        self.tell(describe(config, node), Begin(config=config, accumulate=accumulate))

    def tell(self, *commands: Command) -> None:
        for command in commands:
            self.loop.advance(command)

    def steps(self, count: int) -> None:
        for _ in range(count):
            self.loop.advance(None)

    def train(self, round: int, steps: int) -> None:
        self.tell(Train(round=Round(round), steps=steps))
        self.steps(steps)

    def start(self, agreed: Path) -> None:
        """Write a genesis and stand on it."""
        self.tell(WriteInitial(path=agreed), TakeAgreed(agreed=agreed, round=Round(0)))

    def body(self, agreed: Path, k: int = 64) -> bytes:
        self.tell(Contribute(ticket=1, agreed=agreed, k=k))
        return self.last(Contributed).body

    def last(self, kind: type[Event]) -> Event:
        return next(event for event in reversed(self.events) if isinstance(event, kind))

    @property
    def spec(self) -> PacketSpec:
        layout = layout_from_bytes(self.last(Described).layout)
        return PacketSpec.of(layout, bits=self.config.bits, ladder=self.config.ladder)

    def model(self) -> dict[str, torch.Tensor]:
        """A copy of everything in the model."""
        state = self.loop._described.model.state_dict()
        return {name: one.clone() for name, one in state.items() if isinstance(one, torch.Tensor)}


def read_state(path: Path) -> NDArray[np.float32]:
    return np.fromfile(path, "<f4").reshape(-1, CHUNK)


def advance(before: Path, after: Path, bodies: list[bytes], spec: PacketSpec) -> None:
    """The slow obvious outer step: subtract each contributor's share, chunk by chunk."""
    state = read_state(before)
    for body in bodies:
        sparse = decode(body, spec)
        for chunk in range(len(state)):
            state[chunk, sparse.index[chunk]] -= sparse.value[chunk] / np.float32(len(bodies))
    state.tofile(after)
