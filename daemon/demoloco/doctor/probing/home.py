"""Who holds the home, where its node listened last, and what a dead one left behind.

Rule: nothing in the home is changed.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from demoloco.control.socket import LOCK_NAME, SOCKET_NAME
from demoloco.doctor.words import Facts
from demoloco.store.records import unframed

_TCP_PORT = re.compile(r"/tcp/(\d+)")


def probe_home(home: Path) -> Facts:
    held = _is_held(home / "lock") or _is_held(home / LOCK_NAME)
    return {
        "home": str(home),
        "exists": home.is_dir(),
        "error": _error(home),
        "node_pid": _holder(home) if held else None,
        "stale_socket": (home / SOCKET_NAME).exists() and not held,
        "orphans": list(_orphans()),
    }


def last_addresses(home: Path) -> tuple[str, ...]:
    """Where the home's node listened when it was started last."""
    try:
        noted = unframed((home / "notes" / "listen").read_bytes())
        said = json.loads(noted) if noted else []
    except (OSError, ValueError):
        return ()
    return tuple(one for one in said if isinstance(one, str))


def last_port(home: Path) -> int | None:
    found = (_TCP_PORT.search(one) for one in last_addresses(home))
    return next((int(match[1]) for match in found if match), None)


def _error(home: Path) -> str:
    if home.exists() and not home.is_dir():
        return "it is no directory"
    if home.is_dir() and not os.access(home, os.R_OK | os.W_OK | os.X_OK):
        return "this user may not write there"
    return ""


def _is_held(lock: Path) -> bool:
    """Whether a process holds it; it is shared for a moment, so that it is not taken from one."""
    try:
        descriptor = os.open(lock, os.O_RDONLY)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(descriptor)
    return False


def _holder(home: Path) -> int:
    """The holder's process id; 0 if it has not written it yet."""
    with suppress(OSError, ValueError):
        return int((home / "lock").read_text().split()[0])
    return 0


def _orphans() -> Iterator[int]:
    """libp2p daemons of this user whose node is gone: their parent is the first process."""
    with suppress(OSError):
        if b"demoloco" in Path("/proc/1/cmdline").read_bytes():  # in a container it is the node
            return
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError, IndexError):
            name, _, rest = (folder / "stat").read_text().rpartition(") ")
            mine = folder.stat().st_uid == os.getuid()
            if mine and name.endswith("(p2pd") and rest.split()[1] == "1":
                yield int(folder.name)
