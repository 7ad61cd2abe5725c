"""What every test needs: few threads, that sleep while they wait; the same examples each time."""

from __future__ import annotations

import os

# Before anything imports torch: libgomp reads these once, and a spinning wait starves all others.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
os.environ.setdefault("OMP_NUM_THREADS", "1")

import sys

import pytest
from hypothesis import HealthCheck, settings

# Time says nothing on a crowded machine, so no deadline; a failure in CI must be one here.
settings.register_profile(
    "ci",
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow],
)
# To look for new failures: HYPOTHESIS_PROFILE=search pytest …
settings.register_profile(
    "search", settings.get_profile("ci"), derandomize=False, max_examples=2000
)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci"))


@pytest.fixture(autouse=True)
def _one_torch_thread() -> None:
    """A test that uses torch uses one thread; a test that does not is not made to import it."""
    torch = sys.modules.get("torch")
    if torch is not None and torch.get_num_threads() != 1:
        torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def _no_settings_from_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    """The caller's own DEMOLOCO_… variables change no test."""
    for name in [name for name in os.environ if name.startswith("DEMOLOCO_")]:
        monkeypatch.delenv(name)
