"""`demoloco doctor`: what it shows of the examination, and with which code it ends."""

from __future__ import annotations

import io
import json
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from rich.console import Console

from demoloco.doctor.__main__ import as_json as line_of
from demoloco.doctor.checks import OWN_CHECKS, PEER_CHECKS
from demoloco.doctor.examination import Finding
from demoloco.doctor.words import Verdict
from demoloco_client import doctor
from demoloco_client.doctor import Wish
from tests.client.test_cli import demoloco, golden
from tests.doctor import test_judging as facts
from tests.doctor.test_examination import GOOD, SWARM_FACTS

KNOWN = {
    **GOOD,
    **SWARM_FACTS,
    "tcp": facts.TCP | {"congestion": "cubic"},
    "disk": facts.DISK | {"hard_links": False, "filesystem": "vfat"},
    "nat": facts.nat("192.168.1.5"),
}


def found() -> list[doctor.Finding]:
    """All checks, of facts that never change."""
    findings = []
    for check in OWN_CHECKS + PEER_CHECKS:
        wanted = (*check.needs, *check.likes)
        verdict: Verdict = check.judge(*(KNOWN[name] for name in wanted))
        told = {name: KNOWN[name] for name in wanted}
        findings.append(json.loads(json.dumps(line_of(Finding(check.name, verdict, told)))))
    return findings


def examination(lines: Sequence[doctor.Finding], code: int) -> list[str]:
    """A program that finds these."""
    text = "\n".join(map(json.dumps, lines))
    return [sys.executable, "-c", f"import sys; print({text!r}); sys.exit({code})"]


def test_what_is_shown_is_stable() -> None:
    shown = io.StringIO()
    console = Console(file=shown, width=80, highlight=False, soft_wrap=True)
    for finding in found():
        doctor.show(finding, console)
    shown.write(doctor.conclusion(found(), with_peer=True) + "\n")
    assert shown.getvalue() == golden("doctor.txt", shown.getvalue())


def test_the_json_is_stable(capsys: pytest.CaptureFixture[str]) -> None:
    code = doctor.run(
        Wish(home=Path("/h"), peer="p"), json_wanted=True, program=examination(found(), 1)
    )
    said = capsys.readouterr()
    assert code == 1
    assert said.out == golden("doctor.json", said.out)
    assert json.loads(said.out)["ok"] is False


def test_nothing_failed_is_0_and_names_what_else_can_be_tried(
    capsys: pytest.CaptureFixture[str],
) -> None:
    lines = [one for one in found() if one["level"] != "fail"]
    assert doctor.run(Wish(home=Path("/h")), program=examination(lines, 0)) == 0
    said = capsys.readouterr().out.splitlines()
    assert said[-1].startswith("12 checks: 10 ok, 2 warn, 0 fail; --peer ADDR tries")


def test_an_examination_that_dies_is_a_failure(capsys: pytest.CaptureFixture[str]) -> None:
    dies = [sys.executable, "-c", "import os; os.kill(os.getpid(), 9)"]
    assert doctor.run(Wish(home=Path("/h")), program=dies) == 1
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err == "demoloco: the examination ended before it found anything\n"


def test_without_the_nodes_package_it_says_so(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(doctor, "find_spec", lambda name: None)
    assert doctor.run(Wish(home=Path("/h"))) == 1
    assert "the node is not installed beside this command" in capsys.readouterr().err


def test_what_was_asked_for_reaches_the_examination() -> None:
    wish = Wish(home=Path("/h"), listen=("/ip4/0.0.0.0/tcp/1", "-x"), peer="-y")
    words = ["--home", "/h", "--listen=/ip4/0.0.0.0/tcp/1", "--listen=-x", "--peer=-y"]
    assert wish.words() == words


def test_home_and_node_are_not_given_both(tmp_path: Path) -> None:
    assert demoloco("doctor", "--home", tmp_path, "--node", "a").exit_code == 2


INTERRUPTED = '''
import signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)  # in the background it is ignored
from pathlib import Path
from demoloco_client.doctor import Wish, run
slow = """
import json, signal, sys, time
signal.signal(15, lambda *_: (print("ended", file=sys.stderr), sys.exit(130)))
print(json.dumps({"name": "a", "level": "ok", "summary": "up", "fix": ""}), flush=True)
time.sleep(600)
"""
sys.exit(run(Wish(home=Path("/h")), program=[sys.executable, "-c", slow]))
'''


def test_ctrl_c_lets_the_examination_end() -> None:
    command = [sys.executable, "-u", "-c", INTERRUPTED]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert "up" in process.stdout.readline()
        process.send_signal(signal.SIGINT)
        _, complaints = process.communicate(timeout=30)
    assert process.returncode == 130
    assert "Traceback" not in complaints
    assert "ended" in complaints
