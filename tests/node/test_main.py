"""What the command's exit code and last words say."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from demoloco import main as module
from demoloco.errors import ConfigError, StoreError, WorkerError
from demoloco.main import DONE, FAILED, MISTAKE, main


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (ConfigError("the port is in use; choose another"), MISTAKE),
        (StoreError("no room"), FAILED),
        (WorkerError("the worker failed"), FAILED),
    ],
)
def test_an_error_ends_in_one_line_and_its_code(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    error: Exception,
    code: int,
) -> None:
    def fail(*args: object) -> int:
        raise error

    monkeypatch.setattr(module, "_run", fail)
    assert main(["--home", str(tmp_path)]) == code
    assert capsys.readouterr().err == f"demoloco-node: {error}\n"


def test_a_mistake_in_the_settings_is_found_before_anything_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(module, "_run", lambda *args: pytest.fail("it started"))
    assert main(["--home", str(tmp_path), "--set", "inner_steps=0"]) == MISTAKE
    assert "inner_steps" in capsys.readouterr().err


def test_a_limit_that_is_no_rate_is_told_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(module, "_run", lambda *args: pytest.fail("it started"))
    assert main(["--home", str(tmp_path), "--max-upload", "quick"]) == MISTAKE
    told = capsys.readouterr().err
    assert told.count("\n") == 1
    assert "max_upload = 'quick' is not a rate; write one such as 2mbit" in told


def test_flags_reach_the_node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[object, ...]] = []

    def run(settings: module.Settings, node: module.NodeConfig) -> int:
        run_config = settings.run_config()
        seen.append((node.home, node.listen, node.stop_after, run_config.inner_steps))
        return DONE

    monkeypatch.setattr(module, "_run", run)
    flags = ["--listen", "/ip4/127.0.0.1/tcp/0", "--stop-after", "3", "--set", "inner_steps=7"]
    assert main(["--home", str(tmp_path), *flags]) == DONE
    assert seen == [(tmp_path, ("/ip4/127.0.0.1/tcp/0",), 3, 7)]


SLOW_IMPORT = """
import sys
from demoloco.main import main

class Slow:
    def find_spec(self, name, *rest):
        if name == "demoloco.node.app":
            print("importing", flush=True)
            sys.stdin.read()

sys.meta_path.insert(0, Slow())
sys.exit(main(sys.argv[1:]))
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_node_that_is_to_stop_before_it_has_begun_ends_in_order(
    tmp_path: Path, number: int
) -> None:
    node = subprocess.Popen(
        [sys.executable, "-c", SLOW_IMPORT, "--home", str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert node.stdout is not None
    assert node.stdout.readline() == "importing\n"
    node.send_signal(number)
    _, words = node.communicate(timeout=30)
    assert (node.returncode, words) == (0, "")


FIRST_IMPORT = """
import os, sys
from demoloco.main import main

class Last:
    def find_spec(self, name, *rest):
        if name == "demoloco.node.app":
            print(os.environ.get("GRPC_VERBOSITY"), os.environ.get("OMP_WAIT_POLICY"))
            sys.exit(0)

sys.meta_path.insert(0, Last())
main(sys.argv[1:])
"""


def test_what_libraries_read_at_import_is_set_before(tmp_path: Path) -> None:
    """Else gRPC writes a line to the log for each connection that a peer cuts."""
    environ = {
        k: v for k, v in os.environ.items() if k not in ("GRPC_VERBOSITY", "OMP_WAIT_POLICY")
    }
    done = subprocess.run(
        [sys.executable, "-c", FIRST_IMPORT, "--home", str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=30,
        env=environ,
    )
    assert done.stdout == "NONE PASSIVE\n"
