"""What an operator and a node say to each other, as control.proto and as plain types.

Rule: only here do the two meet. What an operator asks for is checked, and refused with the fix.
"""

from __future__ import annotations

import dataclasses

from demoloco.errors import RequestError
from demoloco.node.feed import MemberStatus, Status
from demoloco_proto.v1 import control_pb2

DEFAULT_INTERVAL_SECONDS = 1.0
MIN_INTERVAL_SECONDS = 0.1
MAX_INTERVAL_SECONDS = 60.0


def to_reply(status: Status) -> control_pb2.StatusReply:
    """The status as an operator's client reads it; what is not known is absent."""
    plain = {
        field.name: value
        for field in dataclasses.fields(status)
        if field.name != "members" and (value := getattr(status, field.name)) is not None
    }
    return control_pb2.StatusReply(members=map(_to_member, status.members), **plain)


def _to_member(member: MemberStatus) -> control_pb2.MemberStatus:
    return control_pb2.MemberStatus(**dataclasses.asdict(member))


def interval_of(request: control_pb2.WatchRequest) -> float:
    """Seconds between two messages.

    Raises: RequestError outside the bounds of control.proto.
    """
    seconds = request.interval_seconds
    if seconds == 0:
        return DEFAULT_INTERVAL_SECONDS
    if not MIN_INTERVAL_SECONDS <= seconds <= MAX_INTERVAL_SECONDS:  # false for NaN too
        raise RequestError(
            f"interval_seconds is {seconds:g}; ask for {MIN_INTERVAL_SECONDS:g} to "
            f"{MAX_INTERVAL_SECONDS:g}, or 0 for {DEFAULT_INTERVAL_SECONDS:g}"
        )
    return seconds
