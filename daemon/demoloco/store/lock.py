"""One node per home: a lock that the kernel drops with the process that holds it.

Rule: the lock decides, the text inside only tells people who holds it; so no crash leaves a home
locked.
"""

from __future__ import annotations

import fcntl
import os
from contextlib import suppress
from pathlib import Path

from demoloco.errors import ConfigError
from demoloco.store.files import unusable


class HomeLock:
    """A home held by this process until `release`."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor: int | None = descriptor

    def release(self) -> None:
        """Let another process have the home; a second call does nothing."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


def lock_home(home: Path, version: str) -> HomeLock:
    """Hold the home for this process, and write its id and version into `home/lock`.

    Raises: ConfigError if another process holds it, or nobody may.
    """
    try:
        descriptor = os.open(home / "lock", os.O_RDWR | os.O_CREAT, 0o600)
    except OSError as error:
        raise unusable(home, error) from error
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        holder = _holder(descriptor)
        os.close(descriptor)
        raise ConfigError(
            f"the home {home} is in use by {holder}; stop that node or choose another --home"
        ) from error
    except OSError as error:
        os.close(descriptor)
        raise ConfigError(
            f"cannot lock the home {home} ({error.strerror}); choose a --home on a local disk"
        ) from error
    with suppress(OSError):  # a node must start on a full disk, to prune it
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"{os.getpid()} {version}\n".encode(), 0)
    return HomeLock(descriptor)


def _holder(descriptor: int) -> str:
    pid, _, version = os.pread(descriptor, 200, 0).decode(errors="replace").strip().partition(" ")
    if not pid:
        return "another process that is just starting"
    return f"process {pid} (version {version})" if version else f"process {pid}"
