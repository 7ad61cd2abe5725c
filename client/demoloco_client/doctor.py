"""`demoloco doctor`: the node's package examines this machine, this shows what it finds.

Rule: the examination is a process of its own, so nothing heavy is imported here; its lines of JSON
are shown as they come. Exit codes: 0 nothing failed, 1 something did, 2 a mistake, 130 interrupted.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.text import Text

EXAMINE = (sys.executable, "-m", "demoloco.doctor")
FAILED, INTERRUPTED = 1, 130
END_SECONDS = 25.0
VERSION = 1
STYLES = {"ok": "green", "warn": "yellow", "fail": "bold red"}
NAME_WIDTH = 9

Finding = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Wish:
    """What to examine."""

    home: Path
    listen: tuple[str, ...] = ()
    peer: str = ""

    def words(self) -> list[str]:
        """As arguments of the examination."""
        words = ["--home", str(self.home)]
        words += [f"--listen={address}" for address in self.listen]
        return words + ([f"--peer={self.peer}"] if self.peer else [])


def run(wish: Wish, *, json_wanted: bool = False, program: Sequence[str] = EXAMINE) -> int:
    """Examine and show; the exit code."""
    if program is EXAMINE and find_spec("demoloco") is None:
        print(
            "demoloco: the node is not installed beside this command, and the doctor is a part of"
            " it; `pip install demoloco-node`",
            file=sys.stderr,
        )
        return FAILED
    examination = _Examination([*program, *wish.words()])
    found: list[Finding] = []
    try:
        for finding in examination.findings():
            found.append(finding)
            if not json_wanted:
                show(finding)
        code = examination.code()
    except KeyboardInterrupt:
        examination.end()
        return INTERRUPTED
    if code in (0, FAILED) and found:
        _conclude(found, wish, json_wanted)
    elif code == FAILED:
        print("demoloco: the examination ended before it found anything", file=sys.stderr)
    return code


def show(finding: Finding, console: Console | None = None) -> None:
    """One line, and under it what to do."""
    console = console or Console(highlight=False, soft_wrap=True)
    level = str(finding["level"])
    line = Text.assemble(
        (f"{level:<4}", STYLES.get(level, "")),
        f"  {str(finding['name']).replace('_', ' '):<{NAME_WIDTH}}  {finding['summary']}",
    )
    console.print(line)
    if finding["fix"]:
        console.print(Text(f"{'':<{NAME_WIDTH + 8}}fix: {finding['fix']}", style="dim"))


def as_json(found: Sequence[Finding]) -> dict[str, object]:
    """`version` of this shape; `ok`: nothing failed; `checks`, each with name, level (ok | warn |
    fail), summary, fix ("" = none needed) and the facts, by what found them."""
    ok = all(finding["level"] != "fail" for finding in found)
    return {"version": VERSION, "ok": ok, "checks": list(found)}


def conclusion(found: Sequence[Finding], *, with_peer: bool) -> str:
    """The last line for people."""
    counts = {level: sum(one["level"] == level for one in found) for level in STYLES}
    said = f"{len(found)} checks: {counts['ok']} ok, {counts['warn']} warn, {counts['fail']} fail"
    hint = "; --peer ADDR tries the way to a peer and back, and measures it"
    return said if with_peer else said + hint


def _conclude(found: list[Finding], wish: Wish, json_wanted: bool) -> None:
    if json_wanted:
        print(json.dumps(as_json(found), indent=2), flush=True)
    else:
        print(conclusion(found, with_peer=bool(wish.peer)), flush=True)


class _Examination:
    """The process that examines, in a group of its own: the terminal's Ctrl-C is for this one."""

    def __init__(self, command: Sequence[str]) -> None:
        leash = [sys.executable, "-m", "demoloco_client.leash", str(os.getpid())]
        self._process = subprocess.Popen(
            [*leash, *command],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            text=True,
            process_group=0,
        )

    def findings(self) -> Iterator[Finding]:
        assert self._process.stdout is not None
        with self._process.stdout as lines:
            for line in lines:
                yield json.loads(line)

    def code(self) -> int:
        code = self._process.wait()
        return code if code >= 0 else FAILED

    def end(self) -> None:
        """Let it end what it has started."""
        try:
            self._process.send_signal(signal.SIGTERM)
            self._process.wait(END_SECONDS)
        except (subprocess.TimeoutExpired, KeyboardInterrupt):
            self._process.kill()
            self._process.wait()
