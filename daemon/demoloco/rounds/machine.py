"""The round protocol as a state machine: `handle(event, now)` returns what is wanted.

Rules. No I/O, no clock, no randomness: the same events at the same times give the same effects.
`state.py` notes facts, `decide.py` wants things; docs/protocol.md says in sentences what the two
do.
"""

from __future__ import annotations

from demoloco.rounds.decide import decide
from demoloco.rounds.effects import Effect
from demoloco.rounds.events import Event
from demoloco.rounds.facts import Settings
from demoloco.rounds.state import State
from demoloco.types import Digest, Head, Phase


class Machine:
    """One node's part in the protocol."""

    def __init__(self, settings: Settings) -> None:
        self.state = State(settings)

    def handle(self, event: Event, now: float) -> list[Effect]:
        """Take one event in; the effects are to be carried out in their order.

        `now`: seconds on a monotonic clock, never less than in the call before."""
        wanted = self.state.note(event, now)
        return wanted if self.state.stopped else wanted + decide(self.state, now)

    def why(self) -> str:
        """What the node waits for, in words; never empty."""
        return self.state.why

    @property
    def head(self) -> Head | None:
        """The head whose agreed state this node has applied; None while joining."""
        return self.state.chain.head if self.state.chain is not None else None

    @property
    def fingerprint(self) -> Digest:
        """Of the agreed state after `head`."""
        return self.state.fingerprint

    @property
    def phase(self) -> Phase:
        return self.state.phase()
