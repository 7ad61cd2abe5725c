"""What one node wants, given all facts: the protocol's will, top-down.

Rule: look at the facts, want what is missing, mark it as under way; never want a thing twice. Every
path leaves a reason in `state.why`.
"""

from __future__ import annotations

from demoloco.rounds.chain import Path
from demoloco.rounds.effects import (
    Announce,
    Apply,
    Commit,
    Contribute,
    Cut,
    Effect,
    Fetch,
    FetchManifests,
    FetchSnapshot,
    Propose,
    Publish,
    Say,
    Settle,
    Stop,
    Train,
    WakeMe,
)
from demoloco.rounds.open_round import OpenRound
from demoloco.rounds.rules import closes_at, entries_of, rank_of, succession, waits_for
from demoloco.rounds.state import SNAPSHOT, State
from demoloco.types import Digest, Draft, Head, Offer, PeerId, short

MAX_REPLAY = 64
"""A node further behind than this many rounds takes a snapshot instead of the packets."""

ANNOUNCE_SECONDS = 3.0
"""What I hold for the open round is announced again this often: words get lost."""


def decide(state: State, now: float) -> list[Effect]:
    """All that is wanted now, in the order in which it is to be done."""
    state.wakes.clear()
    if state.chain is None:
        wanted = _join(state, now)
    elif state.moving is not None:
        state.why = "applying a manifest"
        wanted = []
    elif (target := state.target()) is not None:
        wanted = _approach(state, target, now)
    else:
        wanted = _take_part(state, now)
    return [*wanted, *_leave(state, now), *_speak(state), *_alarm(state, now)]


# -- towards a better head -------------------------------------------------------------------------
def _join(state: State, now: float) -> list[Effect]:
    holders = tuple(peer for peer, _ in state.members.ahead())
    if not holders:
        state.why = "looking for a member that has the agreed state"
        return []
    state.why = f"fetching the agreed state from {len(holders)} member(s)"
    return _errand(state, SNAPSHOT, now, FetchSnapshot(holders))


def _approach(state: State, target: Head, now: float) -> list[Effect]:
    """Get the manifests between, then their packets, then apply: one, or a whole fork."""
    assert state.chain is not None
    try:
        path = state.chain.path_to(target.digest)
    except ValueError as fault:
        return [state.refuse(target.digest, str(fault)), *_take_part(state, now)]
    if _unknown_to_all(state, target, path):
        return [state.refuse(target.digest, "nobody has it"), *_take_part(state, now)]
    if _out_of_reach(state, target, path):
        return _skip_ahead(state, target, now)
    if not isinstance(path, Path):
        return _ask_for_manifests(state, path, target, now)
    step = path if path.undo else Path((), path.redo[:1])
    missing = [e for m in step.redo for e in m.entries if e.packet not in state.norms]
    if missing:
        fetches: list[Effect] = []
        for entry in missing:
            fetches += _fetch(state, entry.packet, entry.size, now)
        if len(path.redo) == 1 and not path.undo:  # if nobody can get them, the succession goes on
            fetches += _take_part(state, now)
        state.why = f"fetching {len(missing)} packet(s) of round {step.redo[0].round}"
        return fetches
    state.moving = step
    state.why = "applying a manifest"
    durable: list[Effect] = [Commit(manifest) for manifest in step.redo]
    told = [Publish(m) for m in step.redo if m.proposer == state.settings.me]
    return [*durable, *told, Apply(step.undo, step.redo)]


def _unknown_to_all(state: State, target: Head, path: Path | Digest) -> bool:
    return path == target.digest and state.errands.hopeless(target.digest)


def _out_of_reach(state: State, target: Head, path: Path | Digest) -> bool:
    """Too far, or the way is blocked: a snapshot is the only way."""
    assert state.chain is not None
    if not isinstance(path, Path):
        return target.round > state.chain.head.round + MAX_REPLAY or state.errands.hopeless(path)
    if len(path.redo) > MAX_REPLAY or any(m.digest in state.broken for m in path.redo):
        return True
    packets = (e.packet for m in path.redo[:1] for e in m.entries)
    return len(path.redo) > 1 and any(state.errands.hopeless(packet) for packet in packets)


def _skip_ahead(state: State, target: Head, now: float) -> list[Effect]:
    state.why = f"fetching a snapshot on the way to round {target.round}"
    holders = tuple(peer for peer, _ in state.members.ahead())
    return _errand(state, SNAPSHOT, now, FetchSnapshot(holders)) if holders else []


def _ask_for_manifests(state: State, missing: Digest, target: Head, now: float) -> list[Effect]:
    state.why = f"asking for the manifests up to round {target.round}"
    ahead = state.members.ahead()
    holders = [p for p, head in ahead if head.digest == target.digest] or [p for p, _ in ahead]
    if not holders:
        return []
    holder = holders[state.errands.tries(missing) % len(holders)]
    return _errand(state, missing, now, FetchManifests(holder, missing))


def _fetch(state: State, packet: Digest, size: int, now: float) -> list[Effect]:
    holders = dict.fromkeys((*state.offers.holders(packet), *state.members.live()))
    holders.pop(state.settings.me, None)
    offer = state.offers.find(packet)
    fetch = Fetch(packet, size, tuple(holders), offer)
    return _errand(state, packet, now, fetch) if holders else []


def _errand(state: State, name: Digest, now: float, effect: Effect) -> list[Effect]:
    """Want it unless it is under way, or failed a moment ago: then look again later."""
    again = state.errands.begin(name, now)
    if again is None:
        return [effect]
    state.wakes.append(again)
    return []


