"""A worker whose learning is written down, in coefficients: to check that learnt = told + owed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray

from demoloco.codec.chunks import to_chunks, write_chunks
from demoloco.codec.dct import dct, idct
from demoloco.codec.layout import CHUNK, EDGE
from demoloco.worker.loop import Stint
from demoloco.worker.memory import MemoryWorker
from demoloco.worker.port import Command, Restore, SaveCheckpoint, WorkerEvent

Coefficients = NDArray[np.float64]
Saved = dict[bytes, Coefficients]
"""What was owed at each checkpoint, by its head."""


class RecordedWorker(MemoryWorker):
    """Adds up its pseudo-gradients; may be slow; may be told to fall before a command."""

    def __init__(self, seconds_a_turn: float, notify: Callable[[], object]) -> None:
        super().__init__()
        self.learnt: Coefficients | float = 0.0
        self.saved: Saved = {}
        self.restored: Callable[[Restore, Coefficients], None] = lambda order, owed: None
        self.told: list[Command] = []
        self.falls_at: Callable[[Command], bool] = lambda command: False
        self._seconds_a_turn = seconds_a_turn
        self._notify = notify

    def start(self, emit: Callable[[WorkerEvent], None]) -> None:
        super().start(emit)
        assert self._loop is not None
        step = self._loop._step

        def recorded(stint: Stint) -> None:
            before = self.model()
            step(stint)
            self.learnt = self.learnt + (before - self.model())

        save, restore = self._loop._on_save, self._loop._on_restore

        def saving(order: SaveCheckpoint) -> None:
            self.saved[order.head] = self.owed(order.agreed)
            save(order)

        def restoring(order: Restore) -> None:
            restore(order)
            self.restored(order, self.owed(order.agreed))

        loop = cast(Any, self._loop)
        loop._step, loop._on_save, loop._on_restore = recorded, saving, restoring

    def tell(self, command: Command) -> None:
        self.told.append(command)
        if self.falls_at(command):
            self.falls_at = lambda command: False
            self.kill()
        super().tell(command)

    def model(self) -> Coefficients:
        """DCT(x)."""
        own = cast(Any, self._loop)._own
        chunks = to_chunks(own.tensors, own.layout)
        return dct(chunks).reshape(-1, CHUNK).double().numpy()

    def borrowed(self) -> Coefficients | float:
        """b; with method synced −e, for what is owed waits outside the model; paper's is another
        thing."""
        own = cast(Any, self._loop)._own
        if own.memory is None or own.memory.dim() == 3:
            return 0.0
        memory: Coefficients = own.memory.double().cpu().numpy()
        return memory if own.lends else -memory

    def owed(self, agreed: Path) -> Coefficients:
        """A − DCT(x) − b."""
        model = self.model()
        state = np.fromfile(agreed, "<f4").reshape(-1, CHUNK)[: len(model)]
        return state.astype(np.float64) - model - self.borrowed()

    def values(self, coefficients: Coefficients) -> NDArray[np.float64]:
        """What coefficients mean for the model's values: chunks are padded, and what a packet tells
        of the padding reaches no model."""
        own = cast(Any, self._loop)._own
        tensors = {name: torch.zeros_like(tensor) for name, tensor in own.tensors.items()}
        chunks = idct(torch.from_numpy(coefficients).float().view(-1, EDGE, EDGE))
        write_chunks(chunks, tensors, own.layout)
        return torch.cat([tensor.flatten() for tensor in tensors.values()]).double().numpy()

    def poison(self) -> None:
        """A bit in memory changes: a value of the model is none any longer."""
        tensors = cast(Any, self._loop)._own.tensors
        with torch.no_grad():
            next(iter(tensors.values())).view(-1)[0] = float("nan")

    @property
    def idle(self) -> bool:
        """All that it was told is done."""
        return self._loop is None or not (self._commands or self._loop.training)

    @property
    def steps_under_way(self) -> int:
        stint = self._loop._stint if self._loop is not None else None
        return 0 if stint is None else stint.done

    def _schedule(self) -> None:
        if self._loop is not None and not self._scheduled:
            self._scheduled = True
            self._events.call_later(self._seconds_a_turn, self._turn)

    def _turn(self) -> None:
        super()._turn()
        self._notify()
