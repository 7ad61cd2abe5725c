"""How the borrowed part of a model goes: pure decisions over the log.

Rule: what a lender told after the gift is no longer borrowed, and the rest is let go of evenly
within BORROWED_ROUNDS, for a lender may never tell it. Where the log does not say what the lenders
told, all of it goes. What this node owes itself is not touched by any of it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from demoloco.types import Digest, Loan, Manifest
from demoloco.worker.port import Returned

BORROWED_ROUNDS = 64

ALL = Returned(keep=0.0)


def share_left(loan: Loan, round: int) -> float:
    """How much of what no lender told is still there in this round."""
    return min(1.0, max(0.0, 1 - (round - loan.since) / BORROWED_ROUNDS))


def returned(
    loan: Loan | None,
    then: int,
    now: int,
    manifests: Sequence[Manifest],
    body: Callable[[Digest], bytes | None],
) -> Returned:
    """What goes between two rounds. `manifests`: all that were applied in between, oldest first;
    ALL if some of them are not there, or a packet that they name."""
    if loan is None:
        return Returned()
    rounds = [manifest.round for manifest in manifests]
    left, before = share_left(loan, now), share_left(loan, then)
    gapless = rounds == list(range(now - len(rounds) + 1, now + 1)) and len(rounds) >= now - then
    if left == 0 or before == 0 or not gapless:
        return ALL
    packets = (
        entry.packet
        for manifest in manifests
        for entry in manifest.entries
        if manifest.round > loan.since and entry.contributor in loan.lenders
    )
    bodies = tuple(map(body, packets))
    if None in bodies:
        return ALL
    return Returned(tuple(b for b in bodies if b is not None), min(1.0, left / before))
