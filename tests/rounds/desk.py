"""One machine on a desk: events are handed to it, its wishes are read.

Rule: nothing happens here by itself; what the driver would answer, the test says.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from benchmarks.simulator.parts import GENESIS, RUN, digest
from demoloco.rounds import effects as ef
from demoloco.rounds import events as ev
from demoloco.rounds.facts import MAX_RETRY_SECONDS, MAX_TRIES, Settings
from demoloco.rounds.machine import Machine
from demoloco.rounds.rules import Pace, entries_of, head_of, rank_of, succession
from demoloco.types import Digest, Head, Manifest, Member, Offer, PeerId, Phase, Round

ME = PeerId("me")
PACE = Pace(quorum=0.66, max_contributors=64)
E = TypeVar("E")


def offer(contributor: str, parent: Head = GENESIS, samples: int = 10, name: str = "") -> Offer:
    """An announcement of a packet for the round after `parent`."""
    return Offer(
        packet=digest(contributor, parent.digest, name),
        contributor=PeerId(contributor),
        round=Round(parent.round + 1),
        parent=parent.digest,
        samples=samples,
        size=100,
    )


def manifest(
    parent: Head,
    offers: Sequence[Offer],
    proposer: str,
    contributors: Iterable[str] = ("founder",),
    **changes: Any,
) -> Manifest:
    """The proposer's manifest of these packets; `contributors`: those of the parent."""
    entries = entries_of(offers, {o.packet: 1.0 for o in offers})
    by = PeerId(proposer)
    made = Manifest(
        run=RUN,
        round=Round(parent.round + 1),
        parent=parent.digest,
        state=digest("state after", parent.digest),
        proposer=by,
        rank=rank_of(by, parent.digest, [PeerId(c) for c in contributors], ()),
        samples_total=parent.samples_total + sum(o.samples for o in offers),
        entries=entries,
        digest=digest("manifest", parent.digest, proposer, [o.packet for o in offers], changes),
    )
    return replace(made, **changes)


def chain(length: int, who: str = "founder", parent: Head = GENESIS) -> list[Manifest]:
    """Rounds of one contributor alone."""
    made: list[Manifest] = []
    for _ in range(length):
        before = "founder" if parent == GENESIS else who
        made.append(manifest(parent, [offer(who, parent)], who, (before,)))
        parent = head_of(made[-1])
    return made


def in_line(parent: Digest, *peers: str) -> list[PeerId]:
    """These peers in the order in which they may propose."""
    return list(succession(parent, [PeerId(peer) for peer in peers]))


def only(effects: Iterable[object], kind: type[E]) -> list[E]:
    return [effect for effect in effects if isinstance(effect, kind)]


