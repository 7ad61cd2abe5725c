"""What a node does while its disk takes nothing: it waits, trains on, and lets the others go on.

Rule: a disk that is full or read-only is the operator's to mend, not a reason to throw away what is
in memory; any other fault of the disk is. Meanwhile nobody waits for this node: it says that it is
catching up, and is back with the first write that succeeds.
"""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Callable
from contextlib import suppress
from typing import ParamSpec, TypeVar

from demoloco.errors import StoreError
from demoloco.node.disk import Disk

ROOM_TRIES = 600
ROOM_SECONDS = 1.0
"""An operator has ten minutes to mend it."""

COMPLAIN_EVERY = 10  # tries

_MENDABLE = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS})

P = ParamSpec("P")
T = TypeVar("T")


class Room:
    """`await room(function, *arguments)`: as the disk's own call, but it waits while that takes
    nothing.

    `changed` is called when `lacking` becomes true, or false again."""

    def __init__(
        self, disk: Disk, complain: Callable[[str], None], changed: Callable[[], None]
    ) -> None:
        self._disk = disk
        self._complain = complain
        self._changed = changed
        self._waiting = 0
        self._given_up = asyncio.Event()

    @property
    def lacking(self) -> bool:
        """Whether something waits for the disk."""
        return self._waiting > 0

    def give_up(self) -> None:
        """The node leaves: wait no longer."""
        self._given_up.set()

    async def __call__(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Raises: StoreError, if it is about something else or nobody makes room."""
        try:
            return await self._disk(work, *args, **kwargs)
        except StoreError as error:
            if not can_be_mended(error):
                raise
            self._complain(str(error))
        self._count(1)
        try:
            return await self._try_again(work, *args, **kwargs)
        finally:
            self._count(-1)

    async def _try_again(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        for number in range(1, ROOM_TRIES):
            if await self._left_after(ROOM_SECONDS):
                break
            try:
                return await self._disk(work, *args, **kwargs)
            except StoreError as error:
                if not can_be_mended(error):
                    raise
                if number % COMPLAIN_EVERY == 0:
                    self._complain(str(error))
        return await self._disk(work, *args, **kwargs)

    def _count(self, by: int) -> None:
        before, self._waiting = self.lacking, self._waiting + by
        if self.lacking != before:
            self._changed()

    async def _left_after(self, seconds: float) -> bool:
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._given_up.wait()
        return self._given_up.is_set()


def can_be_mended(error: StoreError) -> bool:
    """Whether an operator can help: by room, a larger quota, or a mount that is writable again."""
    cause = error.__cause__
    return isinstance(cause, OSError) and cause.errno in _MENDABLE
