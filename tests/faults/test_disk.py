"""A disk that is full, then slow, then read-only under one of three real nodes. The story is told
once; each test is one claim about it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Protocol

import psutil
import pytest

from benchmarks.daemons import Daemon, World, sets, until
from demoloco.types import PeerId, short
from demoloco.worker.checkpoint import newest_whole
from demoloco_proto.v1.control_pb2 import StatusReply

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(600)]

SETTINGS = sets(inner_steps=16, evaluate_every=0, threads=1, task__depth=1, task__width=64)
ODD = Path(__file__).parent / "odd_disk_node.py"
WAITING = "waiting for the disk"
DISK_MB = 96


class Room(Protocol):
    """Takes the room on one node's disk away, and gives it back."""

    def fill(self, node: Daemon) -> None: ...

    def empty(self, node: Daemon) -> None: ...

    def close(self, node: Daemon) -> None: ...


class SmallDisk:
    """The node's home is a file system of its own. For root."""

    def __init__(self, home: Path) -> None:
        home.mkdir()
        size = f"size={DISK_MB}m,mode=700"
        subprocess.run(["mount", "-t", "tmpfs", "-o", size, "tmpfs", str(home)], check=True)

    def fill(self, node: Daemon) -> None:
        with (node.home / "filler").open("wb", buffering=0) as filler:
            try:
                while filler.write(bytes(1 << 16)):
                    pass
            except OSError:
                return

    def empty(self, node: Daemon) -> None:
        (node.home / "filler").unlink()

    def close(self, node: Daemon) -> None:
        subprocess.run(["umount", "--lazy", str(node.home)], check=True)


class Quota:
    """The kernel refuses what the node and its worker write beyond a few bytes a file."""

    def fill(self, node: Daemon) -> None:
        self._limit(node, 4096)

    def empty(self, node: Daemon) -> None:
        self._limit(node, psutil.RLIM_INFINITY)

    def close(self, node: Daemon) -> None:
        pass

    def _limit(self, node: Daemon, size: int) -> None:
        for process in (psutil.Process(node.pid), *node.family()):
            _, hard = process.rlimit(psutil.RLIMIT_FSIZE)
            process.rlimit(psutil.RLIMIT_FSIZE, (size, hard))


@dataclass
class Story:
    """What was seen."""

    odd: str = ""  # as others' reasons name it
    saved: list[int] = field(default_factory=list)  # number of the newest checkpoint over time
    full: list[StatusReply] = field(default_factory=list)  # the odd node's, while it waited
    others: dict[str, list[StatusReply]] = field(default_factory=dict)  # since they had the word
    full_words: list[str] = field(default_factory=list)
    back_after: int = 0  # rounds
    slow_went: list[str] = field(default_factory=list)
    slow_rounds: int = 0
    in_the_loop: int = 0
    read_only_words: list[str] = field(default_factory=list)
    read_only_rounds: int = 0


@pytest.fixture(scope="module")
def story(place: World) -> Iterator[Story]:
    told = Story()
    first, second, odd = (place.daemon(name) for name in ("first", "second", "odd"))
    order = place.root / "order"
    order.write_text("")
    room: Room = SmallDisk(odd.home) if os.geteuid() == 0 else Quota()
    odd.program = [sys.executable, "-P", str(ODD), str(order)]
    try:
        first.start(*SETTINGS)
        for node in (second, odd):
            node.start("--peers", first.address, *sets(threads=1, checkpoint_share=1))
        contributes(odd, 3)
        told.odd = short(PeerId(odd.status.peer_id))
        _full(told, room, (first, second), odd)
        _slow(told, order, first, odd)
        _read_only(told, order, first, odd)
        yield told
    finally:
        if odd.alive():
            odd.kill()
        room.close(odd)


def contributes(node: Daemon, times: int = 1) -> StatusReply:
    """Wait until it is so often more in a round."""
    goal = node.ready().rounds_contributed + times
    return node.wait_for(lambda status: status.rounds_contributed >= goal)


