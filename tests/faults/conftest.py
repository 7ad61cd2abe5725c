"""A place for real daemons, as in the end-to-end tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from benchmarks.daemons import World, world


@pytest.fixture(scope="module")
def place() -> Iterator[World]:
    """One world for all tests of a module."""
    with world() as made:
        yield made
