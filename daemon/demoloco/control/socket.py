"""The place where a node listens to its operator: one Unix socket in its home, its owner's alone.

Rule: one home, one node. Who holds the lock beside the socket owns it; a socket whose lock nobody
holds was left by a node that died, and goes away.
"""

from __future__ import annotations

import fcntl
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from demoloco.errors import ConfigError

SOCKET_NAME = "control.sock"
LOCK_NAME = "control.lock"
MAX_SOCKET_PATH_BYTES = 107 if sys.platform == "linux" else 103
"""What the address of a Unix socket can hold."""


def socket_path(home: Path) -> Path:
    """Where the node of this home listens.

    Raises: ConfigError if the path is longer than a socket's address can be.
    """
    path = home.absolute() / SOCKET_NAME
    size = len(os.fsencode(path))
    if size > MAX_SOCKET_PATH_BYTES:
        raise ConfigError(
            f"the home's path is too long: {path} has {size} bytes, a Unix socket's path at most "
            f"{MAX_SOCKET_PATH_BYTES}; choose a shorter one with --home DIR"
        )
    return path


@contextmanager
def owned_socket(home: Path) -> Iterator[Path]:
    """Hold the right to listen in this home; what a dead node left is gone.

    Raises: ConfigError if a node runs in this home, or the home can't be written.
    """
    path = socket_path(home)
    try:
        home.mkdir(parents=True, exist_ok=True)
        lock = os.open(home / LOCK_NAME, os.O_RDWR | os.O_CREAT, 0o600)
    except OSError as error:
        raise ConfigError(
            f"can't write in {home}: {error.strerror}; choose another home with --home DIR"
        ) from error
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise ConfigError(
                f"a node runs in {home} already; stop it with `demoloco leave --home {home}`, "
                "or give this one a home of its own with --home DIR"
            ) from error
        path.unlink(missing_ok=True)
        yield path
        path.unlink(missing_ok=True)
    finally:
        os.close(lock)


@contextmanager
def owner_only() -> Iterator[None]:
    """What is created meanwhile is readable and writable by its owner alone."""
    before = os.umask(0o177)
    try:
        yield
    finally:
        os.umask(before)
