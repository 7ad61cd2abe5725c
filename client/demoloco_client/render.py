"""A node's status for people (rich) and for programs (JSON). Values in, text out."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Mapping

from google.protobuf.message import Message
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from demoloco_proto.v1.control_pb2 import MemberStatus, StatusReply

SHORT_ID = 6


def as_dict(reply: Message) -> dict[str, object]:
    """All fields under their names in control.proto, in its order; null where not known."""
    return _message(reply)


def _message(message: Message) -> dict[str, object]:
    return {
        field.name: _plain(getattr(message, field.name))
        if not field.has_presence or message.HasField(field.name)
        else None
        for field in message.DESCRIPTOR.fields
    }


def _plain(value: object) -> object:
    match value:
        case float():
            return value if math.isfinite(value) else None  # JSON has no NaN
        case str() | int():
            return value
        case Message():
            return _message(value)
        case Mapping():
            return dict(sorted(value.items()))
        case Iterable():
            return [_plain(item) for item in value]
        case _:
            raise AssertionError(f"no plain form for {type(value)}")


def status_screen(reply: StatusReply) -> RenderableType:
    """One screen: who, which run, how well, how fast, with whom, at what cost, waiting for what."""
    lines = Table.grid(padding=(0, 2))
    lines.add_column(style="dim")
    lines.add_column(overflow="fold")
    for label, words in _lines(reply):
        if words.strip():
            lines.add_row(label, printable(words))
    join = printable(reply.join_command)
    join.no_wrap, join.overflow = True, "ignore"
    return Group(lines, Text(), members_table(reply.members), Text(), join)


def _lines(reply: StatusReply) -> Iterable[tuple[str, str]]:
    yield (
        "node",
        f"{reply.peer_id}   up {duration(reply.uptime_seconds)}   demoloco {reply.version}",
    )
    yield "run", f"{reply.run_name}   {reply.run_id[:16]}   task {reply.task}, {reply.method}"
    yield (
        "state",
        f"round {reply.round}, {reply.phase}, inner step {step(reply, ' of ')}   "
        f"fingerprint {reply.fingerprint[:8] or '–'}",
    )
    if reply.why:
        yield "now", reply.why
    yield "loss", loss(reply)
    yield (
        "speed",
        f"{reply.samples_per_second:.1f} samples/s on {reply.device}   "
        f"{count(reply.parameters)} parameters",
    )
    yield "packet", packet(reply)
    if reply.k:
        yield "k", f"{reply.k}: {reply.k_why}"
    link = f"   link {mbit(reply.up)} up, {mbit(reply.down)} down" if reply.up or reply.down else ""
    yield "net", f"sent {size(reply.bytes_sent)}   received {size(reply.bytes_received)}{link}"
    if reply.training_share:
        yield "time", times(reply)
    yield (
        "told",
        f"{reply.rounds_contributed} rounds in, {reply.rounds_left_out} left out   "
        f"{count(reply.samples_learnt)} samples learnt: {count(reply.samples_told)} told, "
        f"{count(reply.samples_owed)} owed",
    )
    if reply.counters:
        yield "counts", ", ".join(f"{name} {n}" for name, n in sorted(reply.counters.items()))
    yield "home", reply.home


def members_table(members: Iterable[MemberStatus]) -> Table:
    """One row a member, this node first."""
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    table.add_column("member")
    table.add_column("round", justify="right")
    table.add_column("phase")
    table.add_column("samples/s", justify="right")
    table.add_column("Mbit/s up/down", justify="right")
    table.add_column("seen", justify="right")
    for member in sorted(members, key=lambda one: (not one.me, one.peer_id)):
        table.add_row(
            printable(short(member.peer_id) + (" (this node)" if member.me else "")),
            str(member.round),
            printable(member.phase),
            f"{member.samples_per_second:.1f}",
            f"{mbits(member.up)}/{mbits(member.down)}",
            "now" if member.me else f"{duration(member.seen_seconds_ago)} ago",
        )
    return table


def status_line(reply: StatusReply) -> str:
    """The status on one line, for `watch` where there is no terminal."""
    return (
        f"{time.strftime('%H:%M:%S')} round={reply.round} phase={reply.phase!r} "
        f"step={step(reply)} loss={number(reply.loss, reply, 'loss')} "
        f"eval_loss={number(reply.eval_loss, reply, 'eval_loss')} "
        f"samples_per_second={reply.samples_per_second:.1f} members={len(reply.members)}"
    )


def step(reply: StatusReply, between: str = "/") -> str:
    """The inner step, and of how many where that is fixed."""
    steps = f"{between}{reply.inner_steps}" if reply.inner_steps else ""
    return f"{reply.inner_step}{steps}"


def loss(reply: StatusReply) -> str:
    """Training loss; the held-out loss, its round, and where it began."""
    words = number(reply.loss, reply, "loss")
    if reply.HasField("eval_loss"):
        words += f"   held out {reply.eval_loss:.3f} after round {reply.eval_round}"
        if reply.HasField("eval_loss_first"):
            words += f", {reply.eval_loss_first:.3f} at first"
    return words


def packet(reply: StatusReply) -> str:
    """The newest packet beside the whole model that it stands for."""
    if not reply.packet_bytes:
        return "none yet"
    whole = size(4 * reply.parameters)
    return f"{size(reply.packet_bytes)} instead of {whole}, {reply.compression:.0f} × less"


def times(reply: StatusReply) -> str:
    """How the time goes: in training, and what a round and its exchange took last."""
    words = f"training {100 * reply.training_share:.0f} % of it"
    if reply.round_seconds:
        words += f"   a round {reply.round_seconds:.1f} s"
    if reply.exchange_seconds:
        words += f"   from packet to manifest {reply.exchange_seconds:.1f} s"
    return words


def mbit(bytes_a_second: float) -> str:
    """A link's rate as people say it."""
    mega = bytes_a_second * 8e-6
    if mega >= 999.5:
        return f"{mega / 1000:.3g} Gbit/s"
    return f"{mega:.3g} Mbit/s" if mega else "–"


