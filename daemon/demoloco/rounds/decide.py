"""What one node wants, given all facts: the protocol's will, top-down.

Rule: look at the facts, want what is missing, mark it as under way; never want a thing twice. Every
path leaves a reason in `state.why`.
"""

from __future__ import annotations

from demoloco.rounds.chain import MAX_REPLAY, Path
from demoloco.rounds.closing import close
from demoloco.rounds.effects import (
    Announce,
    Apply,
    Commit,
    Effect,
    Fetch,
    FetchManifests,
    FetchSnapshot,
    Note,
    Publish,
    Say,
    Stop,
    WakeMe,
)
from demoloco.rounds.open_round import OpenRound
from demoloco.rounds.rules import (
    head_of,
    heavier,
    line,
    missing_bytes,
    offers_of,
)
from demoloco.rounds.state import SNAPSHOT, State
from demoloco.rounds.work import work
from demoloco.types import Digest, Head, Offer, PeerId

MANY = 8
"""Up to so many other members hear every word (swarm/gossip/rumours.py: DIRECT)."""

ENOUGH = 3
"""Where they are more, a leaver goes when so many of those that matter have what it leaves."""

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
    else:
        wanted = _go_on(state, now)
    return [*wanted, *_leave(state, now), *_speak(state), *_alarm(state, now)]


# -- towards a better head -------------------------------------------------------------------------
def _join(state: State, now: float) -> list[Effect]:
    holders = tuple(peer for peer, _ in state.members.ahead())
    if not holders:
        state.why = "looking for a member that has the agreed state"
        return []
    state.why = f"fetching the agreed state from {len(holders)} member(s)"
    return [FetchSnapshot(holders)] if _may_begin(state, SNAPSHOT, now) else []


def _go_on(state: State, now: float) -> list[Effect]:
    """Towards the best head that can be had, or on with the open round if mine is the best."""
    notes: list[Effect] = []
    while (target := state.target()) is not None:
        way = _way_to(state, target, now)
        if not isinstance(way, Note):
            return [*notes, *_approach(state, target, way, now)]
        notes.append(way)
    return [*notes, *_take_part(state, now)]


def _way_to(state: State, target: Head, now: float) -> Path | Digest | Note:
    """The path, or the first manifest that is missing on it; a Note if the target is false, or not
    to be had for now: then it is no target any longer."""
    assert state.chain is not None
    try:
        way = state.chain.path_to(target.digest)
    except ValueError as fault:
        return state.refuse(target.digest, str(fault))
    if isinstance(way, Path):
        false = any(state.is_false(manifest) for manifest in _step(way).redo)
    else:
        false = way in state.refused
    if false:
        return state.refuse(target.digest, "it stands on what is false")
    if (why := _hindrance(state, target, way)) is not None:
        return state.set_aside(target.digest, why, now)
    return way


def _hindrance(state: State, target: Head, way: Path | Digest) -> str | None:
    """Why nobody that is here can bring me to the target."""
    errands = state.errands
    if way == target.digest and errands.hopeless(target.digest):
        return "nobody has its manifest"
    if isinstance(way, Path) and not _out_of_reach(state, target, way):
        lone = len(way.redo) == 1 and any(errands.hopeless(e.packet) for e in way.redo[0].entries)
        return "nobody has its packets" if lone else None
    if not state.members.ahead():
        return "nobody is there to ask"
    if _out_of_reach(state, target, way) and errands.hopeless(SNAPSHOT):
        return "no snapshot leads to it"
    return None


def _out_of_reach(state: State, target: Head, way: Path | Digest) -> bool:
    """Too far, too dear, or blocked: a snapshot is the way."""
    assert state.chain is not None
    errands = state.errands
    if _is_dear(state, target) and not errands.hopeless(SNAPSHOT):
        return True
    if not isinstance(way, Path):
        return target.round > state.chain.head.round + MAX_REPLAY or errands.hopeless(way)
    no_way = state.broken | state.rootless
    if len(way.redo) > MAX_REPLAY or any(m.digest in no_way for m in way.redo):
        return True
    packets = (entry.packet for manifest in _step(way).redo for entry in manifest.entries)
    return len(way.redo) > 1 and any(errands.hopeless(packet) for packet in packets)


def _is_dear(state: State, target: Head) -> bool:
    """Do the missing packets that a snapshot spares cost more than it does, as far as I know?"""
    assert state.chain is not None
    head, settings = state.chain.head, state.settings
    if target.round <= head.round + 1:
        return False
    served = target.round - target.round % settings.snapshot_every
    spared = [m for m in state.chain.known_to(target.digest) if m.round <= served]
    if not spared or not heavier(head_of(spared[0]), head):
        return False
    return missing_bytes(spared, state.held) > settings.snapshot_bytes


