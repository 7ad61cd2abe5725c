"""A worker that has its node look at the law wherever its model stands still."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import torch
from blake3 import blake3

from demoloco.codec.chunks import to_chunks
from demoloco.codec.dct import dct
from demoloco.codec.layout import CHUNK
from demoloco.types import Digest
from demoloco.worker.port import Command, Restore, SaveCheckpoint, TakeAgreed, WorkerEvent
from tests.node.passages import Life
from tests.node.recorder import Coefficients, RecordedWorker
from tests.points import heard, told

if TYPE_CHECKING:
    from tests.node.killing import Victim


class LawfulWorker(RecordedWorker):
    """Has its victim look at the law."""

    def __init__(self, victim: Victim, life: Life) -> None:
        super().__init__(victim.seconds_a_turn, victim.cluster.news.set)
        self.learnt = np.zeros(1)
        self._victim, self._life = victim, life
        self.tell = told(victim.reached, self.tell)  # type: ignore[method-assign]

    def start(self, emit: Callable[[WorkerEvent], None]) -> None:
        victim, life = self._victim, self._life

        def listening(event: WorkerEvent) -> None:
            victim.heard(life, event)
            emit(event)

        super().start(heard(victim.reached, listening))
        loop = cast(Any, self._loop)
        save, restore, take = loop._on_save, loop._on_restore, loop._on_take_agreed

        def saving(order: SaveCheckpoint) -> None:
            victim.checking(life, lambda: victim.kept(life, self, order))
            owed = self.owed(order.agreed)
            save(order)
            victim.remember_saved(life, order, owed)

        def restoring(order: Restore) -> None:
            restore(order)
            victim.checking(life, lambda: victim.restored(life, self, order))
            victim.checking(life, lambda: victim.stood(life, self, order.agreed))

        def taking(order: TakeAgreed) -> None:
            take(order)
            victim.checking(life, lambda: victim.stood(life, self, order.agreed))

        loop._on_save, loop._on_restore, loop._on_take_agreed = saving, restoring, taking

    def felt(self, coefficients: Coefficients) -> Coefficients:
        """What of them reaches the model: chunks are padded."""
        own = cast(Any, self._loop)._own
        tensors = {name: torch.zeros_like(tensor) for name, tensor in own.tensors.items()}
        values = torch.from_numpy(self.values(coefficients)).float()
        sizes = [tensor.numel() for tensor in tensors.values()]
        for tensor, part in zip(tensors.values(), values.split(sizes), strict=True):
            tensor.copy_(part.view_as(tensor))
        chunks = dct(to_chunks(tensors, own.layout))
        return chunks.reshape(-1, CHUNK).double().numpy()

    def tell(self, command: Command) -> None:
        if isinstance(command, Restore | TakeAgreed):
            victim, ahead = self._victim, self._victim.parts.stance._ahead
            # Now: as soon as the next round is ordered nobody needs them any longer.
            self._life.ahead = frozenset(map(victim.body, ahead))
        super().tell(command)


def name_of_body(body: bytes) -> str:
    return blake3(body).hexdigest()


def head_of_file(agreed: Path) -> Digest:
    """Whose state a file in `states/` is."""
    return Digest(bytes.fromhex(agreed.stem.partition("-")[2]))
