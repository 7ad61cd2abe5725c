"""When a round closes, and who proposes its manifest.

Rule: `rules.py` has the arithmetic; here it meets the facts of one node.
"""

from __future__ import annotations

from demoloco.rounds.effects import Effect, Propose
from demoloco.rounds.open_round import OpenRound
from demoloco.rounds.rules import before, closes_at, entries_of, ramp, rank_of
from demoloco.rounds.state import State
from demoloco.rounds.turns import Turns, taken, turns
from demoloco.types import Draft, short


def close(state: State, round_: OpenRound, now: float) -> list[Effect]:
    """Propose the manifest if the round may close and it is my turn."""
    expected = turns_of(state, round_).expected
    pace = state.settings.pace
    arrivals = round_.observe(expected, now, pace)
    at, why = closes_at(expected, round_.present, arrivals, pace.max_contributors, state.tempo)
    if round_.quorum is None:
        state.wakes.extend(round_.arrivals.values())  # mine may count only later
    state.why = _reason(state, why)
    if round_.drafted or at is None:
        return []
    if now < state.reunion_until and not state.members and state.leaving is None:
        state.why = "looking for the members that were here before"
        at = state.reunion_until
    if now < at:
        round_.closable = None
        state.wakes.append(at)
        return []
    round_.closable = now if round_.closable is None else round_.closable
    return _propose(state, round_, now)


def turns_of(state: State, round_: OpenRound) -> Turns:
    """Who is in turn, of those who took part when the round opened and still do."""
    assert state.chain is not None
    still = state.company()
    counts = state.labour.worker and (state.leaving is None or not state.members.contributing())
    if round_.turns is None or round_.turns[:2] != (still, counts):
        peers = round_.candidates & (still | {state.settings.me} if counts else still)
        most, last = state.settings.pace.max_contributors, state.chain.last_rounds()
        found = turns(peers, last, round_.parent, round_.round, most)
        round_.turns = still, counts, found
    return round_.turns[2]


def _propose(state: State, round_: OpenRound, now: float) -> list[Effect]:
    assert state.chain is not None
    assert round_.closable is not None
    me, pace = state.settings.me, state.settings.pace
    if state.leaving is not None and state.members.contributing():
        return []
    able = state.company()
    contributors = state.chain.contributors(round_.parent)
    ahead = before(me, round_.parent, contributors, able)
    wait = state.tempo.turn()
    turn = round_.closable + len(ahead) * wait
    if round_.heard is not None:  # somebody proposed; give its packets time to arrive
        turn = max(turn, round_.heard + max(wait, state.tempo.fetching()) + len(ahead) * wait)
    if now < turn:
        whose = f"the manifest of {short(ahead[0])}" if ahead else "the packets of a manifest"
        state.why = f"waiting for {whose} for round {round_.round}"
        state.wakes.append(turn)
        return []
    round_.drafted = True
    offers = round_.present
    norms = {offer.packet: state.held[offer.packet].norm for offer in offers.values()}
    shares = ramp(offers, state.chain.first_rounds(), round_.round, pace.ramp_rounds)
    last, leaving = state.chain.last_rounds(), state.members.leaving()
    told = taken(offers.values(), last, round_.parent, pace.max_contributors, leaving)
    entries = entries_of(told, norms, shares)
    draft = Draft(
        run=state.settings.run,
        round=round_.round,
        parent=round_.parent,
        state=state.fingerprint,
        proposer=me,
        rank=rank_of(me, round_.parent, contributors, able),
        samples_total=state.chain.head.samples_total + sum(entry.samples for entry in entries),
        entries=entries,
    )
    return [Propose(draft)]


def _reason(state: State, closing: str) -> str:
    """What the operator reads: my own work comes before the others'."""
    labour = state.labour
    if labour.training and (state.round is None or state.round.mine is None):
        passed = state.round is not None and state.round.passed
        return f"training, not in turn; {closing}" if passed else "training"
    if labour.contributing:
        return "making the packet"
    if state.settings.has_worker and not labour.worker:
        return f"waiting for the worker; {closing}"
    return closing
