"""CPU time of an outer step: ours, and as DeMo makes it, on the same tensors, one after the other.

A step makes the own packet, reads those of four members, and moves the model. Ours, whole: own
tensors → DCT → selection → body; four bodies decoded; the agreed state advanced, from a mapped file
to another; the own model corrected. DeMo's: tensor by tensor transform and selection, the own part
taken out of the accumulator, four packets joined, their mean transformed back and applied.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from benchmarks.packet.formats import FrontEnd, Kept, to_wire
from benchmarks.packet.momenta import Momenta
from demoloco.codec.chunks import Stack, from_chunks
from demoloco.codec.packet import Sparse, decode, norm
from demoloco.outer.agreed import advance
from demoloco.outer.methods import Decoupled
from demoloco.outer.own import model_of

T = TypeVar("T")

PEERS = 4
BITS = 2


class OurStep:
    """A node of the swarm, its agreed states in files as a daemon has them."""

    def __init__(self, found: Momenta, k: int, folder: Path) -> None:
        self._found, self._k = found, k
        self._spec, self._method = found.spec(BITS), Decoupled()
        self._own = {name: tensor.clone() for name, tensor in found.own[0].items()}
        self._stack = Stack(self._own, found.layout)
        self._before = _mapped(folder / "before", found.agreed)
        self._after = _mapped(folder / "after", found.agreed)
        told = [self._contribute(Stack(own, found.layout)) for own in found.own]
        self.bodies = _as_many_as_peers(told)
        self.parts: dict[str, list[float]] = {}

    def reset(self) -> None:
        """The model as it was; not part of the step."""
        for name, tensor in self._own.items():
            tensor.copy_(self._found.own[0][name])

    def __call__(self) -> None:
        self._timed("contribute", lambda: self._contribute(self._stack))
        packets = self._timed("read", self._read)
        self._timed("advance", lambda: self._advance(packets))
        self._timed("correct", lambda: self._correct(packets[0]))

    def _contribute(self, stack: Stack) -> bytes:
        made = self._method.contribute(stack, self._before, None, self._spec, self._k)
        return made.body

    def _read(self) -> list[Sparse]:
        packets = [decode(body, self._spec) for body in self.bodies]
        assert all(norm(packet) > 0 for packet in packets)
        return packets

    def _advance(self, packets: list[Sparse]) -> None:
        advance(self._before, packets, [1 / PEERS] * PEERS, 1.0, self._after)

    def _correct(self, told: Sparse) -> None:
        self._method.correct(self._stack, self._before, self._after, [told], [], None)

    def _timed(self, part: str, work: Callable[[], T]) -> T:
        began = time.process_time()
        result = work()
        self.parts.setdefault(part, []).append(time.process_time() - began)
        return result


class DemoStep:
    """The same as DeMo's outer step, with the same owed parts."""

    def __init__(self, found: Momenta, k: int) -> None:
        self._k, self._front = k, FrontEnd()
        state = from_chunks(_whole(found), found.layout)
        self._owed = [{name: state[name] - own[name] for name in state} for own in found.own]
        self._model = {name: tensor.clone() for name, tensor in found.own[0].items()}
        self._left: Mapping[str, Tensor] = {}
        self._theirs = {
            name: _as_many_as_peers([self._sent(owed[name]) for owed in self._owed])
            for name in self._model
        }
        self.reset()

    def reset(self) -> None:
        """The accumulator as it was; not part of the step."""
        self._left = {name: tensor.clone() for name, tensor in self._owed[0].items()}

    def __call__(self) -> None:
        for name, left in self._left.items():
            kept = self._front.encode(left, self._k)
            to_wire(kept)
            left.sub_(self._front.decode(left.shape, kept.index, kept.value))
            packets = [_received(index, value, width) for index, value, width in self._theirs[name]]
            index = torch.cat([packet[0] for packet in packets], dim=1)
            value = torch.cat([packet[1] for packet in packets], dim=1)
            self._model[name].sub_(self._front.decode(left.shape, index, value))

    def _sent(self, tensor: Tensor) -> tuple[bytes, bytes, int]:
        kept: Kept = self._front.encode(tensor, self._k)
        return *to_wire(kept), kept.index.shape[1]


def measure(found: Momenta, k: int, repeats: int) -> dict[str, float]:
    """Milliseconds of CPU time per million parameters: medians of steps that take turns."""
    millions = found.layout.parameters / 1e6
    with tempfile.TemporaryDirectory() as folder:
        ours, theirs = OurStep(found, k, Path(folder)), DemoStep(found, k)
        times: dict[str, list[float]] = {"ours": [], "demo": []}
        for _ in range(repeats + 1):
            for name, step in (("ours", ours), ("demo", theirs)):
                step.reset()
                began = time.process_time()
                step()
                times[name].append(time.process_time() - began)
        told = {**times, **{f"ours_{part}": taken for part, taken in ours.parts.items()}}
    return {name: 1e3 * median(taken[1:]) / millions for name, taken in told.items()}


def by_threads(found: Momenta, k: int, threads: int, repeats: int) -> float:
    """How many times faster, by the clock, a packet is made on so many threads than on one."""
    best: dict[int, float] = {}
    with tempfile.TemporaryDirectory() as folder:
        ours = OurStep(found, k, Path(folder))
        for count in (1, threads) * repeats:
            torch.set_num_threads(count)
            began = time.perf_counter()
            ours._contribute(ours._stack)
            taken = time.perf_counter() - began
            best[count] = min(best.get(count, taken), taken)
    torch.set_num_threads(1)
    return best[1] / best[threads]


def _whole(found: Momenta) -> Tensor:
    like = torch.empty((found.layout.chunks, 64, 64))
    chunks = model_of(found.agreed, like)
    assert isinstance(chunks, Tensor)
    return chunks


def _as_many_as_peers(told: Sequence[T]) -> list[T]:
    """Where fewer nodes were trained, some are heard twice."""
    return [told[place % len(told)] for place in range(PEERS)]


def _mapped(path: Path, values: NDArray[np.float32]) -> NDArray[np.float32]:
    mapped = np.memmap(path, "<f4", "w+", shape=values.shape)
    mapped[:] = values
    return mapped


def _received(index: bytes, value: bytes, width: int) -> tuple[Tensor, Tensor]:
    places = np.frombuffer(index, np.int64).reshape(-1, width)
    values = np.frombuffer(value, np.float32).reshape(-1, width)
    return torch.from_numpy(places.copy()), torch.from_numpy(values.copy())
