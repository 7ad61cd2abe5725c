"""A user takes models out of a running swarm of two real nodes; they train on."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch

from benchmarks.daemons import Daemon, World, sets
from demoloco.task.lm import LanguageModel

pytestmark = [pytest.mark.timeout(300), pytest.mark.slow]

SETTINGS = sets(inner_steps=10, evaluate_every=1, batch_size=4, task__depth=1, task__width=64)


def export(place: World, node: Daemon, name: str, *words: str) -> dict[str, Any]:
    done = place.run(
        "demoloco", "export", name, "--home", str(node.home), "--json", *words, seconds=120.0
    )
    assert done.returncode == 0, f"{done.stderr}\n{node.tail()}"
    found: dict[str, Any] = json.loads(done.stdout)
    assert found["file"] == str(place.root / name)
    return found


def loss_of(place: World, name: str) -> float:
    """As who got the file would measure it."""
    task = LanguageModel(depth=1, width=64)
    model = task.model()
    model.load_state_dict(torch.load(place.root / name, weights_only=True), strict=True)
    with torch.no_grad():
        return task.evaluate(model.eval(), torch.device("cpu"))


def test_models_are_exported_alone_and_merged_while_the_nodes_train(place: World) -> None:
    first, second = place.daemon("first"), place.daemon("second")
    first.start(*SETTINGS, *sets(threads=1))
    second.start("--peers", first.address, *sets(threads=1))
    second.wait_for(lambda status: status.rounds_contributed >= 3)

    merged = export(place, first, "merged.pt", "--merge")
    assert merged["left_out"] == []
    assert {member["peer_id"] for member in merged["members"]} == {
        first.status.peer_id,
        second.status.peer_id,
    }
    assert loss_of(place, "merged.pt") == pytest.approx(merged["merged_loss"], rel=1e-3)
    assert merged["merged_loss"] < merged["agreed_loss"]

    assert export(place, second, "own.pt")["which"] == "own"
    assert export(place, second, "agreed.pt", "--which", "agreed")["which"] == "agreed"
    assert loss_of(place, "own.pt") < loss_of(place, "agreed.pt")

    again = place.run("demoloco", "export", "own.pt", "--home", str(second.home))
    assert again.returncode == 2
    assert "is there already" in again.stderr
    goal = max(node.status.round for node in (first, second)) + 2
    for node in (first, second):
        node.wait_for_round(goal)
        assert node.status.counters.get("worker_restarts", 0) == 0
        assert not (node.home / "checkpoint" / "export").exists()
        node.kill()
