"""A node that only has a status, behind a real control server in a thread of its own."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from demoloco.control.exports import (
    ExportLeftOut,
    ExportMember,
    ExportProgress,
    ExportResult,
    ExportStep,
    ExportWish,
)
from demoloco.control.server import ControlServer
from demoloco.errors import RequestError
from demoloco.node.feed import Feed, MemberStatus, Status

ME = "12D3KooW" + "Home" * 9 + "xxABCDEF"
OTHER = "12D3KooW" + "Peer" * 9 + "xxUVWXYZ"

FULL = Status(
    peer_id=ME,
    run_id="ab" * 32,
    run_name="tiny",
    task="lm",
    method="decoupled",
    addresses=(f"/ip4/127.0.0.1/tcp/4001/p2p/{ME}",),
    round=12,
    head="cd" * 32,
    fingerprint="ef" * 32,
    phase="training",
    why="",
    members=(
        MemberStatus(
            peer_id=OTHER,
            round=11,
            head="aa" * 32,
            phase="exchanging",
            samples_per_second=40.25,
            seen_seconds_ago=2.5,
            up=12_500_000.0,
            road="grpc",
        ),
        MemberStatus(peer_id=ME, round=12, phase="training", samples_per_second=61.5, me=True),
    ),
    loss=2.125,
    eval_loss=2.25,
    eval_round=10,
    eval_loss_first=5.5,
    samples_per_second=61.5,
    bytes_sent=1_234_567,
    bytes_received=987,
    packet_bytes=41_000,
    compression=78.25,
    inner_step=31,
    inner_steps=50,
    parameters=802_816,
    device="cpu",
    version="0.1.0",
    home="/home/ada/.local/state/demoloco/default",
    join_command=f"demoloco-node --peers /ip4/127.0.0.1/tcp/4001/p2p/{ME}",
    rounds_contributed=11,
    rounds_left_out=1,
    samples_told=9600,
    samples_owed=496,
    samples_learnt=10_096,
    counters={"worker_restarts": 1, "packets_dropped": 2},
    packet_bytes_received=410_000,
    packets_received=10,
    k=128,
    k_why="it takes 3.1 s to send in a round of 9.8 s, on 2 Mbit/s up",
    up=250_000.0,
    down=2_500_000.0,
    training_share=0.984,
    round_seconds=10.25,
    exchange_seconds=4.5,
)


MERGED = ExportResult(
    which="merged",
    format="torch",
    file_bytes=7,
    run_id="ab" * 32,
    round=12,
    head="cd" * 32,
    own_loss=1.75,
    agreed_loss=2.0,
    merged_loss=1.625,
    weighted_by="samples",
    members=(
        ExportMember(peer_id=ME, me=True, weight=0.25, round=12),
        ExportMember(peer_id=OTHER, me=False, weight=0.75, round=11),
    ),
    left_out=(ExportLeftOut(peer_id="12D3KooW" + "Third" * 7 + "aaKLMNOP", why="it is leaving"),),
)
STEPS: tuple[ExportStep, ...] = (
    ExportProgress(doing="fetching members' models", done=1, of=2),
    MERGED,
    b"the ",
    b"end",
)


class FakeNode:
    """What ControlServer needs of a node; its clock stands still."""

    def __init__(self, status: Status = FULL) -> None:
        self.feed = Feed(status, clock=lambda: 0.0)
        self.leaves: list[bool] = []
        self.refusal: Exception | None = None
        self.steps = STEPS
        self.wishes: list[ExportWish] = []
        self.listened_to_the_end: list[bool] = []
        self.export_over = asyncio.Event()

    def status(self) -> Status:
        if self.refusal is not None:
            raise self.refusal
        return self.feed.status

    def request_leave(self, now: bool) -> None:
        if self.leaves:
            raise RequestError("the node is leaving already; wait for it")
        self.leaves.append(now)

    async def export(self, wish: ExportWish) -> AsyncGenerator[ExportStep, None]:
        self.wishes.append(wish)
        whole = False
        try:
            for step in self.steps:
                if self.refusal is not None:
                    raise self.refusal
                yield step
            whole = True
        finally:
            self.listened_to_the_end.append(whole)
            self.export_over.set()


class RunningNode:
    """A fake node and its server, handled from outside their event loop."""

    def __init__(self, home: Path, loop: asyncio.AbstractEventLoop) -> None:
        self.home = home
        self.node = FakeNode()
        self.server = ControlServer(self.node, home)
        self._loop = loop

    def update(self, **changes: Any) -> None:
        self.call(lambda: self.node.feed.update(**changes))

    def call(self, action: Callable[[], object]) -> None:
        """Do it in the loop, and return when it is done."""

        async def act() -> None:
            action()

        asyncio.run_coroutine_threadsafe(act(), self._loop).result(10)

    def start(self) -> None:
        asyncio.run_coroutine_threadsafe(self.server.start(), self._loop).result(10)

    def stop(self) -> None:
        asyncio.run_coroutine_threadsafe(self.server.stop(), self._loop).result(10)


@contextmanager
def running_node(home: Path) -> Iterator[RunningNode]:
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    node = RunningNode(home, loop)
    node.start()
    try:
        yield node
    finally:
        node.stop()
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()