def _full(told: Story, room: Room, others: tuple[Daemon, Daemon], odd: Daemon) -> None:
    told.saved.append(newest_checkpoint(odd))
    room.fill(odd)
    until(lambda: odd.said(WAITING), 60.0, "it says that its disk is full")
    since = len(odd.statuses)
    for node in others:
        node.wait_for(lambda status: phase_of(status, odd.status.peer_id) == "catching up")
    began = [len(node.statuses) for node in others]
    goal = others[0].status.round + 6
    for node in others:
        node.wait_for_round(goal)
    told.others = {node.name: node.statuses[at:] for node, at in zip(others, began, strict=True)}
    told.full = odd.statuses[since:]
    told.saved.append(newest_checkpoint(odd))
    told.full_words = [line["why"] for line in odd.lines(WAITING)]
    emptied_at = others[0].status.round
    room.empty(odd)
    contributes(odd)
    told.back_after = others[0].status.round - emptied_at
    contributes(odd, 2)


def newest_checkpoint(node: Daemon) -> int:
    found = newest_whole(node.home / "checkpoint")
    assert found is not None
    return int(found.path.name)


def phase_of(status: StatusReply, peer: str) -> str:
    return next((one.phase for one in status.members if one.peer_id == peer), "")


def _slow(told: Story, order: Path, first: Daemon, odd: Daemon) -> None:
    order.write_text("slow 2")
    began, at = odd.status.round, len(first.lines("member went"))
    odd.wait_for_round(began + 2)
    told.slow_rounds = odd.status.round - began
    told.slow_went = [line["why"] for line in first.lines("member went")[at:]]
    told.in_the_loop = len(odd.lines("fsync in the loop"))
    order.write_text("")
    contributes(odd)


def _read_only(told: Story, order: Path, first: Daemon, odd: Daemon) -> None:
    before = len(odd.lines(WAITING))
    order.write_text("read-only")
    until(lambda: len(odd.lines(WAITING)) > before, 60.0, "it says that it cannot write")
    began = first.status.round
    first.wait_for_round(began + 4)
    told.read_only_words = [line["why"] for line in odd.lines(WAITING)[before:]]
    order.write_text("")
    contributes(odd, 2)
    told.read_only_rounds = first.status.round - began


# -- full ------------------------------------------------------------------------------------------
def test_a_node_whose_disk_is_full_says_how_much_it_needs_and_has(story: Story) -> None:
    assert all("bytes needed" in why and " free in " in why for why in story.full_words)
    assert WAITING in {status.why for status in story.full}


def test_the_others_do_not_wait_for_a_node_whose_disk_is_full(story: Story) -> None:
    for name, statuses in story.others.items():
        assert len({status.round for status in statuses}) >= 6
        waited = {status.why for status in statuses if story.odd in status.why}
        assert waited == set(), name


def test_a_node_whose_disk_is_full_trains_on(story: Story) -> None:
    steps = [status.inner_step for status in story.full]
    again = sum(later < earlier for earlier, later in pairwise(steps))
    assert again >= 2


def test_the_last_good_checkpoint_stays_on_a_full_disk(story: Story) -> None:
    before, after = story.saved
    assert after >= before


def test_a_node_is_back_as_soon_as_there_is_room(story: Story) -> None:
    assert story.back_after <= 8  # one try a second, and the rounds that it has to follow


# -- slow, read-only -------------------------------------------------------------------------------
def test_a_slow_disk_holds_up_no_heartbeat(story: Story) -> None:
    assert story.slow_rounds >= 2
    assert story.slow_went == []
    assert story.in_the_loop == 0


def test_a_home_that_is_read_only_for_a_while_ends_nothing(story: Story) -> None:
    assert "Read-only file system" in story.read_only_words[0]
    assert story.read_only_rounds >= 4
