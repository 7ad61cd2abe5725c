"""The `demoloco` command: what it prints where, and with which code it ends."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import IO

import pytest
from typer.testing import CliRunner, Result

from demoloco import settings
from demoloco.control import socket as control_socket
from demoloco_client import paths
from demoloco_client.cli import app
from tests.client.stub_process import stub_node
from tests.control.fake_node import RunningNode, running_node

HERE = Path(__file__).parent


@pytest.fixture
def node(tmp_path: Path) -> Iterator[RunningNode]:
    with running_node(tmp_path) as running:
        yield running


def demoloco(*words: str | Path) -> Result:
    return CliRunner().invoke(app, [str(word) for word in words])


def golden(name: str, text: str) -> str:
    """The text as it was last time; REWRITE=1 takes the new one, for you to read the diff."""
    path = HERE / "golden" / name
    if os.environ.get("REWRITE"):
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    return path.read_text()


def test_status_as_json_is_stable(node: RunningNode) -> None:
    result = demoloco("status", "--json", "--home", node.home)
    assert result.exit_code == 0
    assert result.stdout == golden("status.json", result.stdout)
    assert result.stderr == ""


def test_what_is_not_known_is_null_in_json(node: RunningNode) -> None:
    node.update(loss=None, eval_loss=None, eval_round=None, eval_loss_first=float("nan"))
    said = json.loads(demoloco("status", "--json", "--home", node.home).stdout)
    assert [said[key] for key in ("loss", "eval_loss", "eval_round", "eval_loss_first")] == [
        None
    ] * 4


def test_status_without_a_node_says_so_and_ends_with_3(tmp_path: Path) -> None:
    result = demoloco("status", "--home", tmp_path)
    assert result.exit_code == 3
    assert result.stdout == ""
    assert "no node is running here" in result.stderr
    assert "demoloco demo" in result.stderr


@pytest.mark.parametrize("verb", ["watch", "leave"])
def test_other_verbs_without_a_node_end_with_1(tmp_path: Path, verb: str) -> None:
    result = demoloco(verb, "--home", tmp_path)
    assert result.exit_code == 1
    assert "no node is running here" in result.stderr


def test_a_home_too_long_is_an_error_and_no_traceback(tmp_path: Path) -> None:
    result = demoloco("status", "--home", tmp_path / ("h" * 120))
    assert result.exit_code == 1
    assert "choose a shorter home" in result.stderr
    assert "Traceback" not in result.output


@pytest.mark.parametrize(
    "words",
    [
        ("status", "--node", "../x"),
        ("status", "--node", "a", "--home", "b"),
        ("watch", "--interval", "0"),
        ("demo", "--nodes", "0"),
        ("fly",),
    ],
)
def test_wrong_usage_ends_with_2(words: tuple[str, ...]) -> None:
    assert demoloco(*words).exit_code == 2


def test_leave_is_asked_for(node: RunningNode) -> None:
    result = demoloco("leave", "--now", "--home", node.home)
    assert result.exit_code == 0
    assert node.node.leaves == [True]
    assert result.stdout == ""


def watch(node: RunningNode, *words: str) -> tuple[subprocess.Popen[str], IO[str]]:
    """`demoloco watch` in a pipe, and what it writes."""
    command = [sys.executable, "-m", "demoloco_client.cli", "watch", "--home", str(node.home)]
    pipe = subprocess.PIPE
    process = subprocess.Popen([*command, *words], stdout=pipe, stderr=pipe, text=True)
    assert process.stdout is not None
    return process, process.stdout


def test_watch_as_json_is_an_object_a_line_until_the_node_leaves(node: RunningNode) -> None:
    process, lines = watch(node, "--json")
    first = json.loads(lines.readline())
    node.update(phase="leaving")
    node.stop()
    rest, err = process.communicate(timeout=30)
    assert first["round"] == 12
    assert json.loads(rest.splitlines()[-1])["phase"] == "leaving"
    assert err == "the node has left\n"
    assert process.returncode == 0


def test_watch_in_a_pipe_is_a_line_a_status_without_colour(node: RunningNode) -> None:
    process, lines = watch(node)
    line = lines.readline()
    process.terminate()
    process.communicate(timeout=30)
    assert "round=12 phase='training' step=31/50 loss=2.125 eval_loss=2.250" in line
    assert "\x1b" not in line


@pytest.fixture
def _ctrl_c_works() -> Iterator[None]:
    """A child inherits that SIGINT is ignored, as it is for what a shell runs in the background."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("_ctrl_c_works")
def test_ctrl_c_ends_watch_in_peace(node: RunningNode) -> None:
    process, lines = watch(node)
    lines.readline()
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=30)
    assert process.returncode == 0
    assert err == ""


def test_leave_can_wait_until_the_node_is_gone(tmp_path: Path) -> None:
    with stub_node(tmp_path, STUB_LEAVE_SECONDS="0.3") as process:
        result = demoloco("leave", "--wait", "--home", tmp_path)
        assert not (tmp_path / "control.sock").exists()
        assert process.wait(timeout=30) == 0
    assert result.exit_code == 0
    assert "the node is gone" in result.stderr


def test_a_named_node_lives_beside_the_default_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    with running_node(paths.home_of("second")):
        assert demoloco("status", "--node", "second").exit_code == 0
        assert demoloco("status").exit_code == 3


def test_the_home_variable_is_obeyed(node: RunningNode, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DEMOLOCO_HOME", str(node.home))
    assert demoloco("status").exit_code == 0


@pytest.mark.parametrize("environ", [{}, {"DEMOLOCO_HOME": "/srv/node"}])
def test_node_and_client_agree_on_the_home(
    environ: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    assert settings.load({}, environ).node["home"] == paths.default_home()


def test_node_and_client_agree_on_the_socket(tmp_path: Path) -> None:
    assert control_socket.socket_path(tmp_path) == paths.socket_of(tmp_path)


def test_the_version_is_that_of_the_package() -> None:
    result = demoloco("--version")
    assert result.exit_code == 0
    assert result.stdout.startswith("demoloco ")


def modules_after(code: str) -> set[str]:
    report = "import sys; print(*sys.modules, file=sys.stderr)"
    done = subprocess.run(
        [
            sys.executable,
            "-c",
            f"import contextlib\nwith contextlib.suppress(SystemExit): {code}\n{report}",
        ],
        capture_output=True,
        text=True,
        check=True,
    )
    return {name.split(".")[0] for name in done.stderr.split()}


def test_help_is_answered_without_grpc_or_anything_heavy() -> None:
    loaded = modules_after(
        "import sys; sys.argv = ['demoloco', '--help']; import demoloco_client.cli as c; c.main()"
    )
    assert not loaded & {"grpc", "google", "torch", "hivemind", "numpy", "demoloco"}


def test_the_client_never_loads_torch_or_the_daemon() -> None:
    loaded = modules_after("import demoloco_client.cli, demoloco_client.sdk, demoloco_client.demo")
    assert not loaded & {"torch", "hivemind", "numpy", "demoloco", "structlog"}
