"""Where a node's home is, when nobody says: the same rule as the node's own.

Rule: --home, else --node NAME beside the other nodes, else $DEMOLOCO_HOME, else the node `default`.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

HOME_VARIABLE = "DEMOLOCO_HOME"
DEFAULT_NODE = "default"
SOCKET_NAME = "control.sock"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


def state_home() -> Path:
    """The directory in which this user's nodes have their homes."""
    from platformdirs import user_state_path

    return user_state_path("demoloco")


def default_home() -> Path:
    """The home of the node that is meant when none is named."""
    if chosen := os.environ.get(HOME_VARIABLE):
        return Path(chosen).expanduser()
    return state_home() / DEFAULT_NODE


def home_of(node: str) -> Path:
    """The home of a named node of this user.

    Raises: ValueError if the name can't be the name of a directory.
    """
    if not _NAME.fullmatch(node):
        raise ValueError(f"{node!r} is no node's name: letters, digits, '.', '_' and '-'")
    return state_home() / node


def socket_of(home: Path) -> Path:
    """Where the node of this home listens for its operator."""
    return home.absolute() / SOCKET_NAME
