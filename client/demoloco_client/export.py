"""`demoloco export`: how far it is, what came of it.

Rule: the result goes to stdout; what it takes, and what the user should know beside it, to stderr.
"""

from __future__ import annotations

import sys
import threading
from pathlib import Path

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from demoloco_client.render import as_dict, printable, short, size
from demoloco_proto.v1.control_pb2 import ExportMember, ExportProgress, ExportResult

QUIET_SECONDS = 2.0
"""What is over sooner needs no progress."""


class Ticker:
    """Writes lines of progress to stderr, once it takes longer than a moment."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._words, self._told = "", ""
        self._speaks = False
        self._timer = threading.Timer(QUIET_SECONDS, self._begin)
        self._timer.daemon = True
        self._timer.start()

    def hear(self, progress: ExportProgress) -> None:
        """This is done now."""
        with self._lock:
            self._words = words_of(progress)
            if self._speaks:
                self._tell()

    def stop(self) -> None:
        """Nothing more will come."""
        self._timer.cancel()

    def _begin(self) -> None:
        with self._lock:
            self._speaks = True
            self._tell()

    def _tell(self) -> None:
        if self._words and self._words != self._told:
            self._told = self._words
            print(self._words, file=sys.stderr, flush=True)


def words_of(progress: ExportProgress) -> str:
    """One line."""
    count = f" ({progress.done} of {progress.of})" if progress.of else ""
    return f"{progress.doing}{count} …"


def as_json(result: ExportResult, out: Path) -> dict[str, object]:
    """All fields under their names in control.proto, and `file`; null where not known."""
    return {"file": str(out), **as_dict(result)}


def show(result: ExportResult, out: Path) -> None:
    """The losses where they were measured, and the file; to stderr what was left out and why."""
    Console(highlight=False).print(screen(result, out), crop=False, soft_wrap=True)
    aside = Console(stderr=True, highlight=False)
    for line in remarks(result):
        aside.print(printable(line), soft_wrap=True)


def screen(result: ExportResult, out: Path) -> RenderableType:
    """What came of it."""
    file = Text(
        f"wrote {out}: the {result.which} model of round {result.round}, "
        f"{size(result.file_bytes)}, {result.format}"
    )
    if not _measured(result) and not result.members and not result.note:
        return file
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    table.add_column("model")
    table.add_column("held-out loss", justify="right")
    for name in ("own", "agreed", "merged"):
        table.add_row(name, _loss(result, f"{name}_loss"))
    return Group(table, Text(), *_mean(result), file)


def remarks(result: ExportResult) -> list[str]:
    """What one should know beside the result."""
    lines = [f"left out {short(one.peer_id)}: {one.why}" for one in result.left_out]
    if result.note:
        lines.append(f"note: {result.note}")
    if result.why_no_loss:
        lines.append(f"not measured: {result.why_no_loss}")
    if len(result.members) == 1:
        lines.append("note: no other member's model came: the merged model is this node's own")
    losses = result.own_loss, result.merged_loss
    both = result.HasField("own_loss") and result.HasField("merged_loss")
    if both and losses[1] > losses[0] and not result.note:  # a note has a better reason
        lines.append(
            "note: the merged model is worse than this node's own: the members' models are still"
            " too far apart; export this node's own without --merge, or let them train on"
        )
    return lines


def _mean(result: ExportResult) -> list[Text]:
    if not result.members:
        return []
    shares = ", ".join(map(_share, result.members))
    by = {"samples": "weighted by samples", "equal": "equally weighted"}.get(result.weighted_by, "")
    return [printable(f"merged of {len(result.members)}, {by}: {shares}")]


def _share(member: ExportMember) -> str:
    me = " (this node)" if member.me else ""
    return f"{short(member.peer_id)}{me} {member.weight:.0%} at round {member.round}"


def _loss(result: ExportResult, field: str) -> str:
    return f"{getattr(result, field):.4f}" if result.HasField(field) else "–"  # type: ignore[arg-type]


def _measured(result: ExportResult) -> bool:
    return any(result.HasField(field) for field in ("own_loss", "agreed_loss", "merged_loss"))
