"""Which members may be gone, in a swarm where nobody asks everybody.

Rule: a member is lost only when this node itself asked it again and again without an answer, and
nobody brought a newer word of it; what others say makes a node ask, no more. Times are passed in.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from demoloco.types import PeerId

MAX_ASKED = 16
"""Doubtful members that one beat asks."""

MAX_SILENT = 16
"""Doubtful members that one hello names."""

MAX_WITNESSES = 3
MIN_UNANSWERED = 2
"""Questions without an answer after which others are told; one more, and it may be given up."""
OTHERS_SHARE = 0.5
"""What others say counts for this share of the patience at most: that they asked in vain, or that
they have a newer word, which may be from before the end."""


@dataclass(slots=True)
class _Doubt:
    since: float | None = None  # the first question without an answer
    unanswered: int = 0
    refused: bool = False
    granted: float | None = None  # seconds for which others asked, where others told
    witnesses: list[PeerId] = field(default_factory=list)  # were told; they may know better soon

    @property
    def serious(self) -> bool:
        """Whether others are to hear of it."""
        enough = MIN_UNANSWERED if self.granted is None else 1
        return self.refused or self.unanswered >= enough


class Doubts:
    """What this node asked and was not answered."""

    def __init__(self) -> None:
        self._doubts: dict[PeerId, _Doubt] = {}

    def __contains__(self, peer: PeerId) -> bool:
        return peer in self._doubts

    def is_serious(self, peer: PeerId) -> bool:
        """Whether others are told of it."""
        return peer in self._doubts and self._doubts[peer].serious

    def asked(self, peer: PeerId, now: float) -> None:
        """A question is on its way."""
        doubt = self._doubts.setdefault(peer, _Doubt())
        doubt.since = now if doubt.since is None else doubt.since

    def unanswered(self, peer: PeerId) -> None:
        """The question was in vain."""
        if peer in self._doubts:
            self._doubts[peer].unanswered += 1

    def refused(self, peer: PeerId) -> None:
        """Its machine is there and nobody listens."""
        if peer in self._doubts:
            self._doubts[peer].refused = True

    def answered(self, peer: PeerId) -> bool:
        """It is there; True if others may have been told that it is silent."""
        doubt = self._doubts.pop(peer, None)
        return doubt is not None and doubt.serious

    def newer(self, peer: PeerId, now: float, patience: float) -> bool:
        """Another brought a newer word of it; True as for `answered`."""
        doubt = self._doubts.get(peer)
        if doubt is None:
            return False
        if doubt.since is not None:
            doubt.since = max(doubt.since, now - patience * OTHERS_SHARE)
            doubt.granted = None
        return doubt.serious

    def hear(self, peer: PeerId, seconds: float = 0.0) -> None:
        """Another says that it asked it for so long in vain: ask it."""
        doubt = self._doubts.setdefault(peer, _Doubt())
        doubt.granted = max(seconds, doubt.granted or 0.0)

    def seconds(self, peer: PeerId, now: float) -> float:
        """For how long it has been asked in vain, here or where that was heard."""
        doubt = self._doubts.get(peer)
        if doubt is None or doubt.since is None:
            return 0.0
        return max(now - doubt.since, doubt.granted or 0.0)

    def to_ask(self) -> list[PeerId]:
        """Whom to ask again, longest silent first."""
        inf = float("inf")
        order = sorted(
            self._doubts, key=lambda peer: inf if (at := self._doubts[peer].since) is None else at
        )
        return order[:MAX_ASKED]

    def silent(self, teller_to: PeerId) -> list[PeerId]:
        """Whom to name to this peer; it is a witness from then on."""
        named = [p for p, doubt in self._doubts.items() if doubt.serious][:MAX_SILENT]
        for peer in named:
            witnesses = self._doubts[peer].witnesses
            if teller_to not in witnesses:
                witnesses.append(teller_to)
                del witnesses[:-MAX_WITNESSES]
        return named

    def witnesses(self) -> set[PeerId]:
        """One of those who were told of each doubt: its answer may be there by now."""
        told = (doubt.witnesses for doubt in self._doubts.values())
        return {names[0] for names in told if names}

    def gone(self, now: float, patience: float) -> list[PeerId]:
        """Who was asked for so long in vain."""
        return [
            peer
            for peer, doubt in self._doubts.items()
            if doubt.since is not None
            and doubt.unanswered > MIN_UNANSWERED
            and now - doubt.since + min(doubt.granted or 0.0, patience * OTHERS_SHARE) >= patience
        ]

    def drop(self, peer: PeerId) -> None:
        self._doubts.pop(peer, None)

    def forgive(self, seconds: float) -> None:
        """This node itself was away for so long."""
        for doubt in self._doubts.values():
            if doubt.since is not None:
                doubt.since += seconds
