"""How many manifests to ask for at once on the way down to the own chain.

Rule: whoever missed one round asks for little; each further step down asks for more. A manifest of
a large swarm has kilobytes, and a way of many rounds is rare.
"""

from __future__ import annotations

from demoloco.types import Digest

FIRST = 2
FACTOR = 4
MAX_COUNT = 64
"""As many as one answer holds."""
MAX_WAYS = 64


class Descent:
    """The ways down that are under way."""

    def __init__(self) -> None:
        self._next: dict[Digest, int] = {}  # the manifest below what was found → how many then

    def count(self, head: Digest) -> int:
        """How many to ask for from this manifest on."""
        return self._next.get(head, FIRST)

    def found(self, head: Digest, below: Digest) -> None:
        """What was asked for from `head` on is here; `below` is the parent of the lowest."""
        self._next[below] = min(MAX_COUNT, FACTOR * self.count(head))
        self._next.pop(head, None)
        if len(self._next) > MAX_WAYS:
            del self._next[next(iter(self._next))]
