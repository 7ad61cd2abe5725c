"""How a simulated node's words reach the others: to all at once, or from mouth to mouth.

Rule: `MouthToMouth` does what the mesh does, with the mesh's own choices (`demoloco.swarm`); it
only replaces the network. `ToAll` is the cheap one for few nodes: it has no calls and no answers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol

from benchmarks.simulator import sizes
from demoloco.rounds import events as ev
from demoloco.swarm.gossip.chatter import COMPARED_WITH
from demoloco.swarm.gossip.rumours import (
    PARTNERS,
    PUBLISHED_TO,
    RELAYED_TO,
    Batch,
    Relay,
    Silent,
    draw,
)
from demoloco.swarm.gossip.talk import Talk, for_leavers
from demoloco.swarm.gossip.tidings import Tidings, Told
from demoloco.swarm.pulse import REST_SHARE
from demoloco.swarm.roster import Roster, is_goodbye
from demoloco.swarm.timing import Timing
from demoloco.types import Manifest, Member, Offer, PeerId, Phase

if TYPE_CHECKING:
    from benchmarks.simulator.node import SimNode

TIMING = Timing()
HEARTBEAT = TIMING.heartbeat_seconds
SILENCE_SECONDS = 7.0
"""After which `ToAll` gives up a member."""
MAX_DIALS = 2


class Words(Protocol):
    """A node's mouth and ears."""

    def start(self) -> None: ...

    def say(self, before: Member) -> None:
        """The node's own record changed."""
        ...

    def announce(self, offers: tuple[Offer, ...]) -> None: ...

    def publish(self, manifest: Manifest) -> None: ...

    def goodbye(self) -> None: ...


class ToAll:
    """Everything goes to everybody, without an answer."""

    def __init__(self, node: SimNode) -> None:
        self._node = node
        self._last_seen: dict[PeerId, float] = {}
        self._newest: dict[PeerId, Member] = {}

    def start(self) -> None:
        self._node.later(0.1, self._beat)

    def say(self, before: Member) -> None:
        """The next beat tells it."""

    def announce(self, offers: tuple[Offer, ...]) -> None:
        self._node.world.tell(self._node, ev.OffersHeard(self._node.name, offers))

    def publish(self, manifest: Manifest) -> None:
        self._node.world.tell(self._node, ev.ManifestHeard(self._node.name, manifest))

    def goodbye(self) -> None:
        world, name = self._node.world, self._node.name
        for other in world.others(self._node):
            world.send(self._node, other, lambda o=other: self._at(o)._forget(name))

    def _beat(self) -> None:
        world, node = self._node.world, self._node
        for other in world.others(node):
            world.send(node, other, lambda o=other, m=node.member: self._at(o)._see(m))
        for peer, seen in list(self._last_seen.items()):
            if world.now - seen > SILENCE_SECONDS:
                self._forget(peer)
        node.later(HEARTBEAT, self._beat)

    @staticmethod
    def _at(other: SimNode) -> ToAll:
        assert isinstance(other.words, ToAll)
        return other.words

    def _see(self, member: Member) -> None:
        """The machine hears what is new."""
        self._last_seen[member.peer] = self._node.world.now
        if self._newest.get(member.peer) != member:
            self._newest[member.peer] = member
            self._node.hear(ev.MemberSeen(member))

    def _forget(self, peer: PeerId) -> None:
        if self._last_seen.pop(peer, None) is not None:
            self._newest.pop(peer)
            self._node.hear(ev.MemberLost(peer))


@dataclass(frozen=True, slots=True)
class _Hello:
    records: tuple[Member, ...]
    silent: tuple[Silent, ...]
    known: int = 0


