"""Whose run a home belongs to before it holds it: what its operator gave it to join by.

Rule: noted before anything is asked of anybody, and never taken back. A home that was once to join
a run founds none, however often its node is killed on the way and however it is started again.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

from demoloco.errors import ConfigError
from demoloco.store.port import Store

KEY = "seeds"
WAY_OUT = "a run of your own needs another --home DIR, or this one removed"


@dataclass(frozen=True, slots=True)
class Belonging:
    """By whom a node joins, and the task that its operator named and so trusts ("" = none)."""

    seeds: tuple[str, ...] = ()
    task: str = ""
    given: bool = False
    """The seeds were named at this start, not at an earlier one."""


def settle(store: Store, peers: tuple[str, ...], task: str) -> Belonging:
    """What was given now, else what was given before; noted where the home has no run yet.

    Raises: ConfigError if nobody can say any longer what was given; StoreError.
    """
    has_run = store.is_noted("genesis")
    before = _noted(store, must_be_whole=not peers and not has_run)
    belonging = Belonging(peers or before.seeds, task or before.task, given=bool(peers))
    if not has_run:
        remember(store, belonging)
    return belonging


def remember(store: Store, belonging: Belonging) -> None:
    """Note it, if it is news. Raises: StoreError."""
    before = _noted(store, must_be_whole=False)
    if belonging.seeds and (belonging.seeds, belonging.task) != (before.seeds, before.task):
        words = {"seeds": belonging.seeds, "task": belonging.task}
        store.note(KEY, json.dumps(words).encode())


def _noted(store: Store, *, must_be_whole: bool) -> Belonging:
    data = store.noted(KEY)
    try:
        words = json.loads(data) if data is not None else {}
        seeds, task = _texts(words.get("seeds", ())), words.get("task", "")
    except (ValueError, AttributeError):
        seeds, task = (), ""
    if must_be_whole and not seeds and store.is_noted(KEY):
        raise ConfigError(
            "this home is to join a run, and its note of the peers is damaged; give them again with"
            f" --peers ADDR; {WAY_OUT}"
        )
    return Belonging(seeds, task if isinstance(task, str) else "")


def _texts(words: Sequence[object]) -> tuple[str, ...]:
    return tuple(one for one in words if isinstance(one, str))
