"""The own model as the outer method sees it: a stack of chunks, against agreed states in files.

The agreed tensors are the model's floating-point parameters and persistent buffers, in the order of
the model, tied ones once. What has not been told lives in the model itself and, for methods that
need one, in `memory`.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np
import torch
from blake3 import blake3
from numpy.typing import NDArray
from torch import Tensor, nn

from demoloco.codec.chunks import Stack
from demoloco.codec.dct import dct
from demoloco.codec.gift import Blocks, read_owed
from demoloco.codec.layout import CHUNK, EDGE, Layout, layout_of
from demoloco.codec.packet import PacketSpec, Sparse, decode
from demoloco.config import RunConfig
from demoloco.errors import ConfigError, StoreError
from demoloco.outer.methods import method
from demoloco.outer.own import (
    forget,
    model_of,
    read,
    released,
    slab_momentum,
    slabs,
    still_borrowed,
    to_model,
)
from demoloco.outer.steps import OuterStep
from demoloco.types import TensorShape
from demoloco.worker.exports import Share
from demoloco.worker.faults import NotFinite
from demoloco.worker.port import Returned
from demoloco.worker.saved import state_of

MAX_MADE = 16
"""Own packets, those left out included, of which it is known that the model holds them."""


class OwnModel:
    """A model's agreed tensors and how they move: what is told of them, what a round adds."""

    def __init__(self, model: nn.Module, device: torch.device) -> None:
        self.device = device
        self.tensors = {
            name: tensor for name, tensor in state_of(model).items() if tensor.is_floating_point()
        }
        shapes = (
            TensorShape(name=name, shape=tuple(tensor.shape))
            for name, tensor in self.tensors.items()
        )
        self.layout: Layout = layout_of(shapes)

    def begin(self, config: RunConfig) -> None:
        """Use the run's method; nothing is owed yet."""
        self._method = method(config)
        self._planes = OuterStep.of(config).planes
        self._spec = PacketSpec.of(self.layout, bits=config.bits, ladder=config.ladder)
        self.memory: Tensor | None = None
        self.made: deque[str] = deque(maxlen=MAX_MADE)

    def write_initial(self, path: Path) -> None:
        """Write DCT(model) as an agreed state; durable on return.

        Raises: ConfigError for a value that no agreed state can hold.
        """
        for name, tensor in self.tensors.items():
            if not bool(tensor.isfinite().all()):
                raise ConfigError(
                    f"{name} of the model has values that are not finite"
                    "\nfix: register a mask with persistent=False; nobody needs to agree on it"
                )
        own = self._stack()
        with open(path, "wb") as file:
            for slab in slabs(own):
                coefficients = dct(own[slab]).cpu().numpy()
                file.write(np.ascontiguousarray(coefficients, "<f4").data)
            file.flush()
            os.fsync(file.fileno())

    def take(self, agreed: Path) -> None:
        """Become IDCT(agreed); nothing is owed."""
        self.memory = None
        self.made.clear()
        self.become(agreed)

    def become(self, agreed: Path) -> None:
        """The model alone becomes IDCT(agreed)."""
        model_of(self._map(agreed), self._stack())

    @property
    def lends(self) -> bool:
        """Whether joiners may start with what this model owes."""
        return self._method.lends

    def owed(self, agreed: Path) -> Iterator[NDArray[np.float32]]:
        """A − DCT(x), borrowed parts included, slab by slab."""
        own, state = self._stack(), self._map(agreed)
        for slab in slabs(own):
            yield slab_momentum(state, own, slab).cpu().numpy()

    def borrow(self, agreed: Path, owed: Blocks, returned: Returned) -> None:
        """Become IDCT(agreed − owed), without what was returned of it; nothing is owed here."""
        own = self._stack()
        borrowed = torch.empty((len(own), CHUNK), device=own.device)
        for slab in slabs(own):
            borrowed[slab] = _given(owed, slab)
        self.memory = still_borrowed(borrowed, self._read(returned.lent), returned.keep)
        model_of(self._map(agreed), own, self.memory)

    def merge(self, agreed: Path, shares: Sequence[Share]) -> None:
        """Become IDCT(A − Σ w·d), the mean of this model and the members'; where all of it can be
        put back, for nothing is told apart any longer.

        Raises: PacketError if a share is none; OSError."""
        state, own = self._map(agreed), self._stack()
        mine = 1 - sum(share.weight for share in shares)
        parts = [
            (read_owed(share.owed, self.layout.digest, len(own))[1], share) for share in shares
        ]
        told = [self._read(share.told) for share in shares]
        for slab in slabs(own):
            mean = slab_momentum(state, own, slab) * mine
            for (owed, share), gone in zip(parts, told, strict=True):
                theirs = _given(owed, slab).to(own.device)
                forget(theirs, gone, slab)
                mean += theirs * share.weight
            chunks = to_model(read(state, slab, own.device) - mean)
            own.write(slab, chunks.view(-1, EDGE, EDGE))

    def contribute(self, agreed: Path, k: int) -> bytes:
        """The packet body of what is owed against `agreed`.

        Raises: NotFinite if it cannot be told."""
        state = self._map(agreed)
        try:
            made = self._method.contribute(self._stack(), state, self.memory, self._spec, k)
        except ValueError as error:  # it names what is not finite, or too large to be told
            raise NotFinite(str(error)) from error
        self.memory = made.memory
        self.made.append(_name(made.body))
        return made.body

    def correct(
        self, before: Path, after: Path, told: Sequence[bytes], untold: Sequence[bytes]
    ) -> None:
        """Follow the agreed state; own packets entered (told) and left (untold) the chain by it."""
        _, self.memory = self._method.correct(
            self._stack(),
            self._map(before),
            self._map(after),
            self._read(told),
            self._read(untold),
            self.memory,
        )
        gone = {_name(body) for body in told}
        names = [*self.made, *(_name(body) for body in untold)]
        self._hold(name for name in names if name not in gone)

    def follow(
        self, then: Path, now: Path, told_since: Sequence[bytes], made: Sequence[str] = ()
    ) -> None:
        """Move from a checkpoint's agreed state to today's; what was told since is not owed: of a
        packet that the model holds its very values, else whatever is owed at its coefficients.

        `made`: names of the packets that the checkpoint's model holds."""
        self._hold(made)
        if held := [body for body in told_since if _name(body) in made]:
            self.correct(then, then, held, ())
            told_since = [body for body in told_since if body not in held]
        agreed_then, agreed_now = self._map(then), self._map(now)
        if not told_since and np.array_equal(agreed_then, agreed_now):
            return  # the very bits that were saved
        _, self.memory = self._method.restore(
            self._stack(), agreed_then, agreed_now, self._read(told_since), self.memory
        )

    def give_back(self, returned: Returned) -> None:
        """Let go of a part of what is borrowed; what is owed stays as it is."""
        if self.memory is None or not self.lends or returned == Returned():
            return
        lent = self._read(returned.lent)
        _, self.memory = released(self._stack(), self.memory, lent, returned.keep)

    def _hold(self, names: Iterable[str]) -> None:
        self.made = deque(names, maxlen=MAX_MADE)

    def is_finite(self) -> bool:
        """Whether every value is a number."""
        return all(bool(tensor.isfinite().all()) for tensor in self.tensors.values())

    def _stack(self) -> Stack:
        """The model's tensors as chunks; what moves it moves them."""
        return Stack(self.tensors, self.layout)

    def _read(self, bodies: Sequence[bytes]) -> list[Sparse]:
        return [decode(body, self._spec) for body in bodies]

    def _map(self, agreed: Path) -> NDArray[np.float32]:
        """A; a velocity concerns the daemon alone.

        Shapes: (chunks, 4096) float32; not to be written to."""
        wanted = self._planes * self.layout.chunks * CHUNK * 4
        if agreed.stat().st_size != wanted:
            raise StoreError(
                f"the agreed state {agreed} has {agreed.stat().st_size} bytes instead of {wanted}"
            )
        # Of a private map torch takes slabs without copying them; what would be written, were lost.
        return np.memmap(agreed, "<f4", "c", shape=(self.layout.chunks, CHUNK))


def _given(owed: Blocks, slab: slice) -> Tensor:
    """What another node owes of these chunks: (chunks, 4096) on the CPU."""
    values = owed.read(slab.start * CHUNK, slab.stop * CHUNK)
    return torch.from_numpy(values.reshape(-1, CHUNK))


def _name(body: bytes) -> str:
    return blake3(body).hexdigest()
