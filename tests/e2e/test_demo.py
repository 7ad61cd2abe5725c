"""`demoloco demo` with real nodes."""

from __future__ import annotations

import re
import signal
from collections.abc import Iterator

import pytest

from benchmarks.daemons import World, await_end, sets, until, world

pytestmark = pytest.mark.timeout(300)

ROUNDS = 3
SMALL = sets(inner_steps=8, task__depth=1, task__width=64)
TOGETHER = re.compile(r"^ *\d+:\d\d +(\d+) .* (\d+)  yes  ([0-9a-f]{8})$", re.MULTILINE)
"""A round that both nodes were in: number, members, state."""


@pytest.fixture
def place() -> Iterator[World]:
    with world() as made:
        yield made


def test_the_demo_trains_two_nodes_and_leaves_nothing(place: World) -> None:
    done = place.run("demoloco", "demo", "--rounds", str(ROUNDS), *SMALL, seconds=200.0)
    said = done.stdout + done.stderr
    assert done.returncode == 0, said
    together = TOGETHER.findall(done.stdout)
    assert len(together) == ROUNDS, said
    assert together[-1][1] == "2"
    assert f"same state on all nodes after round {together[-1][0]}" in said
    assert "node1 has left" in said
    assert "node2 has left" in said
    assert not list(place.root.rglob("identity.key"))
    assert await_end(place.processes()) == []


def test_a_demo_that_is_killed_leaves_no_node(place: World) -> None:
    log = place.root / "demo.log"
    demo = place.spawn("demoloco", "demo", "--home", str(place.root / "demo"), *SMALL, log=log)
    until(lambda: TOGETHER.search(log.read_text()), 120.0, "a round of both nodes")
    nodes = [one for one in place.processes() if one.pid != demo.pid]
    demo.send_signal(signal.SIGKILL)
    assert demo.wait(30.0) == -signal.SIGKILL
    assert len(nodes) >= 6
    assert await_end(nodes) == []
