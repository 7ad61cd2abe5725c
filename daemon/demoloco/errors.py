"""One class per whose fault it is; the reaction follows from the class, not from the text.

PacketError, SwarmError   theirs: drop, count against the peer, go on.
ConfigError, RequestError the user's: one message that says the fix; exit code 2 or a gRPC status.
StoreError, WorkerError   this machine's: say what is needed; go on if possible, else exit code 1.
"""

from __future__ import annotations


class DemolocoError(Exception):
    """Base of all errors that this project raises on purpose."""


class PacketError(DemolocoError):
    """A peer's bytes are not what they claim to be."""


class SwarmError(DemolocoError):
    """A peer did not answer, answered wrongly, or went away."""


class ConfigError(DemolocoError):
    """What the user asked for cannot be done; the text says what to do instead."""


class RequestError(DemolocoError):
    """An operator's request that the node refuses."""


class StoreError(DemolocoError):
    """The disk under the node's home does not do what it should."""


class WorkerError(DemolocoError):
    """The worker, or the task that it runs, failed."""
