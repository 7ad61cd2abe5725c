"""All lines have one shape, whoever writes them, and nobody's text can break it."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Iterator

import pytest

from demoloco.node.feed import Feed
from demoloco.node.logs import TALKATIVE, configure_logging, readable
from tests.control.fake_node import ME


@pytest.fixture(autouse=True)
def _logging_as_it_was() -> Iterator[None]:
    root = logging.getLogger()
    before = (list(root.handlers), root.level)
    yield
    root.handlers[:], level = before
    root.setLevel(level)
    for name in TALKATIVE:
        logging.getLogger(name).setLevel(logging.NOTSET)
    logging.captureWarnings(False)


def test_text_is_time_event_and_facts(capsys: pytest.CaptureFixture[str]) -> None:
    configure_logging()
    Feed().line("round committed", round=3, loss=2.123456, peer=ME, why="waiting for 2 of 3")
    line = capsys.readouterr().err
    assert re.fullmatch(
        r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ round committed +"
        r'round=3 loss=2\.123 peer=ABCDEF why="waiting for 2 of 3"\n',
        line,
    )


def test_json_is_one_object_a_line_with_whole_ids(capsys: pytest.CaptureFixture[str]) -> None:
    configure_logging(format="json")
    Feed().warn("packet dropped", peer=ME, digest=b"\x01" * 32, loss=float("nan"), members=(1, 2))
    said = json.loads(capsys.readouterr().err)
    assert said.pop("time").endswith("Z")
    assert said == {
        "level": "warning",
        "logger": "demoloco",
        "event": "packet dropped",
        "peer": ME,
        "digest": "01" * 32,
        "loss": None,
        "members": [1, 2],
    }


def test_a_library_that_logs_by_itself_is_brought_into_line(
    capsys: pytest.CaptureFixture[str],
) -> None:
    library = logging.getLogger("hivemind")
    library.addHandler(logging.StreamHandler())
    library.propagate = False
    configure_logging()
    logging.getLogger("hivemind.p2p").info("chatter")
    logging.getLogger("hivemind.p2p").warning("peer %s is gone", ME)
    err = capsys.readouterr().err
    assert err.count("\n") == 1
    assert "warning [hivemind.p2p] peer" in err


def test_at_level_debug_libraries_are_heard(capsys: pytest.CaptureFixture[str]) -> None:
    configure_logging(level="debug")
    logging.getLogger("grpc").info("chatter")
    assert "[grpc] chatter" in capsys.readouterr().err


def test_configuring_twice_writes_each_line_once(capsys: pytest.CaptureFixture[str]) -> None:
    configure_logging()
    configure_logging()
    Feed().line("joined")
    assert capsys.readouterr().err.count("joined") == 1


@pytest.mark.parametrize("format", ["text", "json"])
def test_foreign_text_stays_on_its_line(capsys: pytest.CaptureFixture[str], format: str) -> None:
    configure_logging(format=format)
    Feed().line("peer said", version="1\n2026 forged line", name="\x1b[2J")
    logging.getLogger("other").warning("a\nb\x1b[2J")
    err = capsys.readouterr().err
    assert err.count("\n") == 2
    assert "\x1b" not in err


def test_an_exception_comes_with_its_traceback(capsys: pytest.CaptureFixture[str]) -> None:
    configure_logging()
    try:
        raise ZeroDivisionError("boom")
    except ZeroDivisionError:
        logging.getLogger("demoloco.x").exception("a call failed")
    err = capsys.readouterr().err
    assert "error a call failed\nTraceback" in err
    assert err.endswith("ZeroDivisionError: boom\n")


def test_an_unknown_format_is_refused() -> None:
    with pytest.raises(ValueError, match="format is one of"):
        configure_logging(format="xml")


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (None, "-"),
        (b"\xab" * 32, "abababab"),
        (0.000123456, "0.0001235"),
        (1234567, "1234567"),
        ("", '""'),
        ('say "x"', '"say \\"x\\""'),
        (("a", 1), "a,1"),
        ((), "-"),
        (ME, "ABCDEF"),
        (f"/ip4/127.0.0.1/tcp/1/p2p/{ME}", f"/ip4/127.0.0.1/tcp/1/p2p/{ME}"),
    ],
)
def test_facts_are_short_and_unmistakable(value: object, words: str) -> None:
    assert readable(value) == words
