"""Which version of this software runs."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version


def software_version() -> str:
    """The installed distribution's version; `0+source` where it was never installed."""
    try:
        return version("demoloco-node")
    except PackageNotFoundError:
        return "0+source"
