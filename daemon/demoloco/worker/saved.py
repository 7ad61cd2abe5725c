"""Tensors of a checkpoint to files and back: model, inner optimizer, owed state, random numbers.

safetensors only. What is loaded is copied into the tensors that are there, after names and shapes
have been compared.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from demoloco.errors import StoreError

MODEL, OPTIMIZER, MEMORY, RANDOM = "model", "optimizer", "memory", "random"


def save(directory: Path, kind: str, tensors: Mapping[str, Tensor]) -> None:
    """Write one of the checkpoint's files.

    Raises: OSError if the disk does not take it; safetensors has a word of its own for that.
    """
    whole = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    try:
        save_file(whole, _file(directory, kind))
    except SafetensorError as error:
        raise OSError(str(error)) from error


def load(directory: Path, kind: str) -> dict[str, Tensor]:
    """Read one of the checkpoint's files, onto the CPU; nothing if there was nothing to write."""
    file = _file(directory, kind)
    return load_file(file) if file.exists() else {}


def state_of(model: nn.Module) -> dict[str, Tensor]:
    """Parameters and persistent buffers in the order of the model, tied ones once."""
    seen: set[tuple[int, torch.Size, tuple[int, ...]]] = set()
    state: dict[str, Tensor] = {}
    for name, tensor in model.state_dict(keep_vars=True).items():
        if not isinstance(tensor, Tensor):
            continue
        place = (tensor.data_ptr(), tensor.shape, tensor.stride())
        if tensor.numel() and place in seen:
            continue
        seen.add(place)
        state[name] = tensor.detach()
    return state


def copy_into(state: Mapping[str, Tensor], loaded: Mapping[str, Tensor]) -> None:
    """Make the model's tensors what was loaded.

    Raises: StoreError if the names or shapes are another model's.
    """
    ours = {name: tensor.shape for name, tensor in state.items()}
    theirs = {name: tensor.shape for name, tensor in loaded.items()}
    if ours != theirs:
        different = sorted(set(ours.items()) ^ set(theirs.items()))[0][0]
        raise StoreError(
            f"the checkpoint is of another model: they differ in {different}"
            "\nfix: remove the checkpoint"
        )
    for name, tensor in state.items():
        tensor.copy_(loaded[name])


def moments_of(optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """The inner optimizer's state, one flat name a tensor: <index of the parameter>.<key>."""
    state = optimizer.state_dict()["state"]
    return {
        f"{index}.{key}": torch.as_tensor(value)
        for index, entries in state.items()
        for key, value in entries.items()
        if value is not None
    }


def load_moments(optimizer: torch.optim.Optimizer, loaded: Mapping[str, Tensor]) -> None:
    """Give the inner optimizer its state back."""
    state: dict[int, dict[str, Tensor]] = {}
    for name, tensor in loaded.items():
        index, _, key = name.partition(".")
        state.setdefault(int(index), {})[key] = tensor
    optimizer.load_state_dict(
        {"state": state, "param_groups": optimizer.state_dict()["param_groups"]}
    )


def random_state(device: torch.device) -> dict[str, Tensor]:
    """torch's generators, for tasks that drop out or augment."""
    states = {"cpu": torch.get_rng_state()}
    if device.type == "cuda":
        states["cuda"] = torch.cuda.get_rng_state(device)
    return states


def load_random_state(device: torch.device, loaded: Mapping[str, Tensor]) -> None:
    """Go on with the same random numbers, as far as the device is of the same kind."""
    torch.set_rng_state(loaded["cpu"])
    if device.type == "cuda" and "cuda" in loaded:
        torch.cuda.set_rng_state(loaded["cuda"], device)


def _file(directory: Path, kind: str) -> Path:
    return directory / f"{kind}.safetensors"
