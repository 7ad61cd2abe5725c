"""`demoloco export`: the file is whole or not there, and the words say what came of it."""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from demoloco.control.exports import ExportResult, ExportWish
from demoloco.control.translate import to_export_reply
from demoloco.errors import RequestError
from demoloco_client import export, new_file, sdk
from demoloco_client.new_file import UnwritableError
from demoloco_client.sdk import NodeClient
from demoloco_proto.v1.control_pb2 import ExportProgress, ExportRequest
from demoloco_proto.v1.control_pb2 import ExportResult as Result
from tests.client.test_cli import demoloco, golden
from tests.client.test_render import printed
from tests.control.fake_node import MERGED, RunningNode, running_node


@pytest.fixture
def node(tmp_path: Path) -> Iterator[RunningNode]:
    with running_node(tmp_path / "home") as running:
        yield running


def said(result: ExportResult) -> Result:
    return to_export_reply(result).result


# -- the file --------------------------------------------------------------------------------------
def write(path: Path, data: bytes | Callable[[], bytes], *, force: bool = False) -> None:
    with new_file.new_file(path, force=force) as file:
        file.write(data if isinstance(data, bytes) else data())


def test_a_new_file_has_all_of_it_and_the_rights_of_the_caller(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        write(tmp_path / "model", b"all of it")
    finally:
        os.umask(before)
    assert (tmp_path / "model").read_bytes() == b"all of it"
    assert stat.S_IMODE((tmp_path / "model").stat().st_mode) == 0o640
    assert os.listdir(tmp_path) == ["model"]


def test_what_is_there_is_kept_unless_it_may_go(tmp_path: Path) -> None:
    path = tmp_path / "model"
    path.write_bytes(b"older")
    with pytest.raises(UnwritableError, match="is there already; choose another name, or say"):
        write(path, b"newer")
    assert path.read_bytes() == b"older"
    write(path, b"newer", force=True)
    assert path.read_bytes() == b"newer"


def test_what_came_there_meanwhile_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "model"

    def late() -> bytes:
        path.write_bytes(b"another's")
        return b"newer"

    with pytest.raises(UnwritableError, match="is there already"):
        write(path, late)
    assert path.read_bytes() == b"another's"
    assert os.listdir(tmp_path) == ["model"]


def test_a_file_system_without_links_will_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def link(*_: Any) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(new_file.os, "link", link)
    write(tmp_path / "model", b"all of it")
    assert (tmp_path / "model").read_bytes() == b"all of it"


@pytest.mark.parametrize("fault", [RuntimeError, OSError(28, "No space left on device")])
def test_what_failed_midway_leaves_nothing(tmp_path: Path, fault: Exception) -> None:
    wanted = UnwritableError if isinstance(fault, OSError) else RuntimeError

    def break_off() -> bytes:
        raise fault

    with pytest.raises(wanted):
        write(tmp_path / "model", break_off)
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize(
    ("name", "words"),
    [
        (".", "is a directory"),
        ("/", "is a directory"),
        ("no/model", "there is no directory"),
        ("x" * 300, "can't write"),
    ],
)
def test_a_place_that_will_not_do_is_told_at_once(tmp_path: Path, name: str, words: str) -> None:
    with pytest.raises(UnwritableError, match=words):
        write(tmp_path / name, b"")


@pytest.mark.parametrize("name", ["x" * 255, "é" * 127])
def test_a_name_may_be_as_long_as_the_file_system_allows(tmp_path: Path, name: str) -> None:
    write(tmp_path / name, b"all of it")
    assert os.listdir(tmp_path) == [name]


def test_a_device_is_not_replaced_by_force(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(UnwritableError, match="is a device or the like"):
        write(tmp_path / "pipe", b"", force=True)
    assert stat.S_ISFIFO((tmp_path / "pipe").stat().st_mode)


# -- the SDK ---------------------------------------------------------------------------------------
def test_the_file_is_what_the_node_sends(node: RunningNode, tmp_path: Path) -> None:
    heard: list[ExportProgress] = []
    with NodeClient(node.home) as client:
        request = ExportRequest(merge=True)
        result = client.export(tmp_path / "model", request, heard=heard.append)
    assert result == said(MERGED)
    assert (tmp_path / "model").read_bytes() == b"the end"
    assert [progress.doing for progress in heard] == ["fetching members' models", "writing model"]
    assert node.node.wishes == [ExportWish(merge=True)]


def test_a_file_that_does_not_come_whole_is_none(node: RunningNode, tmp_path: Path) -> None:
    node.node.steps = node.node.steps[:-1]
    with NodeClient(node.home) as client, pytest.raises(sdk.NodeGoneError, match="did not come"):
        client.export(tmp_path / "model")
    assert os.listdir(tmp_path) == ["home"]


def test_the_node_is_not_asked_for_a_file_that_cannot_be_written(
    node: RunningNode, tmp_path: Path
) -> None:
    with NodeClient(node.home) as client, pytest.raises(sdk.TargetError, match="is a directory"):
        client.export(tmp_path)
    assert node.node.wishes == []


def test_a_refusal_leaves_no_file(node: RunningNode, tmp_path: Path) -> None:
    node.node.refusal = RequestError("this node has no model yet")
    with NodeClient(node.home) as client, pytest.raises(sdk.RefusedError, match="no model yet"):
        client.export(tmp_path / "model")
    assert os.listdir(tmp_path) == ["home"]


# -- the command -----------------------------------------------------------------------------------
def test_export_tells_what_merging_gives_and_where_the_file_is(
    node: RunningNode, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    result = demoloco("export", "merged.pt", "--merge", "--home", node.home)
    assert result.exit_code == 0
    assert result.stdout == golden("export.txt", result.stdout)
    assert result.stderr == "left out KLMNOP: it is leaving\n"
    assert (tmp_path / "merged.pt").read_bytes() == b"the end"


def test_export_as_json_is_stable(
    node: RunningNode, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    node.node.steps = (replace(MERGED, merged_loss=None, file_bytes=0),)
    result = demoloco("export", "merged.pt", "--merge", "--json", "--home", node.home)
    found = json.loads(result.stdout)
    assert found.pop("file") == str(tmp_path / "merged.pt")
    assert found["merged_loss"] is None
    text = json.dumps(found, indent=2) + "\n"
    assert text == golden("export.json", text)
    assert result.stderr == ""


def test_without_merge_one_line_says_what_was_written() -> None:
    own = said(ExportResult(which="own", format="torch", run_id="", round=3, head="", file_bytes=5))
    words = printed(export.screen(own, Path("own.pt")))
    assert words == "wrote own.pt: the own model of round 3, 5 B, torch\n"
    assert export.remarks(own) == []


@pytest.mark.parametrize(
    ("change", "remark"),
    [
        ({"note": "the agreed one is the merged one"}, "note: the agreed one is the merged one"),
        ({"why_no_loss": "no held-out part"}, "not measured: no held-out part"),
        ({"members": MERGED.members[:1]}, "note: no other member's model came"),
        ({"merged_loss": 1.8}, "note: the merged model is worse than this node's own"),
        ({"merged_loss": 1.8, "note": "the agreed one is it"}, "note: the agreed one is it"),
    ],
)
def test_what_a_user_should_know_is_said(change: dict[str, Any], remark: str) -> None:
    lines = export.remarks(said(replace(MERGED, left_out=(), **change)))
    assert [line[: len(remark)] for line in lines] == [remark]


def test_words_of_peers_steer_no_terminal() -> None:
    bad = replace(MERGED, left_out=(replace(MERGED.left_out[0], why="a \x1b[2J b"),))
    (line,) = export.remarks(said(bad))
    assert "\x1b" in line  # as it came
    assert "\x1b" not in export.printable(line).plain


def test_progress_is_shown_only_of_what_takes_a_while(capsys: pytest.CaptureFixture[str]) -> None:
    ticker = export.Ticker()
    ticker.hear(ExportProgress(doing="fetching", done=1, of=3))
    assert capsys.readouterr().err == ""
    ticker._begin()  # what the timer does
    ticker.hear(ExportProgress(doing="fetching", done=1, of=3))
    ticker.hear(ExportProgress(doing="writing"))
    ticker.stop()
    assert capsys.readouterr().err == "fetching (1 of 3) …\nwriting …\n"


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["there.pt"], 2),
        (["no/model.pt"], 2),
        (["m.pt", "--merge", "--which", "own"], 2),
        (["m.pt", "--which", "theirs"], 2),
        (["m.pt", "--patience", "0"], 2),
        (["m.pt", "--node", "a", "--home", "b"], 2),
    ],
)
def test_a_mistake_ends_with_2_before_any_work(
    node: RunningNode, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: list[str], code: int
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "there.pt").touch()
    home = () if "--home" in words else ("--home", node.home)
    assert demoloco("export", *words, *home).exit_code == code
    assert node.node.wishes == []


def test_what_the_node_refuses_and_a_node_that_is_not_there_end_with_1(
    node: RunningNode, tmp_path: Path
) -> None:
    node.node.refusal = RequestError("another export is under way")
    refused = demoloco("export", tmp_path / "m.pt", "--home", node.home)
    assert (refused.exit_code, refused.stdout) == (1, "")
    assert refused.stderr == "demoloco: another export is under way\n"
    nobody = demoloco("export", tmp_path / "m.pt", "--home", tmp_path / "empty")
    assert nobody.exit_code == 1
    assert "no node is running here" in nobody.stderr
    assert not (tmp_path / "m.pt").exists()
