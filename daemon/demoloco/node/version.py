"""Which version of this software runs."""

from __future__ import annotations

from functools import cache
from importlib.metadata import PackageNotFoundError, version


@cache  # a node tells it with each of its words
def software_version() -> str:
    """The installed distribution's version; `0+source` where it was never installed."""
    try:
        return version("demoloco-node")
    except PackageNotFoundError:
        return "0+source"
