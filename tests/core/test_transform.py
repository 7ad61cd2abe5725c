"""The DCT against SciPy's, the selection against a full sort."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from demoloco.codec import topk as selection
from demoloco.codec.dct import dct, idct, minus_dct_
from demoloco.codec.topk import topk
from tests.core import twins

FEW_VALUES = arrays.arrays(
    np.float32, (3, 4096), elements=st.sampled_from([0.0, -0.0, 1.0, -1.0, 2.5, -2.5])
)


def test_the_transform_is_scipys() -> None:
    chunks = torch.randn((5, 64, 64), generator=torch.Generator().manual_seed(0))
    assert np.allclose(dct(chunks).numpy(), twins.transform(chunks.numpy()), atol=2e-5)


def test_the_inverse_brings_the_chunks_back_over_many_slabs() -> None:
    chunks = torch.randn((300, 64, 64), generator=torch.Generator().manual_seed(1))
    assert torch.allclose(idct(dct(chunks)), chunks, atol=1e-5)
    assert float(dct(chunks).norm()) == pytest.approx(float(chunks.norm()), rel=1e-5)


LOWERED = """
import warnings, torch
from demoloco.codec.dct import dct
warnings.simplefilter("error")
torch.set_num_threads(1)
chunks = torch.randn((5, 64, 64))
exact = dct(chunks)
{lower}
with torch.autocast("cpu", dtype=torch.bfloat16):
    lowered = dct(chunks)
assert torch.equal(lowered, exact)
assert {still}
"""


@pytest.mark.parametrize(
    ("lower", "still"),
    [
        (
            "torch.set_float32_matmul_precision('medium')",
            "torch.get_float32_matmul_precision() == 'medium'",
        ),
        (
            "torch.backends.cuda.matmul.allow_tf32 = True",
            "torch.backends.cuda.matmul.allow_tf32",
        ),
        (
            "torch.backends.mkldnn.matmul.fp32_precision = 'bf16'",
            "torch.backends.mkldnn.matmul.fp32_precision == 'bf16'",
        ),
    ],
    ids=["precision", "allow_tf32", "fp32_precision"],
)
def test_a_task_that_lowers_the_precision_does_not_lower_the_transforms(
    lower: str, still: str
) -> None:
    """In a process of its own, as these settings are of the process and do not mix."""
    code = LOWERED.format(lower=lower, still=still)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, timeout=100)
    assert done.returncode == 0, done.stderr.decode()


def both_ways(values: np.ndarray, k: int) -> None:
    wanted = twins.largest(values, k)
    found = topk(torch.from_numpy(values), k)
    assert np.array_equal(found.index, wanted.index)
    assert np.array_equal(found.value, wanted.value)
    index, value = selection._on_device(torch.from_numpy(values), k)
    assert np.array_equal(index, wanted.index)
    assert np.array_equal(value, wanted.value)


@pytest.mark.parametrize("k", [1, 8, 64, 128, 129, 512, 4095, 4096])
def test_both_ways_choose_what_a_full_sort_chooses(k: int) -> None:
    both_ways(twins.momenta(140, seed=k), k)


@settings(max_examples=40)
@given(FEW_VALUES, st.sampled_from([1, 5, 64, 200, 4096]))
def test_ties_go_to_the_lower_index(values: np.ndarray, k: int) -> None:
    both_ways(values, k)


def test_of_a_chunk_of_zeros_the_first_k_are_kept() -> None:
    assert topk(torch.zeros(2, 4096), 3).index.tolist() == [[0, 1, 2]] * 2


def test_chunks_of_another_size_work_alike() -> None:
    both_ways(np.random.default_rng(0).normal(size=(3, 100)).astype(np.float32), 7)


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("k", [4, 1000])
def test_a_coefficient_that_is_not_finite_is_an_error(bad: float, k: int) -> None:
    values = torch.zeros(2, 4096)
    values[1, 77] = bad
    with pytest.raises(ValueError, match="diverged"):
        topk(values, k)
    with pytest.raises(ValueError, match="diverged"):
        selection._on_device(values, k)


@pytest.mark.parametrize("k", [0, 4097])
def test_k_must_be_within_the_chunk(k: int) -> None:
    with pytest.raises(ValueError, match="not in 1"):
        topk(torch.zeros(1, 4096), k)


def test_more_threads_change_no_bit() -> None:
    chunks = torch.randn((700, 64, 64), generator=torch.Generator().manual_seed(2))
    base = torch.randn((700, 64, 64), generator=torch.Generator().manual_seed(3))
    one, first = minus_dct_(chunks.clone(), base), topk(chunks.view(700, -1), 16)
    torch.set_num_threads(3)
    try:
        three, second = minus_dct_(chunks.clone(), base), topk(chunks.view(700, -1), 16)
    finally:
        torch.set_num_threads(1)
    assert torch.equal(one, base - dct(chunks))
    assert torch.equal(one, three)
    assert np.array_equal(first.index, second.index)
    assert np.array_equal(first.value, second.value)


@pytest.mark.gpu
def test_an_accelerator_chooses_what_the_cpu_chooses() -> None:
    device = torch.accelerator.current_accelerator()
    assert device is not None
    chunks = torch.randn((300, 64, 64), generator=torch.Generator().manual_seed(4))
    base = torch.randn((300, 64, 64), generator=torch.Generator().manual_seed(5))
    there = minus_dct_(chunks.to(device), base.to(device))
    assert torch.allclose(there.cpu(), minus_dct_(chunks.clone(), base), atol=2e-5)
    assert torch.allclose(idct(dct(chunks.to(device))).cpu(), chunks, atol=2e-5)
    found, wanted = topk(there.view(300, -1), 32), topk(there.cpu().view(300, -1), 32)
    assert np.array_equal(found.index, wanted.index)
    assert np.array_equal(found.value, wanted.value)
