"""What libp2p's texts mean: the only place that reads them.

Rule: a text that is not known is a broken connection, which is tried again.
"""

from __future__ import annotations

import re

from demoloco.swarm.transport import Fault, Unreachable

MAX_DETAIL_CHARACTERS = 160

_MISMATCH = re.compile(r"remote key matches (\w+)")
_SIGNS = (  # the first that is found in the text wins
    (Fault.BACKOFF, ("dial backoff",)),
    (Fault.PROTOCOL, ("protocols not supported", "protocol not supported")),
    (Fault.TIMEOUT, ("i/o timeout", "deadline exceeded", "timed out")),
    (Fault.REFUSED, ("connection refused",)),
    (Fault.UNKNOWN, ("routing: not found", "no addresses", "no good addresses", "failed to find")),
)


def fault_of(text: str) -> Unreachable:
    """The failure that this error text of libp2p describes."""
    if found := _MISMATCH.search(text):
        return Unreachable(Fault.OTHER_PEER, found.group(1))
    lowered = text.lower()
    for fault, signs in _SIGNS:
        if any(sign in lowered for sign in signs):
            return Unreachable(fault)
    return Unreachable(Fault.BROKEN, " ".join(text.split())[-MAX_DETAIL_CHARACTERS:])
