"""What one node wants of its own worker: stand on the agreed state, train, make the packet.

Rule: one thing at a time, and the next one only when the last is done.
"""

from __future__ import annotations

from demoloco.rounds.effects import Contribute, Cut, Effect, Settle, Train
from demoloco.rounds.open_round import OpenRound
from demoloco.rounds.state import State
from demoloco.types import Round


def work(state: State, round_: OpenRound) -> list[Effect]:
    """The next thing to do, marked as under way."""
    labour, leaving = state.labour, state.leaving
    if not labour.worker:
        return []
    wanted: list[Effect] = []
    if not labour.standing:
        labour.standing = True
        wanted.append(Settle())
    if labour.training:
        if leaving is not None and not labour.cut:
            labour.cut = True
            wanted.append(Cut())
    elif labour.contributing:
        pass
    elif labour.ready:
        if round_.mine is None and (leaving is None or leaving.tell):
            labour.contributing = True
            wanted.append(Contribute(round_.round, round_.parent, labour.owed_samples))
    elif (next_ := _trains_for(state, round_)) is not None:
        labour.training = True
        wanted.append(Train(next_, _steps(state, round_)))
    return wanted


def _steps(state: State, round_: OpenRound) -> int:
    """Fewer for a worker that came back with a part of them, and at least one."""
    labour, settings = state.labour, state.settings
    if not labour.fresh:
        return settings.inner_steps
    untold = labour.owed_samples - round_.samples_out
    return max(1, settings.inner_steps - untold // settings.step_samples)


def _trains_for(state: State, round_: OpenRound) -> Round | None:
    """The round whose packet lacks: while mine is out for this one, the next. None = no more."""
    if state.leaving is not None:
        return None
    if round_.mine is None:
        return round_.round
    return Round(round_.round + 1) if round_.round != state.settings.stop_after else None
