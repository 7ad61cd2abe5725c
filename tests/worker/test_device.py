"""Choosing a device, and what people read about it."""

from __future__ import annotations

import pytest
import torch

from demoloco.errors import ConfigError
from demoloco.worker import device


def test_auto_is_the_best_that_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    for cuda, mps, wanted in [(True, True, "cuda"), (False, True, "mps"), (False, False, "cpu")]:
        monkeypatch.setattr(torch.cuda, "is_available", lambda there=cuda: there)
        monkeypatch.setattr(torch.cuda, "device_count", lambda there=cuda: int(there))
        monkeypatch.setattr(torch.backends.mps, "is_available", lambda there=mps: there)
        assert device.choose("auto").type == wanted


@pytest.mark.parametrize("wanted", ["gpu", "cuda:first", ""])
def test_an_unknown_device_is_refused_with_the_known_ones(wanted: str) -> None:
    with pytest.raises(ConfigError, match="\nfix: --device auto, cpu, cuda"):
        device.choose(wanted)


def test_a_device_that_is_not_here_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    with pytest.raises(ConfigError, match=r"device cuda:1 is not here: .* sees 1 of cuda"):
        device.choose("cuda:1")


def test_threads_are_part_of_a_cpus_name() -> None:
    assert device.name_of(torch.device("cpu")) == "cpu (1 thread)"


def test_a_cpu_computes_in_full_precision() -> None:
    with device.autocast(torch.device("cpu")):
        assert (torch.ones(2, 2) @ torch.ones(2, 2)).dtype == torch.float32
