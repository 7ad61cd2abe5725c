"""Tensors lie in the stack where the layout says, and come back as they were."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from demoloco.codec.chunks import Stack, from_chunks, to_chunks, write_chunks
from demoloco.codec.layout import CHUNK, Layout, layout_from_bytes
from tests.core import twins

SHAPES = st.lists(st.integers(0, 150), max_size=2).flatmap(
    lambda head: st.lists(st.integers(1, 5), max_size=2).map(lambda tail: (*head, *tail))
)


def test_every_odd_shape_lies_where_the_slow_twin_puts_it() -> None:
    layout, tensors = twins.layout_for(twins.ODD_SHAPES), twins.tensors_for(twins.ODD_SHAPES)
    stack = to_chunks(tensors, layout)
    assert np.array_equal(stack.numpy(), twins.chunk_of(tensors, layout))


@given(st.dictionaries(st.text("abc", min_size=1, max_size=2), SHAPES, min_size=1, max_size=4))
def test_tensors_come_back_as_they_were(shapes: dict[str, tuple[int, ...]]) -> None:
    layout, tensors = twins.layout_for(shapes), twins.tensors_for(shapes)
    stack = to_chunks(tensors, layout)
    assert np.array_equal(stack.numpy(), twins.chunk_of(tensors, layout))
    back = from_chunks(stack, layout)
    assert all(torch.equal(back[name], tensor) for name, tensor in tensors.items())


def test_a_stack_that_is_used_again_keeps_nothing_in_its_padding() -> None:
    layout, tensors = twins.layout_for(twins.ODD_SHAPES), twins.tensors_for(twins.ODD_SHAPES)
    dirty = torch.full((layout.chunks, 64, 64), 7.0)
    assert to_chunks(tensors, layout, dirty) is dirty
    assert torch.equal(dirty, to_chunks(tensors, layout))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_tensors_of_other_precision_are_cast_both_ways(dtype: torch.dtype) -> None:
    shapes = {"matrix": (100, 70), "bias": (9,)}
    layout = twins.layout_for(shapes)
    tensors = {name: tensor.to(dtype) for name, tensor in twins.tensors_for(shapes).items()}
    stack = to_chunks(tensors, layout)
    assert stack.dtype == torch.float32
    targets = {name: torch.zeros_like(tensor) for name, tensor in tensors.items()}
    write_chunks(stack, targets, layout)
    for name, target in targets.items():
        assert torch.equal(target, tensors[name].float().to(dtype))


def test_parameters_are_written_in_place_and_without_gradient() -> None:
    layer = torch.nn.Linear(80, 70)
    tensors = dict(layer.named_parameters())
    layout = twins.layout_for({name: tuple(tensor.shape) for name, tensor in tensors.items()})
    write_chunks(to_chunks(tensors, layout) * 2, tensors, layout)
    assert layer.weight.requires_grad
    assert layer.weight.grad_fn is None
    assert torch.equal(from_chunks(to_chunks(tensors, layout), layout)["weight"], layer.weight)


@pytest.mark.parametrize(
    "strange",
    [
        torch.arange(70.0 * 90).view(70, 90).T,
        torch.arange(64.0 * 3 * 49).view(64, 3, 7, 7).to(memory_format=torch.channels_last),
        torch.arange(8.0 * 6).view(6, 8).T,
    ],
    ids=["transposed", "channels last", "small transposed"],
)
def test_a_tensor_of_strange_strides_is_read_and_written_whole(strange: torch.Tensor) -> None:
    layout = twins.layout_for({"strange": tuple(strange.shape)})
    stack = to_chunks({"strange": strange}, layout)
    assert np.array_equal(stack.numpy(), twins.chunk_of({"strange": strange.contiguous()}, layout))
    target = torch.empty_like(strange)
    write_chunks(stack, {"strange": target}, layout)
    assert torch.equal(target, strange)


def test_a_tensor_of_another_shape_is_refused() -> None:
    layout = twins.layout_for({"weight": (64, 64)})
    with pytest.raises(ValueError, match="weight is"):
        to_chunks({"weight": torch.zeros(64, 65)}, layout)


def test_thin_tensors_share_chunks_instead_of_padding_them() -> None:
    layout = twins.layout_for(twins.ODD_SHAPES)
    assert layout.chunks * CHUNK < 1.35 * layout.parameters
    assert layout_from_bytes(layout.to_bytes()) == layout


SLABS = [slice(start, start + 7) for start in range(0, 10_000, 7)]


def strange_model() -> dict[str, torch.Tensor]:
    """Every odd shape, strange strides, less precision."""
    return twins.tensors_for({**twins.ODD_SHAPES, "wide": (70, 900)}) | {
        "transposed": torch.arange(70.0 * 90).view(70, 90).T,
        "last": torch.arange(64.0 * 3 * 49).view(64, 3, 7, 7).to(memory_format=torch.channels_last),
        "small": torch.arange(8.0 * 6).view(6, 8).T,
        "half": torch.randn((130, 200), generator=torch.Generator().manual_seed(5)).bfloat16(),
    }


def layout_of_model(model: dict[str, torch.Tensor]) -> Layout:
    return twins.layout_for({name: tuple(tensor.shape) for name, tensor in model.items()})


def test_a_stack_read_slab_by_slab_is_the_whole_one() -> None:
    model = strange_model()
    stack = Stack(model, layout_of_model(model))
    whole = to_chunks(model, layout_of_model(model))
    dirty = torch.full((7, 64, 64), 9.0)
    for slab in (slab for slab in SLABS if slab.start < len(stack)):
        length = len(whole[slab])
        assert torch.equal(stack[slab], whole[slab])
        assert torch.equal(stack.read(slab, dirty[:length]), whole[slab])


def test_what_is_written_or_added_slab_by_slab_lands_where_the_whole_would() -> None:
    model = strange_model()
    layout = layout_of_model(model)
    stack, whole = Stack(model, layout), to_chunks(model, layout)
    change = torch.randn(whole.shape, generator=torch.Generator().manual_seed(6))
    wanted = {name: torch.empty_like(tensor) for name, tensor in model.items()}
    write_chunks(whole + change, wanted, layout)
    for slab in (slab for slab in SLABS if slab.start < len(stack)):
        stack.add(slab, change[slab])
    assert all(torch.equal(tensor, wanted[name]) for name, tensor in model.items())
    for slab in (slab for slab in SLABS if slab.start < len(stack)):
        stack.write(slab, whole[slab])
    assert torch.equal(to_chunks(model, layout), whole)
