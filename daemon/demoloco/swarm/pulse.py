"""The loops that keep a node in its swarm: heartbeats, dialling the absent, asking for hints.

Rule: nothing is given up for good. Seeds, saved addresses and lost members are dialled for ever,
ever more rarely; and a node that was itself away for a while blames nobody else for the silence.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from dataclasses import dataclass

from demoloco.errors import PacketError, SwarmError
from demoloco.swarm import calls
from demoloco.swarm.allowance import Allowance
from demoloco.swarm.gossip.rumours import DIRECT
from demoloco.swarm.gossip.tidings import Told
from demoloco.swarm.lines import Lines
from demoloco.swarm.service import BUSY
from demoloco.swarm.standing import Standing
from demoloco.swarm.tasks import Tasks
from demoloco.swarm.timing import Timing
from demoloco.swarm.transport import Fault, Method, Refused, Transport, Unreachable
from demoloco.types import PeerId, short

log = logging.getLogger(__name__)

MAX_DIALS = 8
"""Absent peers that one round of healing dials."""
MAX_HINT_SECONDS = 300.0
"""The longest pause between two looks at the hints; what is left there lasts 600 seconds."""
REST_SHARE = 0.25
"""The shortest time between two beats, and between two hellos that others prompt, as a share of a
heartbeat."""


@dataclass(slots=True)
class Retry:
    """When to dial an absent peer next."""

    at: float
    pause: float
    tries: int


class Pulse:
    """Runs the loops of one node."""

    def __init__(
        self,
        standing: Standing,
        transport: Transport,
        lines: Lines,
        tasks: Tasks,
        seeds: frozenset[PeerId],
        timing: Timing,
    ) -> None:
        self._standing = standing
        self._transport = transport
        self._lines = lines
        self._tasks = tasks
        self._seeds = seeds
        self._timing = timing
        self._rng = standing.rng
        self._retries: dict[PeerId, Retry] = {}
        self._greeting: set[PeerId] = set()
        self._nudge = asyncio.Event()
        rest = timing.heartbeat_seconds * REST_SHARE
        self._prompts = Allowance(a_second=1 / rest, at_once=1, now=standing.now)
        standing.ask = self._ask

    def start(self) -> None:
        self._tasks.spawn(self._forever(self._beat, self._until_beat))
        self._tasks.spawn(self._forever(self._heal, self._until_heal))
        self._tasks.spawn(self._forever(self._hint, self._until_hint))

    def nudge(self) -> None:
        """There is news to tell: beat at once."""
        self._nudge.set()

    def dial_all(self) -> None:
        """Forget who was dialled in vain."""
        self._retries.clear()

    async def farewell(self) -> None:
        """Say goodbye to all members, without waiting long for any."""
        if self._standing.record is None or self._standing.run is None:
            return
        self._standing.goodbye()
        for peer in self._standing.roster:
            self._tasks.spawn(self._greet(peer))
        await self._tasks.settle(self._timing.settle_seconds)

    async def _beat(self) -> None:
        """Hellos to whom the tidings name, and a look at who has been silent."""
        here = self._standing
        if here.run is None:
            return
        here.renew()
        for peer in here.tidings.partners(here.now()):
            self._greet_soon(peer)
        patience = self._timing.patience_seconds
        for peer in here.tidings.gone(here.now()):
            here.lose(peer, f"no sign of life for {patience:.1f} s")
        here.clocks.complain(here.roster, here.now())

    async def _until_beat(self) -> None:
        here, beat = self._standing, self._timing.heartbeat_seconds
        slept = here.now()
        await asyncio.sleep(beat * REST_SHARE)
        pause = beat * (self._rng.uniform(0.9, 1.1) - REST_SHARE)
        try:
            async with asyncio.timeout(pause):
                await self._nudge.wait()
        except TimeoutError:
            pass
        self._nudge.clear()
        late = here.now() - slept - beat * 1.1
        if late > beat:
            here.roster.forgive(late)
            here.tidings.doubts.forgive(late)

    async def _heal(self) -> None:
        """Dial known peers that are no members, each ever more rarely."""
        here = self._standing
        now = here.now()
        absent = [
            peer for peer in here.known if peer not in here.roster and peer not in self._greeting
        ]
        due = [
            peer for peer in absent if peer not in self._retries or self._retries[peer].at <= now
        ]
        for peer in sorted(due, key=lambda peer: peer not in self._seeds)[:MAX_DIALS]:
            longest = (
                self._timing.seed_retry_seconds
                if peer in self._seeds
                else self._timing.known_retry_seconds
            )
            before = self._retries.get(peer, Retry(now, 0.0, 0))
            pause = min(longest, max(self._timing.heartbeat_seconds, 2 * before.pause))
            at = now + pause * self._rng.uniform(0.5, 1.5)
            self._retries[peer] = Retry(at, pause, before.tries + 1)
            self._greet_soon(peer, dial=True)

    async def _until_heal(self) -> None:
        await asyncio.sleep(self._timing.heartbeat_seconds * self._rng.uniform(0.25, 0.75))

    async def _hint(self) -> None:
        here = self._standing
        if here.run is None:
            return
        if here.sealed:
            await self._transport.advertise(here.run, here.sealed)
        here.take_hints(await self._transport.find(here.run))

    async def _until_hint(self) -> None:
        crowd = max(1.0, len(self._standing.roster) / DIRECT)  # an answer has them all
        pause = min(self._timing.hint_seconds * crowd, MAX_HINT_SECONDS)
        await asyncio.sleep(pause * self._rng.uniform(0.5, 1.5))

    async def _forever(
        self,
        step: Callable[[], Coroutine[None, None, None]],
        pause: Callable[[], Coroutine[None, None, None]],
    ) -> None:
        while True:
            try:
                await step()
            except SwarmError as error:
                log.debug("loop=%s why=%s", step.__name__, error)
            except Exception:  # a wall: the loop is what keeps the node in the swarm
                log.exception("loop=%s failed; it goes on", step.__name__)
            await pause()

    def _ask(self, peer: PeerId) -> None:
        """Others doubt that it is there. Whoever says so again and again does not make this node
        call it as often: the next beat asks it in any case."""
        if self._prompts.spend(peer, 1):
            self._greet_soon(peer)

    def _greet_soon(self, peer: PeerId, *, dial: bool = False) -> None:
        if peer not in self._greeting:
            self._tasks.spawn(self._greet(peer, dial=dial))

    async def _greet(self, peer: PeerId, *, dial: bool = False) -> None:
        """Say hello, take what the peer knows, draw conclusions from its silence."""
        here = self._standing
        self._greeting.add(peer)
        told: Told = ()
        again = False
        seconds = None if here.tidings.direct else self._timing.ask_seconds
        try:
            if dial:
                await self._lines.connect(peer)
            if here.run is None:
                return
            hello, told = here.hello_to(peer)
            asked = here.wall()
            reply = await self._lines.call(peer, Method.HELLO, calls.encode_hello(hello), seconds)
            answer = calls.decode_hello_reply(reply)
            here.clocks.note(peer, answer.clock_ms, asked, here.wall())
            self._hear(peer, answer, told)
        except Refused as error:
            if str(error) != BUSY:
                here.lose(peer, f"refused: {error}")
        except Unreachable as error:
            here.tidings.untold(peer, told)
            self._say_if_away(peer, error)
            if error.fault is Fault.REFUSED:
                lasts = here.tidings.refused(peer, here.now())  # a p2pd is rebuilt sooner
                if lasts:
                    here.lose(peer, error.fault.value)
            again = error.fault is Fault.TIMEOUT and peer in here.tidings.doubts
        except PacketError as error:
            here.drop(peer, f"its answer to a hello: {error}")
        finally:
            self._greeting.discard(peer)
        if again:
            self._greet_soon(peer)

    def _hear(self, peer: PeerId, answer: calls.Hello, told: Told) -> None:
        """The peer answered a hello that told it this."""
        here = self._standing
        here.take_records(answer.records, peer)
        here.tidings.answered(peer, here.now())
        here.tidings.arrived(peer, told)
        here.hear_silent(answer.silent, peer)
        if peer in here.roster:
            self._retries.pop(peer, None)

    def _say_if_away(self, peer: PeerId, error: Unreachable) -> None:
        """Once each time that a seed cannot be reached."""
        retry = self._retries.get(peer)
        if peer in self._seeds and retry is not None and retry.tries == 1:
            log.warning("seed=away peer=%s why=%s; it is dialled for ever", short(peer), error)