# -- the open round --------------------------------------------------------------------------------
def _take_part(state: State, now: float) -> list[Effect]:
    """My head is the best I know: work, tell, collect, close."""
    assert state.round is not None
    return [
        *_work(state, state.round),
        *_collect(state, state.round, now),
        *_tell(state, state.round, now),
        *_close(state, state.round, now),
    ]


def _work(state: State, round_: OpenRound) -> list[Effect]:
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
    elif labour.contributing or round_.mine is not None:
        pass
    elif labour.ready and (leaving is None or leaving.tell):
        labour.contributing = True
        wanted.append(Contribute(round_.round, round_.parent, labour.owed_samples))
    elif leaving is None:
        labour.training = True
        wanted.append(Train(round_.round, state.settings.inner_steps))
    return wanted


def _collect(state: State, round_: OpenRound, now: float) -> list[Effect]:
    """Fetch what is announced for the open round."""
    wanted: list[Effect] = []
    for offer in state.offers.under(round_.parent):
        if offer.packet not in state.norms and offer.round == round_.round:
            wanted += _fetch(state, offer.packet, offer.size, now)
    return wanted


def _present(state: State, round_: OpenRound) -> dict[PeerId, Offer]:
    """One packet a contributor that is here and checked."""
    held = state.offers.held(round_.parent, state.norms)
    present = {peer: offer for peer, offer in held.items() if offer.round == round_.round}
    if round_.mine is not None:
        present[state.settings.me] = round_.mine
    return present


def _tell(state: State, round_: OpenRound, now: float) -> list[Effect]:
    """Announce mine at once, and all that I hold again and again."""
    held = tuple(_present(state, round_).values())
    if not held or not state.members.live():
        return []
    again = round_.announced + ANNOUNCE_SECONDS
    if now < again:
        state.wakes.append(again)
        return []
    round_.announced = now
    state.wakes.append(now + ANNOUNCE_SECONDS)
    return [Announce(held)]


def _close(state: State, round_: OpenRound, now: float) -> list[Effect]:
    """Propose the manifest if the round may close and it is my turn."""
    present = _present(state, round_)
    expected = _expected(state, round_)
    arrivals = round_.observe(present, expected, now, state.settings.pace)
    at, why = closes_at(expected, present, arrivals, state.settings.pace)
    state.why = _reason(state, why)
    if round_.drafted or at is None:
        return []
    if now < at:
        round_.closable = None
        state.wakes.append(at)
        return []
    round_.closable = now if round_.closable is None else round_.closable
    return _propose(state, round_, present, now)


def _expected(state: State, round_: OpenRound) -> frozenset[PeerId]:
    """Who is waited for: who trained when the round opened and still does."""
    still = state.members.contributing()
    if state.labour.worker and state.leaving is None:
        still |= {state.settings.me}
    return round_.expected & still


def _propose(
    state: State, round_: OpenRound, present: dict[PeerId, Offer], now: float
) -> list[Effect]:
    assert state.chain is not None
    assert round_.closable is not None
    me, pace = state.settings.me, state.settings.pace
    able = state.members.contributing()
    contributors = state.chain.contributors(round_.parent)
    if state.leaving is not None and able:
        return []
    before = waits_for(me, round_.parent, contributors, able)
    turn = round_.closable + before * pace.succession_seconds
    if round_.heard is not None:  # somebody proposed; give its packets time to arrive
        turn = max(turn, round_.heard + (before + 1) * pace.succession_seconds)
    if now < turn:
        first = next(p for p in succession(round_.parent, {*contributors, *able, me}) if p != me)
        state.why = f"waiting for the manifest of round {round_.round} from {short(first)}"
        state.wakes.append(turn)
        return []
    round_.drafted = True
    entries = entries_of(tuple(present.values()), state.norms, pace.max_contributors)
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
    if labour.training:
        return "training"
    if labour.contributing:
        return "making the packet"
    if state.settings.has_worker and not labour.worker:
        return f"waiting for the worker; {closing}"
    return closing


# -- the end, and words ----------------------------------------------------------------------------
def _leave(state: State, now: float) -> list[Effect]:
    """Stop when all that can be told is told, or the time is up."""
    if state.leaving is None:
        return []
    if now < state.leaving.until and not _all_told(state):
        state.wakes.append(state.leaving.until)
        state.why = f"leaving: {state.why}"
        return []
    state.stopped = True
    state.why = "left"
    return [Stop()]


def _all_told(state: State) -> bool:
    if state.chain is None or state.round is None:
        return True
    labour, mine = state.labour, state.round.mine
    busy = labour.training or labour.contributing or state.moving is not None
    if busy or (labour.ready and state.leaving is not None and state.leaving.tell):
        return False
    live = state.members.contributing()
    if mine is not None:
        return bool(live) and live <= {*state.round.served, *state.offers.holders(mine.packet)}
    return not state.members.behind(state.chain.head)


def _speak(state: State) -> list[Effect]:
    say = Say(state.phase(), state.chain.head if state.chain is not None else None)
    if say == state.said:
        return []
    state.said = say
    return [say]


def _alarm(state: State, now: float) -> list[Effect]:
    """One WakeMe is out at a time: the earliest; those in the past are of no use."""
    times = [at for at in state.wakes if now < at < float("inf")]
    if state.stopped or not times:
        return []
    at = min(times)
    if state.wake is not None and state.wake <= at:
        return []
    state.wake = at
    return [WakeMe(at)]
