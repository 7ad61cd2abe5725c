"""A home does not grow: after as many rounds as the retention keeps, its size stays where it is."""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path

import pytest

from demoloco.node import ledger
from demoloco.node.ledger import LOG_ROUNDS, MAX_REPLAY, STATES_KEPT
from demoloco.rounds.chain import KEEP_ROUNDS
from demoloco.store.retention import SERVED_SNAPSHOTS
from tests.node.cluster import ClusterNode, cluster
from tests.node.memory_folder import memory_folder

SNAPSHOT_EVERY = 4
SHORT_LOG = KEEP_ROUNDS + 20
"""Manifests, and rounds whose packets are kept, here: a run is too short for as many as nodes have.
"""

KEPT = SHORT_LOG + STATES_KEPT + SERVED_SNAPSHOTS * SNAPSHOT_EVERY
"""Rounds after which nothing may come without something that goes."""

WINDOW = 100
ROUNDS = max(500, KEPT + 2 * WINDOW)
SLACK_FILES = 12
"""A checkpoint that is being written, another that is being removed."""


def measure(home: Path) -> tuple[int, Counter[str]]:
    """Bytes, and files by folder."""
    total, files = 0, Counter[str]()
    for folder, _, names in os.walk(home):
        top = Path(folder).relative_to(home).parts[:1]
        files["".join(top) or "home"] += len(names)
        for name in names:
            try:
                total += os.stat(os.path.join(folder, name)).st_size
            except FileNotFoundError:  # it goes while we look
                files["gone"] += 1
    return total, files


@pytest.mark.timeout(300)
async def test_a_home_is_as_large_after_500_rounds_as_when_it_kept_all_that_it_keeps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert min(LOG_ROUNDS, MAX_REPLAY) > SHORT_LOG
    monkeypatch.setattr(ledger, "LOG_ROUNDS", SHORT_LOG)
    monkeypatch.setattr(ledger, "MAX_REPLAY", SHORT_LOG)
    sizes: dict[int, tuple[int, Counter[str]]] = {}
    quick = {"inner_steps": 1, "evaluate_every": 0, "snapshot_every": SNAPSHOT_EVERY}
    with memory_folder(tmp_path) as folder:
        async with cluster(folder, **quick) as made:
            node: ClusterNode = made.node()
            node.seconds_a_turn = 0.0
            await node.start()
            for _ in range(0, ROUNDS, SNAPSHOT_EVERY):
                await made.until(lambda to=node.round + SNAPSHOT_EVERY: node.round >= to)
                sizes[node.round] = measure(node.home)
    early = [sizes[at] for at in sizes if KEPT < at <= KEPT + WINDOW]
    late = [sizes[at] for at in sizes if at > max(sizes) - WINDOW]
    assert len(early) > 10
    assert len(late) > 10
    assert max(size for size, _ in late) <= 1.02 * max(size for size, _ in early)
    for place in {place for _, files in late for place in files} - {"gone"}:
        most = max(files[place] for _, files in early)
        assert max(files[place] for _, files in late) <= most + SLACK_FILES, place
    assert max(files["log"] for _, files in late) <= KEPT + 1