class Desk:
    """A machine, the time, and what it wanted so far."""

    def __init__(self, me: str = ME, creator: str = "founder", **settings: Any) -> None:
        told = {
            "inner_steps": 10,
            "leave_seconds": 20.0,
            "pace": PACE,
            "snapshot_bytes": 10**6,
            "snapshot_every": 5,
            "step_samples": 1,
            **settings,
        }
        self.me = PeerId(me)
        self.machine = Machine(Settings(me=self.me, run=RUN, creator=PeerId(creator), **told))
        self.now = 0.0
        self.wanted: list[ef.Effect] = []  # by the last event

    def hear(self, *events: ev.Event, after: float = 0.0) -> list[ef.Effect]:
        """Let seconds pass, then these events happen; what the machine wants of them all."""
        self.now += after
        self.wanted = []
        for event in events:
            effects = self.machine.handle(event, self.now)
            self.listen(event, effects)
            self.wanted += effects
        return self.wanted

    def listen(self, event: ev.Event, effects: list[ef.Effect]) -> None:
        """Each step passes here; a test may put its own ear in place."""

    def wake(self, after: float) -> list[ef.Effect]:
        return self.hear(ev.Woken(), after=after)

    def fail(self, event: ev.Event, times: int = MAX_TRIES) -> list[ef.Effect]:
        """Whatever is tried again and again ends like this."""
        for tried in range(times):
            if tried:
                self.wake(MAX_RETRY_SECONDS)
            self.hear(event)
        return self.wanted

    def wants(self, kind: type[E]) -> list[E]:
        """What the last event made it want, of this kind."""
        return only(self.wanted, kind)

    # -- what often happens ------------------------------------------------------------------------
    def start(self, *manifests: Manifest, worker: bool = True, **started: Any) -> Desk:
        """On a disk that holds the genesis and these manifests."""
        head = head_of(manifests[-1]) if manifests else GENESIS
        self.hear(ev.Started(head, digest("state after", head.digest), manifests, **started))
        if worker:
            self.hear(ev.WorkerCame())
        return self

    def see(self, peer: str, head: Head | None = GENESIS, phase: Phase = Phase.TRAINING) -> Desk:
        """A member says this of itself now."""
        self.hear(ev.MemberSeen(member(peer, head, phase, sequence=int(self.now * 1000))))
        return self

    def settle_round(self, *peers: str) -> Desk:
        """Open a round in which these members are expected: one of `founder` alone goes before."""
        for peer in peers:
            self.see(peer)
        self.start()
        first = manifest(GENESIS, [offer("founder")], "founder")
        self.get(first)
        for peer in peers:
            self.see(peer, self.head)
        return self

    def get(self, *manifests: Manifest) -> list[ef.Effect]:
        """Manifests, oldest first, with their packets, are heard, fetched and applied."""
        for each in manifests:
            self.hear(ev.ManifestHeard(each.proposer, each))
            for fetch in self.wants(ef.Fetch):
                self.hear(ev.PacketFetched(fetch.packet, 1.0))
            self.apply()
        return self.wanted

    def apply(self, lost: int = 0) -> list[ef.Effect]:
        """What is to be applied is applied."""
        (apply,) = self.wants(ef.Apply)
        head = head_of(apply.redo[-1])
        return self.hear(ev.Applied(head, digest("state after", head.digest), lost))

    def train(self, samples: int = 10) -> list[ef.Effect]:
        return self.hear(ev.Trained(samples))

    def contribute(self, samples: int = 10) -> Offer:
        """The worker trains and makes the packet."""
        self.train(samples)
        (wish,) = self.wants(ef.Contribute)
        mine = replace(offer(self.me, self.head), samples=wish.samples)
        self.hear(ev.Contributed(mine, 1.0))
        return mine

    def receive(self, *offers: Offer, norm: float = 1.0) -> list[ef.Effect]:
        """Packets of others are announced by their contributors, and fetched."""
        for each in offers:
            self.hear(ev.OffersHeard(each.contributor, (each,)))
            self.hear(ev.PacketFetched(each.packet, norm))
        return self.wanted

    def seal(self) -> Manifest:
        """What it proposes, as a manifest."""
        (propose,) = self.wants(ef.Propose)
        fields = {name: getattr(propose.draft, name) for name in propose.draft.__slots__}
        return Manifest(**fields, digest=digest(propose.draft))

    @property
    def head(self) -> Head:
        assert self.machine.head is not None
        return self.machine.head

    @property
    def owed(self) -> int:
        return self.machine.state.labour.owed_samples


def member(
    peer: str, head: Head | None, phase: Phase = Phase.TRAINING, sequence: int = 0
) -> Member:
    return Member(
        peer=PeerId(peer), run=RUN, addresses=(), head=head, phase=phase, sequence=sequence
    )


def at_snapshot(at: Manifest | Head) -> ev.SnapshotFetched:
    """The agreed state after this came."""
    head = at if isinstance(at, Head) else head_of(at)
    made = at if isinstance(at, Manifest) else None
    return ev.SnapshotFetched(head, digest("state after", head.digest), made)
