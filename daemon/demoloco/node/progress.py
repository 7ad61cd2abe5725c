"""What a node shows in its terminal: a header at the start, then one block that is kept up to date.

Rule: only a terminal gets a block; log lines scroll above it. Anywhere else (a file, a pipe, a
service) there are log lines and nothing but log lines. It reads the feed and decides nothing.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from demoloco.node.feed import Feed, Status
from demoloco.types import PeerId, short

REFRESH_SECONDS = 0.25
MAX_MEMBERS_SHOWN = 8


def introduce(feed: Feed, console: Console) -> None:
    """Say once who this node is, what it trains and how others join."""
    status = feed.status
    if not console.is_terminal:
        feed.line(
            "node started",
            peer=status.peer_id,
            run=status.run_name,
            run_id=status.run_id,
            task=status.task,
            parameters=status.parameters,
            device=status.device,
            home=status.home,
        )
        feed.line("others join with", command=status.join_command)
        return
    table = Table.grid(padding=(0, 2))
    for label, words in _header(status):
        table.add_row(Text(label, style="dim"), Text(words))
    console.print(table)
    console.print(Text("join   ", "dim"), Text(status.join_command), soft_wrap=True)
    console.print(Text("stop   ", "dim"), Text("Ctrl-C contributes and leaves; twice stops now"))


async def show_progress(feed: Feed, console: Console) -> None:
    """Keep the block up to date until the feed closes; at once over where there is no terminal."""
    if not console.is_terminal or os.environ.get("TERM") == "dumb":
        return
    with (
        feed.subscribe() as news,
        Live(
            block(feed.status), console=console, auto_refresh=False, redirect_stdout=False
        ) as live,
    ):
        while (status := await news.next(REFRESH_SECONDS)) is not None:
            live.update(block(status), refresh=True)
        live.update(block(feed.status), refresh=True)


def block(status: Status) -> RenderableType:
    """The whole state of the node on five or six lines."""
    place = Table.grid(padding=(0, 2))
    place.add_row(
        Text(f"round {status.round}", style="bold"),
        Text(status.phase, style="green"),
        ProgressBar(max(status.inner_steps, 1), status.inner_step, width=24),
        Text(step_text(status)),
    )
    lines = Table.grid(padding=(0, 2))
    for label, words in _lines(status):
        lines.add_row(Text(label, style="dim"), Text(words, overflow="ellipsis", no_wrap=True))
    return Group(place, lines)


def _header(status: Status) -> Iterator[tuple[str, str]]:
    yield "node", f"{status.peer_id}  (demoloco {status.version})"
    yield "run", f"{status.run_name}  {status.run_id[:16]}"
    yield (
        "trains",
        f"{status.task}, {count_text(status.parameters)} parameters, method {status.method}, "
        f"on {status.device}",
    )
    yield "home", status.home


def _lines(status: Status) -> Iterator[tuple[str, str]]:
    yield "loss", loss_text(status)
    yield "speed", f"{status.samples_per_second:.1f} samples/s"
    yield "members", members_text(status)
    yield "packet", packet_text(status)
    yield (
        "traffic",
        f"{size_text(status.bytes_sent)} sent, {size_text(status.bytes_received)} received",
    )
    if status.why:
        yield "now", status.why


def step_text(status: Status) -> str:
    """The inner step of the round, of how many if that is fixed, and how many are beyond them."""
    step, steps = status.inner_step, status.inner_steps
    if steps == 0:
        return f"inner step {step}"
    beyond = f", {step - steps} beyond" if step > steps else ""
    return f"inner step {min(step, steps)} of {steps}{beyond}"


def loss_text(status: Status) -> str:
    """Training loss, and the held-out loss with the round that it belongs to."""
    words = "–" if status.loss is None else f"{status.loss:.3f}"
    if status.eval_loss is not None:
        words += f"   held out {status.eval_loss:.3f} after round {status.eval_round or 0}"
    if status.eval_loss is not None and status.eval_loss_first is not None:
        words += f" (first {status.eval_loss_first:.3f})"
    return words


def members_text(status: Status) -> str:
    """How many, and who is where."""
    who = [
        f"{'me' if member.me else short(PeerId(member.peer_id))} at {member.round}"
        for member in status.members[:MAX_MEMBERS_SHOWN]
    ]
    more = len(status.members) - len(who)
    return f"{len(status.members)}   {', '.join(who)}{f', {more} more' if more > 0 else ''}"


def packet_text(status: Status) -> str:
    """The newest own packet, and what sending the model instead would have cost."""
    if not status.packet_bytes:
        return "none yet"
    whole = size_text(4 * status.parameters)
    return f"{size_text(status.packet_bytes)} instead of {whole}, {status.compression:.0f} × less"


def size_text(size: int) -> str:
    """Bytes in decimal units, three digits."""
    return f"{_three_digits(size)}B"


def count_text(count: int) -> str:
    """A number of things in decimal units, three digits."""
    return _three_digits(count).rstrip()


def _three_digits(number: float) -> str:
    for unit in (" ", " k", " M", " G"):
        if number < 999.5:
            whole = unit == " " or number >= 99.95
            return f"{number:.0f}{unit}" if whole else f"{number:.3g}{unit}"
        number /= 1000
    return f"{number:.3g} T"
