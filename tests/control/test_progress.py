"""What a node's terminal shows, and that anything else gets log lines only."""

from __future__ import annotations

import asyncio
import dataclasses
import io
import logging
import sys
from collections.abc import Iterator

import pytest
from rich.console import Console

from demoloco.node.feed import Feed, MemberStatus, Status
from demoloco.node.logs import configure_logging
from demoloco.node.progress import (
    MAX_MEMBERS_SHOWN,
    block,
    count_text,
    introduce,
    members_text,
    show_progress,
    size_text,
)
from tests.control.fake_node import FULL


@pytest.fixture(autouse=True)
def _logging_as_it_was() -> Iterator[None]:
    root = logging.getLogger()
    before = (list(root.handlers), root.level)
    configure_logging()
    yield
    root.handlers[:], level = before
    root.setLevel(level)
    logging.captureWarnings(False)


def terminal() -> Console:
    return Console(stderr=True, force_terminal=True, color_system=None, width=100, height=40)


def test_the_block_tells_all_that_matters() -> None:
    file = io.StringIO()
    status = dataclasses.replace(FULL, phase="exchanging", why="waiting for the packet of UVWXYZ")
    Console(file=file, width=100, color_system=None).print(block(status))
    words = " ".join(file.getvalue().split())
    for part in (
        "round 12 exchanging",
        "inner step 31 of 50",
        "loss 2.125 held out 2.250 after round 10 (first 5.500)",
        "speed 61.5 samples/s",
        "members 2 UVWXYZ at 11, me at 12",
        "packet 41 kB instead of 3.21 MB, 78 × less",
        "traffic 1.23 MB sent, 987 B received",
        "now waiting for the packet of UVWXYZ",
    ):
        assert part in words


def test_a_node_that_knows_nothing_yet_has_a_block_too() -> None:
    file = io.StringIO()
    Console(file=file, width=100).print(block(Status(phase="joining")))
    assert "packet   none yet" in file.getvalue()


async def test_no_terminal_gets_nothing_but_log_lines(capsys: pytest.CaptureFixture[str]) -> None:
    feed, console = Feed(FULL), Console(stderr=True, force_terminal=False)
    introduce(feed, console)
    await show_progress(feed, console)
    started, join = capsys.readouterr().err.splitlines()
    assert "node started" in started
    assert 'command="' + FULL.join_command in join


async def test_log_lines_scroll_above_the_block(capsys: pytest.CaptureFixture[str]) -> None:
    feed, stderr = Feed(FULL), sys.stderr
    shown = asyncio.create_task(show_progress(feed, terminal()))
    await asyncio.sleep(0)
    feed.line("round committed", round=13)
    feed.update(round=13)
    feed.close()
    await shown
    text = capsys.readouterr().err
    line = text.index("round committed")
    assert text.index("round 12 ") < line < text.index("round 13 ")
    assert sys.stderr is stderr


async def test_a_cancelled_view_gives_the_terminal_back(capsys: pytest.CaptureFixture[str]) -> None:
    stderr = sys.stderr
    shown = asyncio.create_task(show_progress(Feed(FULL), terminal()))
    await asyncio.sleep(0)
    shown.cancel()
    with pytest.raises(asyncio.CancelledError):
        await shown
    assert sys.stderr is stderr
    assert capsys.readouterr().err.endswith("\x1b[?25h")


def test_the_header_has_the_join_command_on_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    console = Console(stderr=True, force_terminal=True, color_system=None, width=60)
    introduce(Feed(FULL), console)
    assert f"join    {FULL.join_command}\n" in capsys.readouterr().err


def test_many_members_take_one_line() -> None:
    crowd = tuple(MemberStatus(peer_id=f"peer-{n:06d}") for n in range(100))
    words = members_text(Status(members=crowd))
    assert words.startswith("100   ")
    assert words.endswith(f", {100 - MAX_MEMBERS_SHOWN} more")


@pytest.mark.parametrize(
    ("number", "size", "count"),
    [
        (0, "0 B", "0"),
        (999, "999 B", "999"),
        (41_234, "41.2 kB", "41.2 k"),
        (10**7, "10 MB", "10 M"),
    ],
)
def test_numbers_have_three_digits(number: int, size: str, count: str) -> None:
    assert size_text(number) == size
    assert count_text(number) == count
