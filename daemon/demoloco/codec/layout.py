"""Which tensors of a model are agreed, and where each lies in the stack of 64×64 chunks.

Shape arithmetic only: the daemon uses it without torch. A tensor of two and more dimensions is
flattened to (first dimension, rest), padded to multiples of 64 and cut into chunks of its own,
where it fills at least one chunk and half of all that it gets; all others are concatenated, in
order, into chunks that they share. The layout's bytes are canonical, so that its digest tells
whether two nodes have the same model.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from dataclasses import dataclass

from blake3 import blake3

from demoloco.errors import ConfigError
from demoloco.types import Digest, TensorShape

EDGE = 64
CHUNK = EDGE * EDGE
MAX_TENSORS = 65_536
MAX_CHUNKS = 1 << 26  # 2.7e11 coefficients
MAX_DIMENSIONS = 16


@dataclass(frozen=True, slots=True)
class Group:
    """Chunks that are coded together: one large tensor, or all small ones.

    `rows` × `columns` chunks for a tensor; 1 × n for the shared chunks.
    """

    first: int
    rows: int
    columns: int
    tensors: tuple[TensorShape, ...]

    @property
    def chunks(self) -> int:
        return self.rows * self.columns

    @property
    def shared(self) -> bool:
        """Whether the tensors lie one after the other instead of one as a matrix of tiles."""
        return len(self.tensors) != 1 or not _has_own_chunks(self.tensors[0])


@dataclass(frozen=True, slots=True)
class Layout:
    """The agreed tensors of a model, in the order of the stack."""

    tensors: tuple[TensorShape, ...]
    groups: tuple[Group, ...]

    @property
    def chunks(self) -> int:
        """Number of chunks in the whole stack."""
        return sum(group.chunks for group in self.groups)

    @property
    def parameters(self) -> int:
        """Number of agreed values, padding not counted."""
        return sum(math.prod(tensor.shape) for tensor in self.tensors)

    def to_bytes(self) -> bytes:
        """Canonical bytes: equal layouts have equal bytes."""
        pairs = [[tensor.name, list(tensor.shape)] for tensor in self.tensors]
        return json.dumps(pairs, separators=(",", ":"), ensure_ascii=True).encode()

    @property
    def digest(self) -> Digest:
        return Digest(blake3(self.to_bytes()).digest())


def layout_of(tensors: Iterable[TensorShape]) -> Layout:
    """Lay the tensors out in their given order, large ones first, then all small ones together.

    Raises: ConfigError for an empty model, a repeated name or a model beyond MAX_TENSORS or
    MAX_CHUNKS.
    """
    shapes = tuple(tensors)
    _check(shapes)
    groups: list[Group] = []
    small: list[TensorShape] = []
    first = 0
    for tensor in shapes:
        if not _has_own_chunks(tensor):
            small.append(tensor)
            continue
        rows, columns = flat_shape(tensor.shape)
        groups.append(Group(first, _tiles(rows), _tiles(columns), (tensor,)))
        first += groups[-1].chunks
    if small:
        values = sum(math.prod(tensor.shape) for tensor in small)
        groups.append(Group(first, 1, -(-values // CHUNK), tuple(small)))
    layout = Layout(shapes, tuple(groups))
    if layout.chunks > MAX_CHUNKS:
        raise ConfigError(
            f"the model has {layout.parameters} values; the limit is {MAX_CHUNKS * CHUNK}"
        )
    return layout


def layout_from_bytes(data: bytes) -> Layout:
    """Read a layout that a peer sent.

    Raises: ConfigError if the bytes are not the canonical form of a layout.
    """
    try:
        pairs = json.loads(data)
        shapes = tuple(TensorShape(name=str(n), shape=tuple(int(d) for d in s)) for n, s in pairs)
    except (ValueError, TypeError, OverflowError, RecursionError) as error:
        raise ConfigError(f"not a model layout: {error}") from error
    layout = layout_of(shapes)
    if layout.to_bytes() != data:
        raise ConfigError("not a model layout: not in canonical form")
    return layout


def first_difference(ours: Layout, theirs: Layout) -> str | None:
    """Say in words where two layouts differ first, or None if they are equal."""
    theirs_by_name = {tensor.name: tensor.shape for tensor in theirs.tensors}
    for tensor in ours.tensors:
        shape = theirs_by_name.get(tensor.name)
        if shape is None:
            return f"{tensor.name} {list(tensor.shape)} is not in the run's model"
        if shape != tensor.shape:
            return f"{tensor.name} is {list(tensor.shape)} here and {list(shape)} in the run"
    known = {tensor.name for tensor in ours.tensors}
    for tensor in theirs.tensors:
        if tensor.name not in known:
            return f"{tensor.name} {list(tensor.shape)} of the run's model is missing here"
    return None if ours.tensors == theirs.tensors else "the tensors are in another order"


def flat_shape(shape: tuple[int, ...]) -> tuple[int, int]:
    """Rows and columns of a tensor seen as a matrix; vectors are one row."""
    return (1, math.prod(shape)) if len(shape) < 2 else (shape[0], math.prod(shape[1:]))


def _has_own_chunks(tensor: TensorShape) -> bool:
    rows, columns = flat_shape(tensor.shape)
    values = rows * columns
    padded = _tiles(rows) * _tiles(columns) * CHUNK
    return len(tensor.shape) > 1 and values >= CHUNK and padded <= 2 * values


def _tiles(length: int) -> int:
    return -(-length // EDGE)


def _check(shapes: tuple[TensorShape, ...]) -> None:
    if not shapes:
        raise ConfigError(
            "the model has no floating-point parameters, so there is nothing to agree on"
        )
    if len(shapes) > MAX_TENSORS:
        raise ConfigError(f"the model has {len(shapes)} tensors; the limit is {MAX_TENSORS}")
    if len({tensor.name for tensor in shapes}) != len(shapes):
        raise ConfigError("two tensors of the model have one name")
    for tensor in shapes:
        if len(tensor.shape) > MAX_DIMENSIONS:
            raise ConfigError(f"{tensor.name} has more than {MAX_DIMENSIONS} dimensions")
        if not all(0 <= size <= MAX_CHUNKS * CHUNK for size in tensor.shape):
            raise ConfigError(f"{tensor.name} has a size beyond 0..{MAX_CHUNKS * CHUNK}")
