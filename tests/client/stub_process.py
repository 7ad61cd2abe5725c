"""The stub node as a process of its own, up when the context is entered."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

STUB = Path(__file__).with_name("stub_node.py")


@contextmanager
def stub_node(home: Path, **environ: str) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [sys.executable, str(STUB), "--home", str(home), "--listen", "x", "--log-format", "text"],
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | environ,
    )
    assert process.stdout is not None
    with process.stdout:
        try:
            assert process.stdout.readline().startswith("stub started")
            yield process
        finally:
            process.kill()
            process.wait()
