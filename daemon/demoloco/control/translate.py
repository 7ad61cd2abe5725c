"""What an operator and a node say to each other, as control.proto and as plain types.

Rule: only here do the two meet. What an operator asks for is checked, and refused with the fix.
"""

from __future__ import annotations

import dataclasses

from demoloco.control.exports import (
    ExportLeftOut,
    ExportMember,
    ExportProgress,
    ExportResult,
    ExportStep,
    ExportWish,
)
from demoloco.errors import RequestError
from demoloco.node.feed import MemberStatus, Status
from demoloco_proto.v1 import control_pb2

DEFAULT_INTERVAL_SECONDS = 1.0
MIN_INTERVAL_SECONDS = 0.1
MAX_INTERVAL_SECONDS = 60.0
MAX_PATIENCE_SECONDS = 86_400.0


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


def wish_of(request: control_pb2.ExportRequest) -> ExportWish:
    """What an operator wants exported.

    Raises: RequestError for what control.proto does not know."""
    default = ExportWish()
    if request.merge and request.which:
        raise RequestError("merging gives the merged model; ask for `which` without `merge`")
    if request.which not in ("", "own", "agreed"):
        raise RequestError(f"which is {request.which[:40]!r}; ask for own or agreed")
    seconds = request.patience_seconds or default.patience_seconds
    if not 1 <= seconds <= MAX_PATIENCE_SECONDS:  # false for NaN too
        raise RequestError(
            f"patience_seconds is {seconds:g}; ask for 1 to {MAX_PATIENCE_SECONDS:g}, or 0 for "
            f"{default.patience_seconds:g}"
        )
    return ExportWish(
        which=request.which or default.which,
        merge=request.merge,
        format=request.format or default.format,
        patience_seconds=seconds,
    )


def to_export_reply(step: ExportStep) -> control_pb2.ExportReply:
    """One message of an export's stream."""
    match step:
        case ExportProgress():
            progress = control_pb2.ExportProgress(**dataclasses.asdict(step))
            return control_pb2.ExportReply(progress=progress)
        case ExportResult():
            return control_pb2.ExportReply(result=_to_result(step))
        case _:
            return control_pb2.ExportReply(data=step)


def _to_result(result: ExportResult) -> control_pb2.ExportResult:
    plain = {
        field.name: value
        for field in dataclasses.fields(result)
        if field.name not in ("members", "left_out")
        and (value := getattr(result, field.name)) is not None
    }
    return control_pb2.ExportResult(
        members=map(_to_export_member, result.members),
        left_out=map(_to_left_out, result.left_out),
        **plain,
    )


def _to_export_member(member: ExportMember) -> control_pb2.ExportMember:
    return control_pb2.ExportMember(**dataclasses.asdict(member))


def _to_left_out(left_out: ExportLeftOut) -> control_pb2.ExportLeftOut:
    return control_pb2.ExportLeftOut(**dataclasses.asdict(left_out))
