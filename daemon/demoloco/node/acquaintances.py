"""Whom this node has met, noted on its disk: where it looks for its swarm when no seed is there.

Rule: noted while the node runs, not when it ends, because it may not end in order.
"""

from __future__ import annotations

import asyncio
import json

from demoloco.errors import StoreError
from demoloco.node.disk import Disk
from demoloco.node.report import Report
from demoloco.store.port import Store
from demoloco.swarm.port import Swarm

LOOK_SECONDS = 5.0
KEY = "peers"


class Acquaintances:
    """Keeps the note up to date."""

    def __init__(self, swarm: Swarm, store: Store, disk: Disk, report: Report) -> None:
        self._swarm = swarm
        self._store = store
        self._disk = disk
        self._report = report
        self._noted: tuple[str, ...] = ()

    async def keep_noted(self) -> None:
        """For as long as the node runs."""
        while True:
            await self.note()
            await asyncio.sleep(LOOK_SECONDS)

    async def note(self) -> None:
        """Note them if they are others than those noted last; the order is of no account."""
        known = self._swarm.known_addresses()
        if set(known) == set(self._noted):
            return
        try:
            await self._disk(self._store.note, KEY, json.dumps(known).encode())
        except StoreError as error:
            self._report.warn("addresses not noted", key=KEY, why=str(error))
        self._noted = known
