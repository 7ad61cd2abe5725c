"""Where tensors live: what `auto` becomes, what people read, which precision suits the device."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import torch

from demoloco.errors import ConfigError


def choose(wanted: str) -> torch.device:
    """The device that `wanted` (auto | cpu | cuda | cuda:1 | mps) names on this machine.

    Raises: ConfigError if it is not there.
    """
    if wanted == "auto":
        wanted = (
            "cuda"
            if torch.cuda.is_available()
            else "mps"
            if torch.backends.mps.is_available()
            else "cpu"
        )
    kind, _, index = wanted.partition(":")
    there = {
        "cpu": 1,
        "cuda": torch.cuda.device_count(),
        "mps": int(torch.backends.mps.is_available()),
    }
    if kind not in there or (index and not index.isdigit()):
        raise ConfigError(
            f"there is no device {wanted!r}\nfix: --device auto, cpu, cuda, cuda:<number> or mps"
        )
    if int(index or 0) >= there[kind]:
        raise ConfigError(
            f"device {wanted} is not here: torch {torch.__version__} sees {there[kind]} of {kind}"
            "\nfix: --device auto, or install a driver and a build of torch that match the device"
        )
    return torch.device(wanted)


def name_of(device: torch.device) -> str:
    """As people read it: cuda (NVIDIA H200), cpu (2 threads)."""
    if device.type == "cuda":
        return f"{device} ({torch.cuda.get_device_name(device)})"
    threads = torch.get_num_threads()
    return (
        f"cpu ({threads} thread{'s' if threads > 1 else ''})"
        if device.type == "cpu"
        else str(device)
    )


def autocast(device: torch.device) -> AbstractContextManager[object]:
    """bfloat16 where the device computes in it, as everybody trains; float32 elsewhere."""
    if device.type == "cuda" and torch.cuda.is_bf16_supported():
        return torch.autocast("cuda", dtype=torch.bfloat16)
    return nullcontext()
