"""Whose fault an exception in the worker is, and what the node is told.

The task's and the configuration's become Failed, with what to do; everything else is our own bug or
this machine's and becomes Died. One place knows this; the code that trains raises and goes on
reading like code that trains.
"""

from __future__ import annotations

import traceback
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from demoloco.errors import ConfigError, StoreError, WorkerError
from demoloco.worker.port import Died, Failed

OUT_OF_MEMORY_FIX = (
    "make the step smaller: --accumulate 2 (4, 8, …) keeps the batch and needs less memory;"
    " or choose a smaller model"
)


class TaskFault(WorkerError):
    """A user's method raised or returned something else than it must; `fix` says what to do."""

    def __init__(self, why: str, fix: str) -> None:
        super().__init__(why)
        self.fix = fix


class NotFinite(WorkerError):
    """The model, or what it makes of its batches, is no longer made of numbers."""


@contextmanager
def in_task(method: str) -> Iterator[None]:
    """What is raised in here is the fault of the task's `method`."""
    try:
        yield
    except (ConfigError, TaskFault):
        raise
    except StopIteration as error:
        raise TaskFault(
            "the task's batches ended",
            "let batches() go on for ever: start again when the data ends",
        ) from error
    except Exception as error:
        if _is_out_of_memory(error):
            raise
        why = f"the task's {method} raised {type(error).__name__}: {_first_line(error)}"
        raise TaskFault(
            why, f"correct {method} at the place that the traceback in the log shows"
        ) from error


def verdict(error: Exception) -> Failed | Died:
    """What the node is told about an exception that ends the worker."""
    detail = "".join(traceback.format_exception(error))
    match error:
        case TaskFault():
            return Failed(why=str(error), fix=error.fix, detail=detail)
        case ConfigError() | StoreError():
            why, _, fix = str(error).partition("\nfix: ")
            return Failed(why=why, fix=fix, detail=detail)
        case _ if _is_out_of_memory(error):
            return Failed(
                why=f"the device is out of memory: {_first_line(error)}",
                fix=OUT_OF_MEMORY_FIX,
                detail=detail,
            )
        case _:
            why = f"the worker stopped on {type(error).__name__}: {_first_line(error)}"
            return Died(why=why, detail=detail)


def _is_out_of_memory(error: Exception) -> bool:
    """On the CPU torch has no class of its own for it."""
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    return isinstance(error, RuntimeError) and "can't allocate memory" in str(error)


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or ["no message"])[0]