class MouthToMouth:
    """As the mesh: calls with answers, to all in a small swarm, to a few in a large one."""

    def __init__(self, node: SimNode) -> None:
        self._node, self._world = node, node.world
        self._rng = self._world.random
        self.roster = Roster(node.name)
        self.tidings = Tidings(self.roster, self._rng, HEARTBEAT, TIMING.patience_seconds)
        self._talk = Talk(node.name)
        self._relay = Relay()
        self._greeting: set[PeerId] = set()
        self._absent: dict[PeerId, tuple[float, float]] = {}  # when to dial, pause before the next
        self._next_beat = self._last_beat = self._next_flush = float("-inf")
        self._flushing = False

    def start(self) -> None:
        others = [name for name in self._world.nodes if name != self._node.name]
        seeds = [self._world.creator, *draw(self._rng, others, 2)]
        self._absent = {seed: (0.0, HEARTBEAT) for seed in seeds if seed != self._node.name}
        self._beat_at(self._world.now + self._rng.uniform(0.05, 0.15))

    def say(self, before: Member) -> None:
        """News of the head or the standing is told at once, as soon as a beat may come again."""
        after = self._node.member
        if self.tidings.direct or not self.tidings.is_minor(before, after):
            self._beat_at(max(self._world.now, self._last_beat + HEARTBEAT * REST_SHARE))

    def goodbye(self) -> None:
        member = replace(self._node.member, phase=Phase.LEAVING, addresses=())
        last = replace(member, sequence=self._sequence())
        for peer in self.roster:
            self._world.count(self._node, "hello", sizes.hello(1, 0))
            other = self._world.nodes[peer]
            act = lambda o=other: self._at(o)._take((last,), last.peer)  # noqa: E731
            self._world.send(self._node, other, act)

    # -- heartbeats --------------------------------------------------------------------------------
    def _beat_at(self, when: float) -> None:
        self._next_beat = when
        self._node.later(when - self._world.now, lambda: self._beat(when))

    def _beat(self, when: float) -> None:
        if when != self._next_beat:
            return
        now = self._last_beat = self._world.now
        self._node.member = replace(self._node.member, sequence=self._sequence())
        for peer in self.tidings.partners(now):
            self._greet(peer)
        for peer in self.tidings.gone(now):
            self._lose(peer)
        due = [peer for peer, (at, _) in self._absent.items() if at <= now]
        for peer in due[:MAX_DIALS]:
            pause = min(2 * self._absent[peer][1], TIMING.known_retry_seconds)
            self._absent[peer] = (now + pause * self._rng.uniform(0.5, 1.5), pause)
            self._greet(peer)
        self._beat_at(now + HEARTBEAT * self._rng.uniform(0.9, 1.1))

    def _sequence(self) -> int:
        return max(self._node.member.sequence + 1, int(self._world.now * 1000))

    def _greet(self, peer: PeerId) -> None:
        if peer in self._greeting:
            return
        self._greeting.add(peer)
        now = self._world.now
        told = self.tidings.greets(peer, now)
        hello = self._hello(told, peer, known=len(self.roster))

        def done(reply: _Hello) -> None:
            self._greeting.discard(peer)
            self.tidings.arrived(peer, told)
            self._take(reply.records, peer)
            self.tidings.answered(peer, self._world.now)
            self._doubt(reply.silent, peer)

        def failed(refused: bool) -> None:
            self._greeting.discard(peer)
            self.tidings.untold(peer, told)
            if refused and self.tidings.refused(peer, self._world.now):
                self._lose(peer)
            elif not refused and peer in self.tidings.doubts:
                self._greet(peer)

        size = sizes.hello(len(hello.records), len(hello.silent))
        self._call(peer, ("hello", size), lambda o: self._at(o)._answer(hello), done, failed)

    def _hello(self, told: Told, peer: PeerId, known: int = 0) -> _Hello:
        records: list[Any] = [self.roster.newest(name) for name, _ in told]
        return _Hello(
            (self._node.member, *records), self.tidings.silent_for(peer, self._world.now), known
        )

    def _answer(self, hello: _Hello) -> tuple[_Hello, int]:
        caller, now = hello.records[0].peer, self._world.now
        self._take(hello.records, caller)
        self.tidings.answered(caller, now)
        newer = self._doubt(hello.silent, caller)
        told = self.tidings.answers(caller, hello.known, newer, now)
        reply = self._hello(told, caller)
        self.tidings.arrived(caller, told)
        return reply, sizes.hello_reply(len(reply.records), len(reply.silent))

    def _doubt(self, silent: Sequence[Silent], teller: PeerId) -> list[PeerId]:
        newer, ask = self.tidings.hear_silent(silent, teller)
        for peer in ask:
            self._greet(peer)
        return newer

    def _take(self, records: Sequence[Member], carrier: PeerId) -> None:
        now = self._world.now
        for member in records:
            row = self.roster.row(member.peer)
            before = row.member if row else None
            sealed: Any = member  # kept unopened
            if not self.roster.take(member, sealed, now):
                self.tidings.heard_again(member, carrier)
                continue
            self.tidings.took(member, before, carrier, now)
            self._absent.pop(member.peer, None)
            if is_goodbye(member):
                self._node.soon(ev.MemberLost(member.peer))
            elif before is None or (before.phase, before.head) != (member.phase, member.head):
                self._node.soon(ev.MemberSeen(member))

    def _lose(self, peer: PeerId) -> None:
        if self.roster.lose(peer):
            self.tidings.lost(peer)
            self._absent[peer] = (self._world.now, HEARTBEAT)
            self._world.lost(self._node, peer)
            self._node.soon(ev.MemberLost(peer))

    # -- offers ------------------------------------------------------------------------------------
    def announce(self, offers: tuple[Offer, ...]) -> None:
        if self.tidings.direct:
            batch = Batch(offers=offers)
            for peer in self.roster:
                self._send_batch(peer, batch)
            return
        if self._talk.hold(offers):
            self._flush_soon()
        for peer, batch in for_leavers(offers, self.roster):
            self._send_batch(peer, batch)
        summary = self._talk.summary()
        for peer in draw(self._rng, list(self.roster), COMPARED_WITH) if summary else ():
            self._send_batch(peer, summary)

    def _flush_soon(self) -> None:
        if not self._flushing:
            self._flushing = True
            self._node.later(max(0.0, self._next_flush - self._world.now), self._flush)

    def _flush(self) -> None:
        self._flushing = False
        self._next_flush = self._world.now + TIMING.batch_seconds
        for peer in draw(self._rng, list(self.roster), PARTNERS):
            if batch := self._talk.batch_for(peer):
                self._send_batch(peer, batch)
        if self._talk.has_news:
            self._flush_soon()

    def _send_batch(self, peer: PeerId, batch: Batch) -> None:
        me = self._node.name
        self._call(
            peer,
            ("announcement", sizes.of_batch(batch)),
            lambda o: self._at(o)._hear_batch(batch, me),
            lambda reply: self._hear_offers(reply, peer),
            lambda refused: self._talk.untold(peer, batch),
        )

    def _hear_batch(self, batch: Batch, teller: PeerId) -> tuple[Batch, int]:
        self._hear_offers(batch, teller)
        reply = Batch() if self.tidings.direct else self._talk.answer(batch, teller)
        return reply, sizes.of_batch(reply)

    def _hear_offers(self, batch: Batch, teller: PeerId) -> None:
        if self.tidings.direct:
            return self._node.soon(ev.OffersHeard(teller, batch.offers))
        for holder, offers in self._talk.hear(teller, batch, self.roster, self._world.now):
            self._node.soon(ev.OffersHeard(holder, offers))
        return self._flush_soon() if self._talk.has_news else None

    # -- manifests ---------------------------------------------------------------------------------
    def publish(self, manifest: Manifest) -> None:
        self._relay.is_new(manifest.digest)
        everybody = list(self.roster)
        direct = self.tidings.direct
        chosen = everybody if direct else draw(self._rng, everybody, PUBLISHED_TO)
        self._pass_on(manifest, chosen)

    def _pass_on(self, manifest: Manifest, peers: Sequence[PeerId]) -> None:
        me, size = self._node.name, sizes.publication(len(manifest.entries))
        for peer in peers:
            self._call(
                peer,
                ("publication", size),
                lambda o: self._at(o)._hear_manifest(manifest, me),
                lambda reply: None,
                lambda refused: None,
            )

    def _hear_manifest(self, manifest: Manifest, teller: PeerId) -> tuple[None, int]:
        if not self._relay.is_new(manifest.digest):
            return None, 0
        far = not self.tidings.direct and manifest.proposer in self.roster
        if far and self._relay.may_pass(manifest.proposer, self._world.now):
            others = [p for p in self.roster if p not in (teller, manifest.proposer)]
            self._pass_on(manifest, draw(self._rng, others, RELAYED_TO))
        self._node.hear(ev.ManifestHeard(manifest.proposer, manifest))
        return None, 0

    # -- calls -------------------------------------------------------------------------------------
    @staticmethod
    def _at(other: SimNode) -> MouthToMouth:
        assert isinstance(other.words, MouthToMouth)
        return other.words

    def _call(
        self,
        peer: PeerId,
        what: tuple[str, int],
        serve: Callable[[SimNode], tuple[Any, int]],
        done: Callable[[Any], None],
        failed: Callable[[bool], None],
    ) -> None:
        """A request and its answer, either of which may be lost; a crashed node may refuse."""
        world, node = self._world, self._node
        kind, size = what
        world.count(node, kind, size)
        other = world.nodes[peer]

        def give_up() -> None:
            node.later(TIMING.ask_seconds, lambda: failed(False))

        def arrive() -> None:
            if not other.alive and world.joined(node, other) and world.refuses:
                return node.later(0.0, lambda: failed(True))
            if not world.reach(node, other):
                return give_up()
            answer, back = serve(other)
            world.count(other, kind, back)
            if world.random.random() < world.faults.loss:
                return give_up()
            return node.later(world.random.uniform(*world.faults.delay), lambda: done(answer))

        if world.random.random() < world.faults.loss:
            give_up()
        else:
            world.at(world.now + world.random.uniform(*world.faults.delay), arrive)
