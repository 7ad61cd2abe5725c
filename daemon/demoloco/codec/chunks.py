"""Tensors of a model as one stack of 64×64 chunks, and back. torch.

Rule: where each value lies follows from the Layout alone; padding is zero and is never read back.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Mapping
from itertools import accumulate

import torch
from torch import Tensor

from demoloco.codec.layout import CHUNK, EDGE, Group, Layout
from demoloco.types import TensorShape

Pairs = Iterator[tuple[Tensor, Tensor]]
"""Views of chunks and of tensors that hold the same values."""


class Stack:
    """A model's tensors, read and written as chunks, a slab at a time: the stack is never whole.

    Raises: KeyError for a tensor that is missing, ValueError for one of another shape.
    """

    def __init__(self, tensors: Mapping[str, Tensor], layout: Layout) -> None:
        self._groups = [(group, _lain(group, tensors)) for group in layout.groups]
        self._chunks = layout.chunks
        self.device = tensors[layout.tensors[0].name].device

    def __len__(self) -> int:
        return self._chunks

    def __getitem__(self, slab: slice) -> Tensor:
        """A copy of these chunks, (slab, 64, 64) float32 on the tensors' device."""
        start, stop, _ = slab.indices(len(self))
        return self.read(slab, torch.empty((stop - start, EDGE, EDGE), device=self.device))

    @torch.no_grad()
    def read(self, slab: slice, out: Tensor) -> Tensor:
        """Copy these chunks into `out`, (slab, 64, 64) float32."""
        for place, piece in self._pairs(slab, out, reading=True):
            place.copy_(piece)
        return out

    @torch.no_grad()
    def write(self, slab: slice, chunks: Tensor) -> None:
        """Copy chunks into the tensors in place, whatever their dtype, device and strides."""
        for place, piece in self._pairs(slab, chunks, reading=False):
            piece.copy_(place)

    @torch.no_grad()
    def add(self, slab: slice, chunks: Tensor) -> None:
        """Add chunks to the tensors in place; a tensor of less precision is rounded once."""
        for place, piece in self._pairs(slab, chunks, reading=False):
            piece.add_(place.to(piece.device))

    def _pairs(self, slab: slice, chunks: Tensor, *, reading: bool) -> Pairs:
        start, stop, _ = slab.indices(len(self))
        for group, lain in self._groups:
            first, last = max(start, group.first), min(stop, group.first + group.chunks)
            if first < last:
                block = chunks[first - start : last - start]
                yield from lain.pairs(block, first - group.first, reading)


def to_chunks(tensors: Mapping[str, Tensor], layout: Layout, out: Tensor | None = None) -> Tensor:
    """Copy the agreed tensors into a float32 stack (chunks, 64, 64), on their device or in `out`.

    Raises: KeyError for a tensor that is missing, ValueError for one of another shape.
    """
    stack = Stack(tensors, layout)
    return stack[:] if out is None else stack.read(slice(None), out)


def write_chunks(chunks: Tensor, tensors: Mapping[str, Tensor], layout: Layout) -> None:
    """Copy a stack back into the tensors in place, whatever their dtype, device and strides.

    Raises: KeyError for a tensor that is missing, ValueError for one of another shape.
    """
    Stack(tensors, layout).write(slice(None), chunks)


def from_chunks(chunks: Tensor, layout: Layout) -> dict[str, Tensor]:
    """The tensors that lie in a stack, as new float32 tensors on its device."""
    tensors = {
        tensor.name: torch.empty(tensor.shape, dtype=torch.float32, device=chunks.device)
        for tensor in layout.tensors
    }
    write_chunks(chunks, tensors, layout)
    return tensors


def _lain(group: Group, tensors: Mapping[str, Tensor]) -> _Line | _Matrix:
    parts = [_of(tensors, tensor).detach() for tensor in group.tensors]
    return _Line(parts) if group.shared else _Matrix(parts[0], group.columns)


def _of(tensors: Mapping[str, Tensor], wanted: TensorShape) -> Tensor:
    tensor = tensors[wanted.name]
    if tuple(tensor.shape) != wanted.shape:
        raise ValueError(f"{wanted.name} is {list(tensor.shape)}, expected {list(wanted.shape)}")
    return tensor


class _Line:
    """Tensors that lie one after the other."""

    def __init__(self, tensors: list[Tensor]) -> None:
        self._tensors = tensors
        self._ends = list(accumulate(tensor.numel() for tensor in tensors))

    def pairs(self, block: Tensor, first: int, reading: bool) -> Pairs:
        line = block.view(-1)
        start = first * CHUNK
        stop = min(start + len(line), self._ends[-1])
        if reading:
            line[stop - start :].zero_()
        for place in range(bisect_right(self._ends, start), len(self._tensors)):
            tensor = self._tensors[place]
            begin = self._ends[place] - tensor.numel()
            if begin >= stop:
                break
            low, high = max(begin, start), min(self._ends[place], stop)
            flat = tensor.reshape(-1)
            yield line[low - start : high - start], flat[low - begin : high - begin]
            if not reading:
                _put_back(flat, tensor)


class _Matrix:
    """A tensor that is a matrix of tiles, `columns` of them side by side."""

    def __init__(self, tensor: Tensor, columns: int) -> None:
        self._tensor, self._columns = tensor, columns

    def pairs(self, block: Tensor, first: int, reading: bool) -> Pairs:
        for row, rows, column, columns in _rectangles(first, first + len(block), self._columns):
            part, block = block[: rows * columns], block[rows * columns :]
            strip = self._tensor[row * EDGE : (row + rows) * EDGE]
            flat = strip.reshape(len(strip), -1)
            piece = flat[:, column * EDGE : (column + columns) * EDGE]
            if reading and piece.numel() < part.numel():
                part.zero_()
            grid = part.view(rows, columns, EDGE, EDGE).transpose(1, 2)
            for tiles, values in _row_strips(grid, piece):
                yield from _column_strips(tiles, values)
            if not reading:
                _put_back(flat, strip)


def _put_back(flat: Tensor, tensor: Tensor) -> None:
    """Its strides may have made the flat one a copy."""
    if flat.data_ptr() != tensor.data_ptr():
        tensor.copy_(flat.view(tensor.shape))


def _rectangles(start: int, stop: int, width: int) -> Iterator[tuple[int, int, int, int]]:
    """Cells start..stop of a grid as few rectangles: first row, rows, first column, columns."""
    while start < stop:
        row, column = divmod(start, width)
        whole = (stop - start) // width if column == 0 else 0
        rows, columns = (whole, width) if whole else (1, min(width - column, stop - start))
        yield row, rows, column, columns
        start += rows * columns


def _row_strips(grid: Tensor, matrix: Tensor) -> Pairs:
    """grid (R, 64, C, 64) and matrix (rows, columns) -> (R, 64, C, 64) and (R, 64, columns)."""
    whole, rest = divmod(matrix.shape[0], EDGE)
    if whole:
        yield grid[:whole], matrix[: whole * EDGE].view(whole, EDGE, -1)
    if rest:
        yield grid[whole:, :rest], matrix[whole * EDGE :].unsqueeze(0)


def _column_strips(grid: Tensor, strip: Tensor) -> Pairs:
    whole, rest = divmod(strip.shape[2], EDGE)
    if whole:
        tiles = strip[:, :, : whole * EDGE]
        yield grid[:, :, :whole], tiles.view(*tiles.shape[:2], whole, EDGE)
    if rest:
        yield grid[:, :, whole, :rest], strip[:, :, whole * EDGE :]
