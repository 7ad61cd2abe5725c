"""Equal models have equal layouts, and two that differ are told apart in words."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from demoloco.codec import layout as layouts
from demoloco.codec.layout import first_difference, layout_from_bytes, layout_of
from demoloco.errors import ConfigError
from demoloco.types import TensorShape
from tests.core import twins

SHAPES = st.lists(st.integers(0, 200), max_size=3).map(tuple)


@given(st.dictionaries(st.text(max_size=4), SHAPES, min_size=1, max_size=6))
def test_a_layout_comes_back_from_its_bytes(shapes: dict[str, tuple[int, ...]]) -> None:
    layout = twins.layout_for(shapes)
    read = layout_from_bytes(layout.to_bytes())
    assert read == layout
    assert read.digest == layout.digest
    assert first_difference(layout, read) is None


@given(st.dictionaries(st.text(max_size=4), SHAPES, min_size=1, max_size=6))
def test_the_groups_follow_each_other_and_hold_every_tensor_once(
    shapes: dict[str, tuple[int, ...]],
) -> None:
    layout = twins.layout_for(shapes)
    first = 0
    for group in layout.groups:
        assert group.first == first
        first += group.chunks
    assert first == layout.chunks
    held = [tensor.name for group in layout.groups for tensor in group.tensors]
    assert sorted(held) == sorted(shapes)
    assert layout.chunks * layouts.CHUNK >= layout.parameters


@pytest.mark.parametrize(
    ("theirs", "words"),
    [
        ({"a": (2, 3)}, r"b \[4\] is not in the run's model"),
        ({"a": (2, 4), "b": (4,)}, r"a is \[2, 3\] here and \[2, 4\] in the run"),
        ({"a": (2, 3), "b": (4,), "c": (1,)}, r"c \[1\] of the run's model is missing here"),
        ({"b": (4,), "a": (2, 3)}, "in another order"),
    ],
)
def test_the_first_difference_is_said_in_words(
    theirs: dict[str, tuple[int, ...]], words: str
) -> None:
    ours = twins.layout_for({"a": (2, 3), "b": (4,)})
    other = twins.layout_for(theirs)
    assert ours.digest != other.digest
    difference = first_difference(ours, other)
    assert difference is not None
    assert re.search(words, difference)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{",
        b"[[]]",
        b"3",
        b'[["a",5]]',
        b'[["a",[null]]]',
        b'[["a", [1]]]',
        b'[["a",["1"]]]',
        b"\xff\xfe",
        b'[["a",[1e999]]]',
        b"[" * 200_000,
        b'[["a",[' + b"9" * 3000 + b"," + b"9" * 3000 + b"]]]",
    ],
    ids=range(12),
)
def test_bytes_that_are_no_canonical_layout_are_refused(data: bytes) -> None:
    with pytest.raises(ConfigError):
        layout_from_bytes(data)


@pytest.mark.parametrize(
    ("shapes", "words"),
    [
        ([], "nothing to agree on"),
        ([("a", (1,)), ("a", (2,))], "have one name"),
        ([("a", (-1,))], "size beyond 0"),
        ([("a", (1,) * 17)], "more than 16 dimensions"),
        ([("a", (1 << 39,))], "size beyond 0"),
        ([(str(number), ()) for number in range(layouts.MAX_TENSORS + 1)], "65537 tensors"),
        ([("a", (layouts.MAX_CHUNKS + 1, layouts.CHUNK))], "the limit is"),
    ],
    ids=["empty", "twice", "negative", "deep", "long", "many", "large"],
)
def test_a_model_beyond_the_bounds_is_refused(
    shapes: list[tuple[str, tuple[int, ...]]], words: str
) -> None:
    with pytest.raises(ConfigError, match=words):
        layout_of(TensorShape(name=name, shape=shape) for name, shape in shapes)