def mbits(bytes_a_second: float) -> str:
    """The same in Mbit/s, without the unit."""
    mega = bytes_a_second * 8e-6
    return f"{mega:.0f}" if mega >= 999.5 else mbit(bytes_a_second).removesuffix(" Mbit/s")


def number(value: float, reply: StatusReply, field: str) -> str:
    """An optional field's value, or a dash."""
    return f"{value:.3f}" if reply.HasField(field) else "–"  # type: ignore[arg-type]


def printable(words: str) -> Text:
    """Words that may be a peer's: nothing in them steers the terminal or reads as markup."""
    return Text("".join(mark if mark.isprintable() else "�" for mark in words))


def short(peer_id: str) -> str:
    """The end of a peer id; its start is the same for all."""
    return peer_id[-SHORT_ID:]


def size(number_of_bytes: float) -> str:
    """Bytes in decimal units, three digits."""
    words = count(number_of_bytes)
    return f"{words}B" if words[-1].isalpha() else f"{words} B"


def count(number: float) -> str:
    """A number of things in decimal units, three digits."""
    for unit in ("", " k", " M", " G"):
        if number < 999.5:
            whole = not unit or number >= 99.95
            return f"{number:.0f}{unit}" if whole else f"{number:.3g}{unit}"
        number /= 1000
    return f"{number:.3g} T"


def duration(seconds: float) -> str:
    """Two units at most: 3 d 04 h, 2 h 05 min, 1 min 09 s, 8 s."""
    whole = int(seconds)
    for unit, name, below, below_name in (
        (86400, "d", 3600, "h"),
        (3600, "h", 60, "min"),
        (60, "min", 1, "s"),
    ):
        if whole >= unit:
            return f"{whole // unit} {name} {whole % unit // below:02d} {below_name}"
    return f"{whole} s"
