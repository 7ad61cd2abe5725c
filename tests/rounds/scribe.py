"""Writes down what machines hear and want, so that people can read it.

Rule: every digest gets a name when it is first met, so equal runs give equal texts.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import fields

from benchmarks.simulator.parts import RUN
from demoloco.rounds import effects as ef
from demoloco.rounds import events as ev
from demoloco.types import Digest, Draft, Head, Manifest, Member, Offer, Phase

LEFT_OUT = {"size", "run", "parent", "state", "fingerprint"}
RARE = {"lost", "told", "untold", "unknown"}  # shown where there is something to show


class Scribe:
    """A transcript: one line an event, one line an effect under it."""

    def __init__(self, only: Collection[str] = ()) -> None:
        self.lines: list[str] = []
        self._only = only
        self._names: dict[Digest, str] = {RUN: "genesis"}

    def title(self, text: str) -> None:
        self.lines += ([""] if self.lines else []) + [f"# {text}"]

    def begin(self, text: str) -> None:
        """What went before is not part of the story."""
        self.lines.clear()
        self.title(text)

    def write(self, now: float, node: str, event: ev.Event, effects: Collection[ef.Effect]) -> None:
        """A heartbeat that changes nothing is not worth a line."""
        for value in (event, *effects):
            self._meet(value)
        if self._only and node not in self._only:
            return
        if effects or not isinstance(event, ev.MemberSeen | ev.Woken | ev.OffersHeard):
            self.lines.append(f"{now:7.2f} {node:8}{self._text(event)}")
            self.lines += [f"{'':18}→ {self._text(effect)}" for effect in effects]

    def text(self) -> str:
        return "\n".join(self.lines) + "\n"

    # -- names -------------------------------------------------------------------------------------
    def _meet(self, value: object) -> None:
        """Name what this value speaks of."""
        if isinstance(value, Offer):
            self._name(value.packet, f"{value.contributor}/{value.round}")
        elif isinstance(value, Draft):
            for entry in value.entries:
                self._name(entry.packet, f"{entry.contributor}/{value.round}")
            if isinstance(value, Manifest):
                self._name(value.digest, f"M{value.round}")
        elif isinstance(value, Head):
            self._name(value.digest, f"M{value.round}")
        if isinstance(value, tuple):
            for each in value:
                self._meet(each)
        elif hasattr(value, "__dataclass_fields__"):
            for field in fields(value):
                self._meet(getattr(value, field.name))

    def _name(self, digest: Digest, wanted: str) -> None:
        if digest not in self._names:
            while wanted in self._names.values():
                wanted += "'"
            self._names[digest] = wanted

    # -- texts -------------------------------------------------------------------------------------
    def _text(self, value: object) -> str:
        match value:
            case bytes():
                return self._names.get(Digest(value), value.hex()[:8])
            case float():
                return f"{value:.2f}"
            case Head(digest=digest, samples_total=total):
                return f"{self._text(digest)}({total})"
            case Offer(packet=packet, samples=samples):
                return f"{self._text(packet)}({samples})"
            case Member(peer=peer, phase=phase, head=head):
                return f"{peer} {phase} at {self._text(head)}"
            case Draft():
                told = " ".join(f"{self._text(e.packet)}({e.samples})" for e in value.entries)
                named = self._text(value.digest) if isinstance(value, Manifest) else "draft"
                return f"{named} of {value.proposer}, rank {value.rank}: {told}"
            case Phase() | str():
                return str(value)
            case tuple():
                return "[" + ", ".join(map(self._text, value)) + "]"
        if not hasattr(value, "__dataclass_fields__"):
            return str(value)
        return f"{type(value).__name__}{self._fields(value)}"

    def _fields(self, value: object) -> str:
        shown = [
            f"{field.name}={self._text(getattr(value, field.name))}"
            for field in fields(value)  # type: ignore[arg-type]
            if field.name not in LEFT_OUT
            and not (field.name in RARE and not getattr(value, field.name))
        ]
        return f"({', '.join(shown)})" if shown else ""
