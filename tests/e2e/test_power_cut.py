"""The power fails on every machine of a swarm at once. Started again with nothing but their homes,
the nodes go on with the same run where they were. The story is told once; each test is one claim
about it."""

from __future__ import annotations

import signal
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import psutil
import pytest

from benchmarks.daemons import START_SECONDS, Daemon, World, await_end, sets, together, until
from demoloco.types import Manifest, PeerId
from tests.e2e.on_disk import chain_on_disk

pytestmark = pytest.mark.timeout(300)

NAMES = ("first", "second", "third")
SETTINGS = sets(inner_steps=24, evaluate_every=0, threads=1, task__depth=1, task__width=64)
ROUNDS_BEFORE, ROUNDS_AFTER = 3, 3


@dataclass
class Story:
    """What was seen."""

    runs: dict[str, list[str]] = field(default_factory=dict)  # node → run ids, before and after
    homes: dict[str, list[Manifest]] = field(default_factory=dict)  # on disk after the cut
    stood: dict[str, list[dict[str, Any]]] = field(default_factory=dict)  # "worker stands"
    founded: dict[str, list[str]] = field(default_factory=dict)
    left: list[psutil.Process] = field(default_factory=list)
    ends: dict[str, list[Manifest]] = field(default_factory=dict)  # on disk at the end
    peers: dict[str, PeerId] = field(default_factory=dict)


@pytest.fixture(scope="module")
def story(place: World) -> Story:
    told = Story()
    nodes = [place.daemon(name) for name in NAMES]
    nodes[0].start(*SETTINGS)
    for node in nodes[1:]:
        node.start("--peers", nodes[0].address, *sets(threads=1))
    until(lambda: len(together(*nodes)) >= ROUNDS_BEFORE, START_SECONDS, "rounds that all are in")
    for node in nodes:
        told.runs[node.name] = [node.status.run_id]
        told.peers[node.name] = PeerId(node.status.peer_id)
    told.left = cut_the_power(nodes)
    for node in nodes:
        told.homes[node.name] = chain_on_disk(node)
        node.start_again()
    until(lambda: len(together(*nodes)) >= ROUNDS_AFTER, START_SECONDS, "rounds that all are in")
    for node in nodes:
        told.runs[node.name].append(node.status.run_id)
        told.stood[node.name] = node.lines("worker stands")
        told.founded[node.name] = node.said("run founded")
    cut_the_power(nodes)
    for node in nodes:
        told.ends[node.name] = chain_on_disk(node)
    return told


def cut_the_power(nodes: list[Daemon]) -> list[psutil.Process]:
    """End the nodes, their workers and their p2pds; those that are still there after it."""
    families = [node.family() for node in nodes]
    for node in nodes:
        node.signal(signal.SIGKILL)
    for process in (process for family in families for process in family):
        with suppress(psutil.NoSuchProcess):
            process.kill()
    for node in nodes:
        assert node.exit_code(30.0) == -signal.SIGKILL
    return await_end([process for family in families for process in family])


def test_nothing_outlives_the_cut(story: Story) -> None:
    assert story.left == []


@pytest.mark.parametrize("name", NAMES)
def test_a_node_goes_on_with_the_same_run_and_founds_none(story: Story, name: str) -> None:
    assert len(set(story.runs[name])) == 1
    assert story.founded[name] == []


@pytest.mark.parametrize("name", NAMES)
def test_a_node_stands_where_its_disk_says_and_on_its_checkpoint(story: Story, name: str) -> None:
    first = story.stood[name][0]
    assert first["round"] == story.homes[name][-1].round
    assert first["on"].startswith("the checkpoint of round")


def test_the_longest_chain_goes_on_and_no_round_of_it_is_undone(story: Story) -> None:
    """Who was a round behind when the power failed takes it from the others."""
    longest = max(story.homes.values(), key=lambda chain: chain[-1].samples_total)
    before = {manifest.round: manifest.digest for manifest in longest}
    for chain in story.ends.values():
        after = {manifest.round: manifest.digest for manifest in chain}
        assert after.items() >= {r: d for r, d in before.items() if r in after}.items()
        assert max(after) >= max(before) + ROUNDS_AFTER


@pytest.mark.parametrize("name", NAMES)
def test_what_a_node_told_counts_once_over_the_cut(story: Story, name: str) -> None:
    entries = [manifest.entry_of(story.peers[name]) for manifest in story.ends[name]]
    packets = [entry.packet for entry in entries if entry is not None]
    assert len(packets) >= ROUNDS_BEFORE + ROUNDS_AFTER
    assert len(set(packets)) == len(packets)
