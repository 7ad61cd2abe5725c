"""A model's tensors are moved in place, to the same bits as chunks beside them."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from demoloco.codec.chunks import Stack, to_chunks
from demoloco.codec.dct import dct
from demoloco.codec.packet import PacketSpec, decode
from demoloco.outer import own as parts
from demoloco.outer.methods import Decoupled, Method, Synced
from tests.core import twins

SHAPES = {"matrix": (640, 1000), "bias": (640,), "odd": (101, 211), "scale": ()}
LAYOUT = twins.layout_for(SHAPES)
SPEC = PacketSpec.of(LAYOUT, bits=2, ladder=(16,))


def trained(seed: int) -> dict[str, torch.Tensor]:
    tensors = twins.tensors_for(SHAPES)
    generator = torch.Generator().manual_seed(seed)
    return {
        name: tensor + 0.01 * torch.randn(tensor.shape, generator=generator)
        for name, tensor in tensors.items()
    }


def agreed() -> np.ndarray:
    return dct(to_chunks(twins.tensors_for(SHAPES), LAYOUT)).view(-1, 4096).numpy()


@pytest.mark.parametrize("way", [Decoupled(), Synced(0.9)], ids=["decoupled", "synced"])
def test_tensors_move_in_place_to_the_same_bits_as_chunks(way: Method) -> None:
    tensors, state = trained(1), agreed()
    stack, chunks = Stack(tensors, LAYOUT), to_chunks(tensors, LAYOUT)
    one = way.contribute(stack, state, None, SPEC, 16)
    other = way.contribute(chunks, state, None, SPEC, 16)
    assert one.body == other.body
    packet, after = decode(one.body, SPEC), state + np.float32(0.001)
    left, _ = way.correct(stack, state, after, [packet], [], one.memory)
    right, _ = way.correct(other.own, state, after, [packet], [], other.memory)
    assert left is stack
    assert torch.equal(to_chunks(tensors, LAYOUT), _without_padding(right))
    left, _ = way.restore(stack, state, after, [packet], one.memory)
    right, _ = way.restore(_without_padding(right), state, after, [packet], other.memory)
    assert torch.equal(to_chunks(tensors, LAYOUT), _without_padding(right))


def test_borrowed_parts_leave_a_models_tensors_in_place() -> None:
    tensors, state = trained(2), agreed()
    stack, chunks = Stack(tensors, LAYOUT), to_chunks(tensors, LAYOUT)
    borrowed = parts.momentum(state, stack)
    right, rest = parts.released(chunks, borrowed, [], 0.5)
    left, same = parts.released(stack, borrowed, [], 0.5)
    assert left is stack
    assert rest is not None
    assert same is not None
    assert torch.equal(rest, same)
    assert torch.equal(to_chunks(tensors, LAYOUT), _without_padding(right))


def _without_padding(chunks: torch.Tensor) -> torch.Tensor:
    """What is told of the padding is lost on its way into the tensors."""
    tensors = {name: torch.empty(shape) for name, shape in SHAPES.items()}
    Stack(tensors, LAYOUT).write(slice(None), chunks)
    return to_chunks(tensors, LAYOUT)
