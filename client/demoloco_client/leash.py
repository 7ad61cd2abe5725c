"""Run a program that does not outlive its parent: `-m demoloco_client.leash PARENT program …`.

Rule: no imports beyond what this takes; it becomes the program at once. On Linux the kernel sends
it SIGTERM when the parent dies, however that comes; elsewhere only an orderly parent ends it.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1


def main(argv: list[str]) -> None:
    """Tie this process to its parent, then become the program."""
    parent, program = int(argv[0]), argv[1:]
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
        if os.getppid() != parent:  # it died before the kernel knew
            sys.exit(1)
    os.execvp(program[0], program)


if __name__ == "__main__":
    main(sys.argv[1:])
