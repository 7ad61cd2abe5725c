"""The worker's process: reads commands from the node, trains, tells what happened.

Started as `python -m demoloco.worker.child <descriptor> <node's pid>`. It ends with the node,
however the node ends: the kernel kills it (Linux), and its side of the connection reads end-of-file
(everywhere). A terminal's Ctrl-C and a service manager's SIGTERM reach it too; both are the node's
to answer, so it ignores them.
"""

from __future__ import annotations

import ctypes
import faulthandler
import os
import queue
import signal
import sys
import threading
from multiprocessing.connection import Connection

from demoloco.worker.port import Command, WorkerEvent

_PR_SET_PDEATHSIG = 1
Inbox = queue.SimpleQueue[Command]


def main(descriptor: int, node_pid: int) -> int:
    """Serve the node until it says Stop or something fails; the exit code."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    _die_with(node_pid)
    # The node's standard output is its own; what a task prints goes where the log goes.
    os.dup2(2, 1)
    faulthandler.enable()
    connection = Connection(descriptor)
    inbox: Inbox = queue.SimpleQueue()
    threading.Thread(
        target=_receive, args=(connection, inbox), name="commands", daemon=True
    ).start()
    # Read once, when torch loads: threads that spin while they wait starve other processes.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    from demoloco.worker.loop import serve

    def emit(event: WorkerEvent) -> None:
        connection.send(event)

    return 0 if serve(inbox, emit) else 1


def _receive(connection: Connection, inbox: Inbox) -> None:
    try:
        while True:
            inbox.put(connection.recv())
    except (EOFError, OSError):
        os._exit(1)  # the node is gone; nobody is left to tell


def _die_with(node_pid: int) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != node_pid:  # it went before we asked
        os._exit(1)


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), int(sys.argv[2])))
