"""Small tables of facts: the settings, who is there, what the worker does, what is under way.

Rule: a table knows no event and no effect; it notes and answers.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass, field

from demoloco.rounds.rules import Pace, heavier
from demoloco.types import Digest, Head, Member, Offer, PeerId, Phase

RETRY_SECONDS = 0.5
MAX_RETRY_SECONDS = 15.0
MAX_TRIES = 6
"""After so many failures a thing counts as not to be had from the members there are."""

ASIDE_SECONDS = 60.0
"""So long a head is left aside that is not to be had."""

MAX_REFUSED = 1024

CONTRIBUTING = frozenset({Phase.TRAINING, Phase.EXCHANGING})


@dataclass(frozen=True, kw_only=True, slots=True)
class Settings:
    """What a machine is told once."""

    me: PeerId
    run: Digest
    creator: PeerId
    pace: Pace
    inner_steps: int
    leave_seconds: float
    snapshot_bytes: int
    snapshot_every: int  # rounds between two snapshots that members serve
    step_samples: int  # of one inner step
    round_seconds: float = 0.0  # between two packets; 0 = inner_steps
    overlap: int = 1  # 0: rest while my packet is out
    stop_after: int = 0  # rounds; 0 = never
    has_worker: bool = True  # False: a node that never contributes


@dataclass(slots=True)
class Labour:
    """What the worker does, as far as the protocol cares."""

    worker: bool = False  # it is there
    fresh: bool = True  # it has not trained yet
    standing: bool = False  # it was told to stand on the agreed state
    training: bool = False
    began: float = 0.0  # when the time for the packet that lacks began
    spare: bool = False  # the steps under way are beyond those of a round
    cut: bool = False
    contributing: bool = False  # it makes a packet
    ready: bool = False  # what it trained is not in a packet yet
    owed_samples: int = 0

    def trained(self, samples: int, out: int) -> None:
        """`out`: samples of my packet for the open round."""
        self.training = self.cut = self.fresh = False
        self.owed_samples += samples
        self.ready = self.owed_samples > out

    def account(self, told: int, untold: int) -> None:
        """What entered and left the winning chain is no longer owed, or owed again."""
        self.owed_samples = max(0, self.owed_samples + untold - told)
        self.ready = self.ready and self.owed_samples > 0

    def forget(self, samples: int) -> int:
        """The model has not so many of the samples that are owed; how many that is."""
        lost = min(samples, self.owed_samples)
        self.account(told=lost, untold=0)
        return lost


@dataclass(slots=True)
class Leaving:
    """An orderly end under way."""

    until: float
    tell: bool  # contribute first what is trained


class Members:
    """Peers live now, in their own words. What is asked at every event is kept ready."""

    def __init__(self) -> None:
        self._seen: dict[PeerId, Member] = {}
        self._contributing: frozenset[PeerId] = frozenset()
        self._leaving: frozenset[PeerId] = frozenset()
        self._claims: Counter[Head] = Counter()  # how many claim each head

    def see(self, member: Member) -> None:
        """The newest word of a peer counts; what comes out of order is ignored."""
        old = self._seen.get(member.peer)
        if old is None or old.sequence <= member.sequence:
            self._seen[member.peer] = member
            self._count(member.peer, old, member)

    def lose(self, peer: PeerId) -> None:
        self._count(peer, self._seen.pop(peer, None), None)

    def _count(self, peer: PeerId, old: Member | None, new: Member | None) -> None:
        if new is not None and new.head is not None:
            self._claims[new.head] += 1
        if old is not None and old.head is not None:
            self._claims[old.head] -= 1
            if not self._claims[old.head]:
                del self._claims[old.head]
        phase = new.phase if new is not None else None
        self._contributing = _with(self._contributing, peer, phase in CONTRIBUTING)
        self._leaving = _with(self._leaving, peer, phase is Phase.LEAVING)

    def __contains__(self, peer: PeerId) -> bool:
        return peer in self._seen

    def __len__(self) -> int:
        return len(self._seen)

    def live(self) -> tuple[PeerId, ...]:
        return tuple(self._seen)

    def contributing(self) -> frozenset[PeerId]:
        """Who takes part in the open round: who trains for it, or has its packet out. The same
        object as long as nothing changes."""
        return self._contributing

    def leaving(self) -> frozenset[PeerId]:
        """Who is on its way out, and not gone yet; likewise."""
        return self._leaving

    def ahead(self) -> list[tuple[PeerId, Head]]:
        """Who has an agreed state, heaviest head first."""
        pairs = [(p, seen.head) for p, seen in self._seen.items() if seen.head is not None]
        pairs.sort(key=lambda pair: (-pair[1].samples_total, pair[1].rank, pair[1].digest, pair[0]))
        return pairs

    def heads(self) -> Collection[Head]:
        """What they say of their heads, each once."""
        return self._claims.keys()

    def behind(self, head: Head) -> frozenset[PeerId]:
        """Who takes part, or leaves, and has not reached this round."""
        return frozenset(
            peer
            for peer in self._contributing | self._leaving
            if (theirs := self._seen[peer].head) is not None and heavier(head, theirs)
        )


def _with(peers: frozenset[PeerId], peer: PeerId, belongs: bool) -> frozenset[PeerId]:
    """The same object where nothing changes."""
    if belongs == (peer in peers):
        return peers
    return peers | {peer} if belongs else peers - {peer}


class Refused:
    """What is false: the newest MAX_REFUSED of them."""

    def __init__(self) -> None:
        self._names: dict[Digest | Offer, None] = {}

    def add(self, name: Digest | Offer) -> None:
        self._names[name] = None
        if len(self._names) > MAX_REFUSED:
            del self._names[next(iter(self._names))]

    def __contains__(self, name: Digest | Offer) -> bool:
        return name in self._names


@dataclass(slots=True)
class _Errand:
    under_way: bool = True
    tries: int = 1
    again: float = 0.0
    began: float = 0.0


@dataclass(slots=True)
class Errands:
    """What is being fetched, and when to try again what failed."""

    _by_name: dict[Digest, _Errand] = field(default_factory=dict)

    def begin(self, name: Digest, now: float) -> float | None:
        """None = go; else the time from which to try again (infinity while it is under way)."""
        errand = self._by_name.get(name)
        if errand is None:
            self._by_name[name] = _Errand(began=now)
            return None
        if errand.under_way:
            return float("inf")
        if now < errand.again:
            return errand.again
        errand.under_way = True
        errand.tries += 1
        return None

    def done(self, name: Digest) -> None:
        self._by_name.pop(name, None)

    def failed(self, name: Digest, now: float) -> None:
        errand = self._by_name.get(name)
        if errand is not None:
            errand.under_way = False
            errand.again = now + min(MAX_RETRY_SECONDS, RETRY_SECONDS * 2.0 ** (errand.tries - 1))

    def give_another_chance(self, name: Digest) -> None:
        """Begin anew with what has failed too often."""
        if self.hopeless(name):
            self.done(name)

    def seconds(self, name: Digest, now: float) -> float:
        """Since it was first begun; 0 if it was not."""
        errand = self._by_name.get(name)
        return now - errand.began if errand is not None else 0.0

    def tries(self, name: Digest) -> int:
        errand = self._by_name.get(name)
        return errand.tries if errand is not None else 0

    def hopeless(self, name: Digest) -> bool:
        errand = self._by_name.get(name)
        return errand is not None and not errand.under_way and errand.tries >= MAX_TRIES

    def forget_idle(self) -> None:
        """Nothing that is not under way is wanted any longer."""
        self._by_name = {name: e for name, e in self._by_name.items() if e.under_way}
