"""What one node wants of its own worker: stand on the agreed state, train, make the packet.

Rule: one thing at a time, and the next one only when the last is done; and never idle: what is
trained while others are waited for is told later, with its weight.
"""

from __future__ import annotations

from demoloco.rounds.closing import turns_of
from demoloco.rounds.effects import Contribute, Cut, Effect, Settle, Train
from demoloco.rounds.open_round import OpenRound
from demoloco.rounds.rules import quorum_of
from demoloco.rounds.state import State
from demoloco.types import Round


def work(state: State, round_: OpenRound, now: float) -> list[Effect]:
    """The next thing to do, marked as under way."""
    labour = state.labour
    if not labour.worker:
        return []
    wanted: list[Effect] = []
    if not labour.standing:
        labour.standing = True
        wanted.append(Settle())
    if labour.training:
        if not labour.cut and (least := _cut(state, round_, now)) is not None:
            labour.cut = True
            wanted.append(Cut(least))
    elif labour.contributing:
        pass
    elif labour.ready and round_.mine is None and _tells(state, round_, now):
        labour.contributing = True
        wanted.append(Contribute(round_.round, round_.parent, labour.owed_samples))
    else:
        wanted += _train(state, round_, now)
    return wanted


def _train(state: State, round_: OpenRound, now: float) -> list[Effect]:
    labour = state.labour
    if labour.ready and not round_.is_over and state.leaving is None:
        round_.passed, labour.ready = True, False
    next_ = _trains_for(state, round_)
    if next_ is None:
        return []
    labour.training, labour.began, labour.spare = True, now, labour.ready
    return [Train(next_, _steps(state, round_))]


def _trains_for(state: State, round_: OpenRound) -> Round | None:
    """The round whose packet lacks: while mine is out for this one, the next. None = no more."""
    if state.leaving is not None:
        return None
    if not round_.is_over:
        return round_.round
    rests = round_.mine is not None and not state.settings.overlap
    last = round_.round == state.settings.stop_after
    return None if rests or last else Round(round_.round + 1)


def _steps(state: State, round_: OpenRound) -> int | None:
    """Fewer for a worker that came back with a part of them, and at least one; None = until they
    are cut."""
    labour, settings = state.labour, state.settings
    if labour.spare or settings.round_seconds > 0:
        return None
    if not labour.fresh:
        return settings.inner_steps
    untold = labour.owed_samples - round_.samples_out
    return max(1, settings.inner_steps - untold // settings.step_samples)


def _cut(state: State, round_: OpenRound, now: float) -> int | None:
    """How many steps must be made before the packet is; None = go on."""
    labour, settings = state.labour, state.settings
    if state.leaving is not None:
        return 0
    if round_.mine is not None:
        return None
    if round_.passed:
        return 1 if _tells(state, round_, now) else None
    if labour.spare:
        return 1
    if settings.round_seconds == 0:
        return None
    due = labour.began + settings.round_seconds
    if now < due and not _quorum_is_out(state, round_):
        state.wakes.append(due)
        return None
    if _tells(state, round_, now):
        return 1
    round_.passed, labour.began = True, now
    return None


def _quorum_is_out(state: State, round_: OpenRound) -> bool:
    """Have enough of the others announced their packets?"""
    others = turns_of(state, round_).expected - {state.settings.me}
    out = {offer.contributor for offer in state.offers.under(round_.parent)}
    return bool(others) and len(others & out) >= quorum_of(len(others), state.settings.pace)


def _tells(state: State, round_: OpenRound, now: float) -> bool:
    """Am I to make a packet for this round: in turn, on my way out, or is nobody's coming?"""
    if state.leaving is not None:
        return state.leaving.tell
    if state.settings.me in turns_of(state, round_):
        return True
    silent = round_.opened + state.tempo.silence()
    if now < silent:
        state.wakes.append(silent)
    return now >= silent and not round_.present
