"""What people see of a status: in full, in part, and from a hostile peer."""

from __future__ import annotations

import dataclasses
import io
from typing import Any

import pytest
from rich.console import Console, RenderableType

from demoloco.control.translate import to_reply
from demoloco.node.feed import MemberStatus, Status
from demoloco_client import render
from tests.client.test_cli import golden
from tests.control.fake_node import FULL


def printed(what: RenderableType, **options: Any) -> str:
    file = io.StringIO()
    Console(file=file, width=80, highlight=False, **options).print(what, crop=False)
    return "".join(line.rstrip() + "\n" for line in file.getvalue().splitlines())


def test_the_status_screen_is_as_it_was() -> None:
    reply = to_reply(
        dataclasses.replace(FULL, uptime_seconds=273_900.0, why="waiting for 2 of 3 packets")
    )
    text = printed(render.status_screen(reply))
    assert text == golden("status.txt", text)


def test_a_node_that_knows_nothing_yet_has_a_screen_too() -> None:
    text = printed(render.status_screen(to_reply(Status(phase="joining"))))
    assert text == golden("status_joining.txt", text)


def test_steps_of_which_nobody_knows_how_many_there_are_are_counted_alone() -> None:
    reply = to_reply(dataclasses.replace(FULL, inner_steps=0))
    assert "inner step 31   " in printed(render.status_screen(reply))
    assert " step=31 " in render.status_line(reply)
    assert " step=31/50 " in render.status_line(to_reply(FULL))


def test_a_peers_words_steer_no_terminal() -> None:
    peer = MemberStatus(peer_id="\x1b[2Jevil", phase="[red]x\n\x9b2J")
    text = printed(render.status_screen(to_reply(Status(members=(peer,)))), force_terminal=False)
    assert "\x1b" not in text
    assert "\x9b" not in text
    assert "[red]x" in text


def test_no_colour_is_written_where_it_is_not_wanted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    text = printed(render.status_screen(to_reply(FULL)), force_terminal=True)
    assert "\x1b[3" not in text


@pytest.mark.parametrize(
    ("size", "words"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (1000, "1 kB"),
        (41_234, "41.2 kB"),
        (99_960, "100 kB"),
        (999_499, "999 kB"),
        (999_500, "1 MB"),
        (3_211_264, "3.21 MB"),
        (5_000_000_000_000, "5 TB"),
    ],
)
def test_sizes_have_three_digits(size: int, words: str) -> None:
    assert render.size(size) == words


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (0.4, "0 s"),
        (8, "8 s"),
        (69, "1 min 09 s"),
        (7500, "2 h 05 min"),
        (273_900, "3 d 04 h"),
    ],
)
def test_durations_have_two_units(seconds: float, words: str) -> None:
    assert render.duration(seconds) == words
