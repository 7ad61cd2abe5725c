"""One typed stream of what this node does; its log, its terminal view and Watch read from here.

Rule: the driver tells, everybody else listens; a listener can never slow the driver down. Used from
the event loop's thread only. A listener is told of every change of phase or round, and of what lies
between them only the newest; who stays behind by more than MAX_PENDING changes loses the oldest.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from types import TracebackType
from typing import Any, Self

import structlog
from structlog.stdlib import BoundLogger, ProcessorFormatter

MAX_PENDING = 64


@dataclass(frozen=True, kw_only=True, slots=True)
class MemberStatus:
    """A peer live now, as this node knows it; the node itself is one of them."""

    peer_id: str
    round: int = 0
    head: str = ""
    phase: str = ""
    samples_per_second: float = 0.0
    seen_seconds_ago: float = 0.0
    me: bool = False
    addresses: tuple[str, ...] = ()
    up: float = 0.0
    down: float = 0.0
    road: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Status:
    """What an operator sees of a node: the StatusReply of control.proto, which says the units."""

    peer_id: str = ""
    run_id: str = ""
    run_name: str = ""
    task: str = ""
    method: str = ""
    addresses: tuple[str, ...] = ()
    round: int = 0
    head: str = ""
    fingerprint: str = ""
    phase: str = ""
    why: str = ""
    members: tuple[MemberStatus, ...] = ()
    loss: float | None = None
    eval_loss: float | None = None
    eval_round: int | None = None
    eval_loss_first: float | None = None
    samples_per_second: float = 0.0
    bytes_sent: int = 0
    bytes_received: int = 0
    packet_bytes: int = 0
    compression: float = 0.0
    inner_step: int = 0
    inner_steps: int = 0
    parameters: int = 0
    device: str = ""
    version: str = ""
    uptime_seconds: float = 0.0
    home: str = ""
    join_command: str = ""
    rounds_contributed: int = 0
    rounds_left_out: int = 0
    samples_told: int = 0
    samples_owed: int = 0
    samples_learnt: int = 0
    counters: Mapping[str, int] = field(default_factory=dict)
    packet_bytes_received: int = 0
    packets_received: int = 0
    k: int = 0
    k_why: str = ""
    up: float = 0.0
    down: float = 0.0
    training_share: float = 0.0
    round_seconds: float = 0.0
    exchange_seconds: float = 0.0

    @property
    def moment(self) -> tuple[str, int]:
        """What a listener must not miss: each phase of each round."""
        return self.phase, self.round


class Feed:
    """Holds the current Status, tells listeners of its changes, writes the node's lines."""

    def __init__(
        self, status: Status | None = None, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._clock = clock
        self._born = clock()
        self._status = status or Status()
        self._listeners: set[Subscription] = set()
        self._closed = False
        self._version = 0
        self._log: BoundLogger = structlog.wrap_logger(
            logging.getLogger("demoloco"),
            processors=[ProcessorFormatter.wrap_for_formatter],
            wrapper_class=BoundLogger,
        )

    @property
    def status(self) -> Status:
        """The current status; its uptime is that of now."""
        return replace(self._status, uptime_seconds=self._clock() - self._born)

    @property
    def version(self) -> int:
        """Grows with every update."""
        return self._version

    @property
    def closed(self) -> bool:
        """Whether the node has said its last word."""
        return self._closed

    def update(self, **changes: Any) -> None:
        """Change fields of the status: those that belong together (round, head …) in one call.

        Raises: TypeError for a field that Status does not have.
        """
        self._status = replace(self._status, **changes)
        self._version += 1
        status = self.status
        for listener in self._listeners:
            listener.hear(status)

    def line(self, event: str, *, level: int = logging.INFO, **facts: object) -> None:
        """Write one line to the log: what happened, always in the same words, and its facts."""
        self._log.log(level, event, **facts)

    def warn(self, event: str, **facts: object) -> None:
        """Write one line about something that an operator should look at."""
        self.line(event, level=logging.WARNING, **facts)

    def subscribe(self) -> Subscription:
        """Start to listen; leave the returned context to stop."""
        return Subscription(self)

    def close(self) -> None:
        """End every subscription, after what it has not read yet. Lines can still be written."""
        self._closed = True
        for listener in self._listeners:
            listener.wake()

    def join(self, listener: Subscription) -> None:
        """Take a listener in; Subscription's own business."""
        self._listeners.add(listener)

    def part(self, listener: Subscription) -> None:
        """Let a listener go; Subscription's own business."""
        self._listeners.discard(listener)


class Subscription:
    """One listener's place: `with feed.subscribe() as news: status = await news.next(1.0)`."""

    def __init__(self, feed: Feed) -> None:
        self._feed = feed
        self._pending: deque[Status] = deque(maxlen=MAX_PENDING)
        self._last_moment = feed.status.moment
        self._given = feed.version
        self._woken = asyncio.Event()

    def __enter__(self) -> Self:
        self._feed.join(self)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._feed.part(self)

    def hear(self, status: Status) -> None:
        """Keep a new moment; renew the newest one that was not read yet."""
        if status.moment != self._last_moment:
            self._last_moment = status.moment
            self._pending.append(status)
            self._woken.set()
        elif self._pending:
            self._pending[-1] = status

    def wake(self) -> None:
        """Let `next` look again."""
        self._woken.set()

    async def next(self, patience_seconds: float) -> Status | None:
        """The oldest moment not read yet; after `patience_seconds` without one, the status of now.

        Once the feed is closed: what is not read yet, the last status, then None.
        """
        if not self._pending and not self._feed.closed:
            self._woken.clear()
            try:
                async with asyncio.timeout(patience_seconds):
                    await self._woken.wait()
            except TimeoutError:
                return self._newest()
        if len(self._pending) > 1:
            return self._pending.popleft()
        if self._pending or self._given != self._feed.version:
            return self._newest()
        return None

    def _newest(self) -> Status:
        self._pending.clear()
        self._given = self._feed.version
        return self._feed.status