def _step(path: Path) -> Path:
    """What is applied at once: a fork whole, else one manifest."""
    return path if path.undo else Path((), path.redo[:1])


def _approach(state: State, target: Head, way: Path | Digest, now: float) -> list[Effect]:
    """Get the manifests between, then their packets, then apply."""
    if _out_of_reach(state, target, way):
        return _skip_ahead(state, target, now)
    if not isinstance(way, Path):
        return _ask_for_manifests(state, way, target, now)
    step = _step(way)
    claims = [claim for manifest in step.redo for claim in offers_of(manifest)]
    missing = [claim for claim in claims if claim.packet not in state.held]
    if missing:
        fetches = [effect for claim in missing for effect in _fetch(state, claim, now)]
        if len(way.redo) == 1 and not way.undo:  # if nobody can get them, the succession goes on
            fetches += _take_part(state, now)
        state.why = f"fetching {len(missing)} packet(s) of round {step.redo[0].round}"
        return fetches
    state.moving = step
    assert state.round is not None
    state.round.whole = now
    state.why = "applying a manifest"
    durable: list[Effect] = [Commit(manifest) for manifest in step.redo]
    told = [Publish(m) for m in step.redo if m.proposer == state.settings.me]
    return [*durable, *told, Apply(step.undo, step.redo)]


def _skip_ahead(state: State, target: Head, now: float) -> list[Effect]:
    state.why = f"fetching a snapshot on the way to round {target.round}"
    holders = tuple(peer for peer, _ in state.members.ahead())
    return [FetchSnapshot(holders)] if _may_begin(state, SNAPSHOT, now) else []


def _ask_for_manifests(state: State, missing: Digest, target: Head, now: float) -> list[Effect]:
    state.why = f"asking for the manifests up to round {target.round}"
    ahead = state.members.ahead()
    holders = [p for p, head in ahead if head.digest == target.digest] or [p for p, _ in ahead]
    holder = holders[state.errands.tries(missing) % len(holders)]
    return [FetchManifests(holder, missing)] if _may_begin(state, missing, now) else []


def _fetch(state: State, offer: Offer, now: float) -> list[Effect]:
    if not _may_begin(state, offer.packet, now):
        return []
    state.asked[offer.packet] = offer
    holders = dict.fromkeys((*state.offers.holders(offer.packet), *state.members.live()))
    holders.pop(state.settings.me, None)
    return [Fetch(offer.packet, offer.size, tuple(holders), offer)]


def _may_begin(state: State, name: Digest, now: float) -> bool:
    """Not while the errand is under way, nor a moment after it failed: then look again later."""
    again = state.errands.begin(name, now)
    if again is not None:
        state.wakes.append(again)
    return again is None


# -- the open round --------------------------------------------------------------------------------
def _take_part(state: State, now: float) -> list[Effect]:
    """My head is the best I know: work, tell, collect, close."""
    assert state.round is not None
    return [
        *work(state, state.round, now),
        *_collect(state, state.round, now),
        *_tell(state, state.round, now),
        *close(state, state.round, now),
    ]


def _collect(state: State, round_: OpenRound, now: float) -> list[Effect]:
    """Fetch what is announced for the open round."""
    wanted: list[Effect] = []
    for offer in state.offers.under(round_.parent):
        if offer.packet not in state.held and offer.round == round_.round:
            wanted += _fetch(state, offer, now)
    return wanted


def _tell(state: State, round_: OpenRound, now: float) -> list[Effect]:
    """Announce mine at once, and all that I hold again and again."""
    if not round_.present or not state.members:
        return []
    again = round_.announced + ANNOUNCE_SECONDS
    if now < again:
        state.wakes.append(again)
        return []
    round_.announced = now
    state.wakes.append(now + ANNOUNCE_SECONDS)
    return [Announce(tuple(round_.present.values()))]


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
        # Whoever closes the round takes in what it has announced, if there is room for all; a
        # manifest that is known may be without it; and a node alone closes the round itself.
        crowd = len(live) >= state.settings.pace.max_contributors
        waiting = crowd or not live or state.target() is not None
        return not waiting and _closers(state, live) <= {*state.offers.holders(mine.packet)}
    behind = state.members.behind(state.chain.head)
    reached = len(live | state.members.leaving()) - len(behind)
    # Where all leave, those behind would be alone with their round.
    enough = len(state.members) > MANY and bool(live) and reached >= ENOUGH
    return enough or not behind


def _closers(state: State, live: frozenset[PeerId]) -> frozenset[PeerId]:
    """Who must have a leaver's packet, so that it is in when the round is closed."""
    if len(state.members) <= MANY:
        return live
    assert state.chain is not None
    parent = state.chain.head.digest
    order = line(parent, state.chain.contributors(parent), live)
    return frozenset([peer for peer in order if peer in live][:ENOUGH])


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
