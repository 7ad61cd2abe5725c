"""How a stack of chunks is cut for work: slabs for whoever walks over it, pieces for the threads.

Rule: a piece's values depend on nothing but the piece, so that the number of threads changes speed
and memory and never a bit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache

import torch

PIECE = 128  # chunks: 2 MiB, so that what is worked on stays in a core's cache
DEVICE_SLAB = 4096  # chunks: 64 MiB, so that few kernels are started


def slab_chunks(device: torch.device) -> int:
    """Chunks that are best worked on at a time: on a CPU a piece for each of torch's threads."""
    return PIECE * torch.get_num_threads() if device.type == "cpu" else DEVICE_SLAB


def slabs_of(count: int, size: int) -> Iterator[slice]:
    """`count` chunks in parts of `size`, the last one of what is left."""
    for start in range(0, count, size):
        yield slice(start, min(start + size, count))


def by_threads(work: Callable[[slice], None], count: int) -> None:
    """Do the work on every piece of `count` chunks, on as many threads as torch would use.

    The work should be numpy's, which lets other threads run; torch's own operations would start
    threads of their own in each.
    """
    threads = torch.get_num_threads()
    if threads == 1 or count <= PIECE:
        for piece in slabs_of(count, PIECE):
            work(piece)
        return
    for _ in _pool(threads).map(work, slabs_of(count, PIECE)):
        pass


@lru_cache(maxsize=1)
def _pool(threads: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(threads, "codec")
