"""One thread for all that blocks on the disk, so that it happens in the order in which it was
asked.

Rule: a full disk is the operator's to mend, not a reason to throw away what is in memory; any
other fault of the disk is.
"""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import ParamSpec, TypeVar

from demoloco.errors import StoreError

ROOM_TRIES = 120
ROOM_SECONDS = 5.0
"""An operator has ten minutes to make room on a full disk."""

P = ParamSpec("P")
T = TypeVar("T")


class Disk:
    """`await disk(function, *arguments)`: first come, first served, off the event loop."""

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="disk")

    async def __call__(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._thread, lambda: work(*args, **kwargs))

    async def when_there_is_room(
        self, complain: Callable[[str], None], work: Callable[P, T], *args: P.args, **kw: P.kwargs
    ) -> T:
        """As a call, but wait and try again while the disk is full.

        Raises: StoreError, if it is about something else or nobody makes room."""
        for _ in range(ROOM_TRIES):
            try:
                return await self(work, *args, **kw)
            except StoreError as error:
                if not is_full(error):
                    raise
                complain(str(error))
            await asyncio.sleep(ROOM_SECONDS)
        return await self(work, *args, **kw)

    def close(self) -> None:
        """Finish what was asked for."""
        self._thread.shutdown(wait=True)


def is_full(error: StoreError) -> bool:
    """Whether room on the disk would help."""
    cause = error.__cause__
    return isinstance(cause, OSError) and cause.errno in (errno.ENOSPC, errno.EDQUOT)
