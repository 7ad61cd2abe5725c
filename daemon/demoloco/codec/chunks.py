"""Tensors of a model as one stack of 64×64 chunks, and back. torch.

Rule: where each value lies follows from the Layout alone; padding is zero and is never read back.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import torch
from torch import Tensor

from demoloco.codec.layout import EDGE, Group, Layout, flat_shape
from demoloco.types import TensorShape


@torch.no_grad()
def to_chunks(tensors: Mapping[str, Tensor], layout: Layout, out: Tensor | None = None) -> Tensor:
    """Copy the agreed tensors into a float32 stack (chunks, 64, 64), on their device or in `out`.

    Raises: KeyError for a tensor that is missing, ValueError for one of another shape.
    """
    if out is None:
        device = tensors[layout.tensors[0].name].device
        out = torch.empty((layout.chunks, EDGE, EDGE), dtype=torch.float32, device=device)
    for group in layout.groups:
        matrices = [_matrix(_of(tensors, tensor)) for tensor in group.tensors]
        block = out[group.first : group.first + group.chunks]
        if sum(matrix.numel() for matrix in matrices) < block.numel():
            block.zero_()
        for place, piece in _pairs(block, group, matrices):
            place.copy_(piece)
    return out


@torch.no_grad()
def write_chunks(chunks: Tensor, tensors: Mapping[str, Tensor], layout: Layout) -> None:
    """Copy a stack back into the tensors in place, whatever their dtype, device and strides.

    Raises: KeyError for a tensor that is missing, ValueError for one of another shape.
    """
    for group in layout.groups:
        targets = [_of(tensors, tensor).detach() for tensor in group.tensors]
        matrices = [_matrix(target) for target in targets]
        block = chunks[group.first : group.first + group.chunks]
        for place, piece in _pairs(block, group, matrices):
            piece.copy_(place)
        for target, matrix in zip(targets, matrices, strict=True):
            if matrix.data_ptr() != target.data_ptr():  # its strides made the matrix a copy
                target.copy_(matrix.view(target.shape))


def from_chunks(chunks: Tensor, layout: Layout) -> dict[str, Tensor]:
    """The tensors that lie in a stack, as new float32 tensors on its device."""
    tensors = {
        tensor.name: torch.empty(tensor.shape, dtype=torch.float32, device=chunks.device)
        for tensor in layout.tensors
    }
    write_chunks(chunks, tensors, layout)
    return tensors


def _of(tensors: Mapping[str, Tensor], wanted: TensorShape) -> Tensor:
    tensor = tensors[wanted.name]
    if tuple(tensor.shape) != wanted.shape:
        raise ValueError(f"{wanted.name} is {list(tensor.shape)}, expected {list(wanted.shape)}")
    return tensor


def _matrix(tensor: Tensor) -> Tensor:
    return tensor.reshape(flat_shape(tuple(tensor.shape)))


def _pairs(block: Tensor, group: Group, matrices: list[Tensor]) -> Iterator[tuple[Tensor, Tensor]]:
    """Views of the group's chunks and of its tensors that hold the same values."""
    if group.shared:
        line = block.view(-1)
        for matrix in matrices:
            place, line = line[: matrix.numel()], line[matrix.numel() :]
            yield place.view(matrix.shape), matrix
    else:
        grid = block.view(group.rows, group.columns, EDGE, EDGE).transpose(1, 2)
        for place, piece in _row_strips(grid, matrices[0]):
            yield from _column_strips(place, piece)


def _row_strips(grid: Tensor, matrix: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """grid (R, 64, C, 64) and matrix (rows, columns) -> (R, 64, C, 64) and (R, 64, columns)."""
    whole, rest = divmod(matrix.shape[0], EDGE)
    if whole:
        yield grid[:whole], matrix[: whole * EDGE].view(whole, EDGE, -1)
    if rest:
        yield grid[whole:, :rest], matrix[whole * EDGE :].unsqueeze(0)


def _column_strips(grid: Tensor, strip: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    whole, rest = divmod(strip.shape[2], EDGE)
    if whole:
        tiles = strip[:, :, : whole * EDGE]
        yield grid[:, :, :whole], tiles.view(*tiles.shape[:2], whole, EDGE)
    if rest:
        yield grid[:, :, whole, :rest], strip[:, :, whole * EDGE :]
