"""The formats in which a model leaves a node, a function each; `port.FORMATS` has their names.

Rule: whoever builds the model as the task does can load the file and needs nothing else.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from pickle import PicklingError

import torch
from torch import Tensor, nn


def write(name: str, model: nn.Module, path: Path) -> int:
    """Write the model as it is now; the file's size in bytes. Not durable.

    Raises: OSError, and RuntimeError where torch cannot write."""
    _FORMATS[name](model, path)
    return path.stat().st_size


def _write_torch(model: nn.Module, path: Path) -> None:
    """`torch.load(weights_only=True)` gives a state dict for `load_state_dict(strict=True)`, on the
    CPU; tied entries stay tied."""
    state = model.state_dict()
    copies: dict[tuple[object, ...], Tensor] = {}
    for name, tensor in state.items():
        if not isinstance(tensor, Tensor):  # a module's extra state
            continue
        place = (tensor.data_ptr(), tensor.dtype, tensor.shape, tensor.stride(), tensor.device)
        if place not in copies:
            copies[place] = _alone(tensor)
        state[name] = copies[place]
    with path.open("wb") as file:
        try:
            torch.save(state, file)
        except (PicklingError, AttributeError, TypeError) as error:  # of an extra state
            raise RuntimeError(str(error)) from error


def _alone(tensor: Tensor) -> Tensor:
    """The same on the CPU, without the rest of a storage of which it is a part."""
    here = tensor.detach().cpu()
    whole = here.untyped_storage().nbytes() == here.numel() * here.element_size()
    return here if whole else here.clone()


_FORMATS: Mapping[str, Callable[[nn.Module, Path], None]] = {"torch": _write_torch}
