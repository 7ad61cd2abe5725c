"""The only loop: event → effects → event. It decides nothing; it does, and reports back.

Rule: the driver alone touches the machine. Effects are carried out in their order: what must be
durable is awaited, what may take long becomes a task that ends in an event.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, assert_never

from demoloco.node.assembly import where_it_stands
from demoloco.node.couriers import Couriers
from demoloco.node.doings import Doings
from demoloco.node.parts import Parts
from demoloco.node.revival import Late
from demoloco.rounds import effects as ef
from demoloco.rounds import events as ev
from demoloco.swarm.port import (
    ManifestHeard,
    MemberLost,
    MemberSeen,
    OffersHeard,
    SwarmEvent,
)
from demoloco.types import Member, PeerId
from demoloco.worker.port import WorkerEvent

MAX_WAITING = 256
"""Events in the inbox above which peers' words about rounds are dropped: nobody can fill memory."""


class _Word:
    """A member's newest word; those that come while it waits in the inbox take its place."""

    def __init__(self, member: Member) -> None:
        self.member = member


class Driver:
    """Runs one node's rounds until the machine wants to stop."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._inbox: asyncio.Queue[ev.Event | Late | _Word] = asyncio.Queue()
        self._words: dict[PeerId, _Word] = {}
        self._alarm: asyncio.TimerHandle | None = None
        self._running: set[asyncio.Task[None]] = set()
        self._over = False
        self._doings = Doings(parts, self.post)
        self._couriers = Couriers(parts.swarm, parts.ledger, parts.disk, parts.report, self.post)

    def post(self, event: ev.Event | Late) -> None:
        """Hand the machine an event, or what makes one when its turn comes; from the loop's
        thread."""
        if isinstance(event, ev.LeaveRequested):
            self._doings.room.give_up()
        self._inbox.put_nowait(event)

    async def begin(self) -> None:
        """Enter the run, tell the machine where this node stands, and that the worker is there."""
        self._parts.swarm.enter(self._parts.run)
        revival = self._doings.revival
        await revival.find_checkpoint()
        if (started := where_it_stands(self._parts)) is not None:
            self.post(lambda: revival.started(started))
        self.post(ev.WorkerCame())

    async def run(self) -> None:
        """Drive until Stop.

        Raises: StoreError, WorkerError if this node cannot go on."""
        clock = asyncio.get_running_loop().time
        machine, report = self._parts.machine, self._parts.report
        async with asyncio.TaskGroup() as self._tasks:
            self._parts.crew.listen(self.hear_worker)
            try:
                while not machine.state.stopped:
                    event = self._opened(await self._inbox.get())
                    for effect in machine.handle(event, clock()):
                        await self._carry_out(effect)
                    self._parts.ledger.bound(machine.state.chain)
                    report.refresh(machine)
            finally:
                self._close()

    def _opened(self, event: ev.Event | Late | _Word) -> ev.Event:
        if not isinstance(event, _Word):
            return event() if callable(event) else event
        if self._words.get(event.member.peer) is event:
            del self._words[event.member.peer]
        return ev.MemberSeen(event.member)

    async def _carry_out(self, effect: ef.Effect) -> None:
        do, swarm = self._doings, self._parts.swarm
        match effect:
            case ef.Settle():
                await do.settle()
            case ef.Train():
                self._parts.stance.train(effect)
            case ef.Cut():
                self._parts.stance.cut(effect)
            case ef.Contribute():
                self._parts.stance.contribute(effect)
            case ef.Announce(offers):
                self._spawn(swarm.announce(offers))
            case ef.Fetch():
                self._spawn(self._couriers.fetch_packet(effect))
            case ef.FetchManifests():
                self._spawn(self._couriers.fetch_manifests(effect))
            case ef.FetchSnapshot():
                self._spawn(self._couriers.fetch_snapshot(effect, self._ahead))
            case ef.Propose(draft):
                do.propose(draft)
            case ef.Commit(manifest):
                await do.commit(manifest)
            case ef.Publish(manifest):
                self._spawn(swarm.publish(do.sealed(manifest)))
            case ef.Apply():
                self._spawn(do.apply(effect))
            case ef.Adopt(head, fingerprint):
                self._spawn(do.adopt(head, fingerprint))
            case ef.Say(phase, head):
                do.say(phase, head)
            case ef.Note(text, warning):
                (self._parts.report.warn if warning else self._parts.report.line)(text)
            case ef.WakeMe(at):
                self._set_alarm(at)
            case ef.Stop():
                pass  # the loop sees the machine stopped
            case _:
                assert_never(effect)

    def _ahead(self) -> tuple[PeerId, ...]:
        return tuple(peer for peer, _ in self._parts.machine.state.members.ahead())

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        try:
            if self._over:
                raise RuntimeError
            task = self._tasks.create_task(work)
        except RuntimeError:  # the node ends, or a task of its own ended it
            work.close()
            return
        self._running.add(task)
        task.add_done_callback(self._running.discard)

    def _set_alarm(self, at: float) -> None:
        if self._alarm is not None:
            self._alarm.cancel()
        self._alarm = asyncio.get_running_loop().call_at(at, self.post, ev.Woken())

    def _close(self) -> None:
        self._over = True
        if self._alarm is not None:
            self._alarm.cancel()
        for task in tuple(self._running):
            task.cancel()

    # -- what the parts tell -----------------------------------------------------------------------
    def hear_swarm(self, event: SwarmEvent) -> None:
        """A peer's word becomes the machine's event."""
        report = self._parts.report
        if self._inbox.qsize() >= MAX_WAITING and not isinstance(event, MemberSeen | MemberLost):
            report.count("words_dropped")  # they are said again, or can be asked for
            return
        match event:
            case MemberSeen(member):
                report.member_seen(member)
                if (waiting := self._words.get(member.peer)) is not None:
                    waiting.member = member
                else:
                    self._words[member.peer] = _Word(member)
                    self._inbox.put_nowait(self._words[member.peer])
            case MemberLost(peer, why):
                report.member_lost(peer, why)
                self._words.pop(peer, None)  # what it says after this is said after this
                self.post(ev.MemberLost(peer))
            case OffersHeard(holder, offers):
                self.post(ev.OffersHeard(holder, offers))
            case ManifestHeard(holder, manifest, sealed):
                self._parts.ledger.remember(manifest, sealed)
                self.post(ev.ManifestHeard(holder, manifest))
            case _:
                assert_never(event)

    def hear_worker(self, event: WorkerEvent) -> None:
        """The worker's word: an event, or a figure."""
        self._doings.hear_worker(event, self._spawn)
