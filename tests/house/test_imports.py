"""A process loads what it needs: the client starts at once, torch stays in the worker."""

from __future__ import annotations

import subprocess
import sys

import pytest

CLIENT = ["demoloco_client.cli", "demoloco_client.doctor", "demoloco_client.sdk"]
NODE = [
    "demoloco.main",
    "demoloco.settings",
    "demoloco.wire",
    "demoloco.codec.packet",
    "demoloco.doctor.__main__",
    "demoloco.doctor.child",
]


def loaded(module: str) -> set[str]:
    """The top-level packages that importing this module alone brings in."""
    code = f"import sys, {module}; print(*{{name.partition('.')[0] for name in sys.modules}})"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    return set(done.stdout.split())


@pytest.mark.parametrize("module", CLIENT)
def test_the_client_loads_nothing_of_the_daemon(module: str) -> None:
    heavy = {"demoloco", "torch", "hivemind", "numpy", "scipy", "pydantic"}
    assert loaded(module) & heavy == set()


@pytest.mark.parametrize("module", NODE)
def test_the_node_starts_without_torch(module: str) -> None:
    assert loaded(module) & {"torch", "hivemind"} == set()


def test_the_round_machine_loads_only_the_standard_library() -> None:
    before = loaded("dataclasses")
    ours = loaded("demoloco.rounds.machine") - before - set(sys.stdlib_module_names)
    assert ours == {"demoloco"}
