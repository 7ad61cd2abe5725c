"""`demoloco demo` with stub nodes: real processes, real signals, nothing left behind."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from demoloco_client.local_node import as_typed

RUN_DEMO = Path(__file__).with_name("run_demo.py")
ROOT = Path(__file__).parents[2]
PATIENCE_SECONDS = 60


class RunningDemo:
    """A demo in a process group of its own, as a shell starts it."""

    def __init__(self, words: list[str], environ: dict[str, str]) -> None:
        self.process = subprocess.Popen(
            [sys.executable, str(RUN_DEMO), *words],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=os.environ | {"PYTHONPATH": str(ROOT)} | environ,
            process_group=0,
        )
        self.said = ""

    def until(self, pattern: str) -> None:
        """Read on until a line matches."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.said += line
            if re.search(pattern, line):
                return
        raise AssertionError(f"never said {pattern!r}:\n{self.said}")

    def press_ctrl_c(self) -> None:
        """What a terminal does: SIGINT to the whole foreground group."""
        os.killpg(self.process.pid, signal.SIGINT)

    def end(self, code: int) -> None:
        """Read the rest and wait; it must end with this code."""
        rest, _ = self.process.communicate(timeout=PATIENCE_SECONDS)
        self.said += rest
        assert self.process.returncode == code, self.said

    def children(self) -> list[psutil.Process]:
        return psutil.Process(self.process.pid).children(recursive=True)


@contextmanager
def demo(*words: str | Path, **environ: str) -> Iterator[RunningDemo]:
    running = RunningDemo([str(word) for word in words], environ)
    children: list[psutil.Process] = []
    try:
        running.until("starting node1")
        yield running
    finally:
        if running.process.poll() is None:
            children = running.children()
            running.process.kill()
            running.process.communicate()
        for child in children:
            if child.is_running():
                child.kill()


def test_it_shows_every_round_and_that_the_states_are_equal(tmp_path: Path) -> None:
    with demo(tmp_path, "6") as running:
        running.end(0)
    rounds = re.findall(r"^ +\d+:\d\d +(\d+) .*$", running.said, re.MULTILINE)
    assert rounds == ["1", "2", "3", "4", "5", "6"]
    last = next(line for line in running.said.splitlines() if re.match(r" +\d+:\d\d +6 ", line))
    assert last.split()[2:] == ["4.940", "60.0", "8", "kB", "3.2", "MB", "1", "yes", "00000006"]
    assert "held-out loss 5.500 → 4.500" in running.said
    assert "400 × less than fp32" in running.said
    assert "same state on all nodes after round 6: 00000006" in running.said


def test_it_says_how_to_join_and_how_to_look(tmp_path: Path) -> None:
    with demo(tmp_path, "3") as running:
        running.end(0)
    address = "/ip4/127.0.0.1/tcp/1/p2p/peer-node1"
    assert f"demoloco-node --home {tmp_path}/node3 --peers {address}\n" in running.said
    assert f"demoloco status --home {tmp_path}/node1\n" in running.said


def test_only_the_first_node_is_told_what_to_train(tmp_path: Path) -> None:
    with demo(tmp_path, "3") as running:
        running.end(0)
    threads = max(1, len(os.sched_getaffinity(0)) // 2)
    first, second = ((tmp_path / n / "node.log").read_text() for n in ("node1", "node2"))
    assert first.splitlines()[0] == f"stub started  threads={threads} inner_steps=5"
    assert second.splitlines()[0].endswith(f"p2p/peer-node1 threads={threads}")


def test_ctrl_c_lets_the_nodes_leave_one_after_the_other(tmp_path: Path) -> None:
    with demo(tmp_path) as running:
        running.until(" yes ")
        children = running.children()
        running.press_ctrl_c()
        running.end(0)
        assert not any(child.is_running() for child in children)
    assert running.said.index("node2 has left") < running.said.index("node1 leaves")
    assert "stub left" in (tmp_path / "node1" / "node.log").read_text()
    assert "Traceback" not in running.said


def test_a_second_ctrl_c_ends_nodes_that_would_stay(tmp_path: Path) -> None:
    with demo(tmp_path, STUB_STAY="1") as running:
        running.until(" yes ")
        children = running.children()
        running.press_ctrl_c()
        running.until("node2 leaves")
        running.press_ctrl_c()
        running.end(1)
        assert not any(child.is_running() for child in children)
    assert "node2 was stopped before it had left" in running.said


def test_ctrl_c_before_anything_is_up_ends_all(tmp_path: Path) -> None:
    with demo(tmp_path) as running:
        children = running.children()
        running.press_ctrl_c()
        running.end(0)
        assert not any(child.is_running() for child in children)


def test_the_end_of_a_dead_nodes_log_is_shown(tmp_path: Path) -> None:
    with demo(tmp_path, STUB_DIE_AT="3") as running:
        running.end(1)
    assert "node2 died with exit code 7. The end of " in running.said
    assert "  | stub dies of a cause\n" in running.said
    assert "node1 has left" in running.said


def test_a_node_that_does_not_start_is_explained(tmp_path: Path) -> None:
    (tmp_path / "node1").mkdir()
    (tmp_path / "node1" / "control.lock").mkdir()
    with demo(tmp_path) as running:
        running.end(1)
    assert "node1 died with exit code 1" in running.said
    assert "choose another home with --home DIR" in running.said


def test_states_that_differ_at_the_end_are_a_failure(tmp_path: Path) -> None:
    with demo(tmp_path, "5", STUB_DIFFER_AT="4") as running:
        running.end(1)
    assert "NO, they differ" in running.said
    assert "the states differ after round 5" in running.said


def test_nodes_do_not_outlive_a_killed_demo(tmp_path: Path) -> None:
    with demo(tmp_path) as running:
        running.until(" yes ")
        children = running.children()
        running.process.kill()
        running.process.communicate()
        _, alive = psutil.wait_procs(children, timeout=PATIENCE_SECONDS)
    assert len(children) == 2
    assert alive == []


def test_a_home_too_long_is_refused_before_anything_starts(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, str(RUN_DEMO), str(tmp_path / ("h" * 120))],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert "choose a shorter home" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_kept_home_stays(tmp_path: Path) -> None:
    for words, left in ((["fresh", "2"], 0), (["fresh", "2", "keep"], 1)):
        with demo(*words, XDG_STATE_HOME=str(tmp_path)) as running:
            running.end(0)
        assert len(list((tmp_path / "demoloco").iterdir())) == left
        assert ("as --keep was not given" in running.said) == (left == 0)


def test_a_home_is_used_again(tmp_path: Path) -> None:
    for _ in range(2):
        with demo(tmp_path, "2") as running:
            running.end(0)
    assert (tmp_path / "node1" / "node.log").read_text().count("stub started") == 2


def test_printed_commands_are_found_by_the_shell(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name in ("python", "demoloco"):
        (tmp_path / name).touch(mode=0o755)
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    monkeypatch.setenv("PATH", str(tmp_path))
    assert as_typed("demoloco") == "demoloco"
    monkeypatch.setenv("PATH", "")
    assert as_typed("demoloco") == str(tmp_path / "demoloco")
    monkeypatch.chdir(tmp_path.parent)
    assert as_typed("demoloco") == f"{tmp_path.name}/demoloco"
