"""Machines whose clock is off, for real daemons.

Rule: where Debian's `faketime` is installed the real console script runs under its library, so that
C code sees the wrong time, too; clocks that only go forward are left alone, as they are on a
machine whose time of day is wrong. Elsewhere the shift is in Python alone. p2pd is linked
statically and sees the right time in both.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import psutil

from benchmarks.daemons import BIN

SHIFTED = Path(__file__).parent / "shifted_node.py"
SHARED = Path("/dev/shm")


def shifted(seconds: int) -> tuple[str, ...]:
    """The program of a daemon whose clock is so far ahead."""
    library = _library()
    if library is None:
        return (sys.executable, "-P", str(SHIFTED), str(seconds))
    off = (f"LD_PRELOAD={library}", f"FAKETIME={seconds:+d}s")
    forward = ("DONT_FAKE_MONOTONIC=1", "FAKETIME_DONT_FAKE_MONOTONIC=1")
    # `faketime` itself would stand between the test and the daemon that it signals.
    return ("env", *off, *forward, str(BIN / "demoloco-node"))


def sweep() -> None:
    """Remove what the library shared between processes that were killed."""
    for path in SHARED.glob("*faketime_*"):
        number = re.search(r"(\d+)$", path.name)
        if number is not None and not psutil.pid_exists(int(number[1])):
            path.unlink(missing_ok=True)


def _library() -> str | None:
    """What `faketime` preloads."""
    if shutil.which("faketime") is None:
        return None
    shown = subprocess.run(
        ["faketime", "-f", "+0s", "env"], capture_output=True, text=True, timeout=30
    ).stdout
    found = re.search(r"^LD_PRELOAD=(\S+)$", shown, re.MULTILINE)
    return found[1] if found is not None else None
