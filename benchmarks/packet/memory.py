"""How much memory an outer step needs beside the model and the agreed state: a process by itself.

    python -m benchmarks.packet.memory MILLIONS K

Prints bytes: the highest resident size of contribute, decode and correct, less what was resident
before with the model and both mapped states in memory. Linux only.
"""

from __future__ import annotations

import ctypes
import sys
import tempfile
from pathlib import Path

import numpy as np
import torch

from demoloco.codec.chunks import Stack
from demoloco.codec.layout import CHUNK, layout_of
from demoloco.codec.packet import PacketSpec, decode
from demoloco.outer.methods import Decoupled
from demoloco.types import TensorShape

SIDE = 1024


def step(millions: float, k: int, folder: Path) -> int:
    """Bytes, of one step of a model of matrices of 1024 × 1024."""
    count = max(1, round(millions * 1e6 / SIDE**2))
    tensors = {str(number): torch.randn((SIDE, SIDE)) for number in range(count)}
    layout = layout_of(TensorShape(name=name, shape=(SIDE, SIDE)) for name in tensors)
    spec, method, stack = (
        PacketSpec.of(layout, bits=2, ladder=(k,)),
        Decoupled(),
        Stack(tensors, layout),
    )
    states = []
    for name in ("before", "after"):
        state = np.memmap(folder / f"{name}{count}", "<f4", "w+", shape=(layout.chunks, CHUNK))
        state[:] = 0
        states.append(state)
    before, after = states
    base = _restart()
    body = method.contribute(stack, before, None, spec, k).body
    method.correct(stack, before, after, [decode(body, spec)], [], None)
    return _kilobytes("VmHWM") * 1024 - base


def _restart() -> int:
    """Give back what is free, begin anew to look for the highest; what is resident now."""
    ctypes.CDLL("libc.so.6").malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5")
    return _kilobytes("VmRSS") * 1024


def _kilobytes(name: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1])
    raise SystemExit(f"this system tells no {name}")


def main() -> None:
    millions, k = float(sys.argv[1]), int(sys.argv[2])
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        step(1, k, Path(folder))  # what code and libraries take, the first time
        print(step(millions, k, Path(folder)))


if __name__ == "__main__":
    main()
