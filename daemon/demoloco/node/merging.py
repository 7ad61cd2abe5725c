"""What goes into a merged model: pure decisions over the log.

Rule: a member's model is IDCT(A − d). Its gift tells d as of the gift's head; what it and its
lenders told since is in A by now and no longer in d. Where the log does not say what that was, the
member is left out, and named.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from demoloco.node.loans import ALL, returned
from demoloco.types import Digest, Gift, Loan, Manifest, PeerId, Round

RECENT_ROUNDS = 16
"""The last rounds, whose samples weigh a member's model."""

AHEAD = "its model is of a round that this node does not have"
UNKNOWN = "the log here does not tell all that it told since its model was saved"


def told_since(
    gift: Gift, at: Round, chain: Sequence[Manifest], body: Callable[[Digest], bytes | None]
) -> tuple[bytes, ...] | str:
    """Bodies of the packets that are no longer in what the gift says is owed, or why it is of no
    use. `chain`: manifests up to round `at`, oldest first."""
    then = gift.head.round
    if then > at:
        return AHEAD
    known = {manifest.round: manifest.digest for manifest in chain}
    if then in known and known[then] != gift.head.digest:
        return "its model is of another chain than this node's"
    loan = Loan(lenders=gift.lenders, since=then)
    gone = returned(loan, then, at, [m for m in chain if m.round > then], body)
    return UNKNOWN if gone == ALL else replace(gone, keep=1.0).lent


def weights(
    peers: Sequence[PeerId], chain: Sequence[Manifest]
) -> tuple[Mapping[PeerId, float], str]:
    """By the samples that each told in the last rounds, as a round's mean would weigh them; equal
    where one of them told none. They add up to 1. Also by what: samples | equal."""
    told = dict.fromkeys(peers, 0)
    for manifest in chain[-RECENT_ROUNDS:]:
        for entry in manifest.entries:
            if entry.contributor in told:
                told[entry.contributor] += entry.samples
    if not all(told.values()):
        return dict.fromkeys(peers, 1 / len(peers)), "equal"
    whole = sum(told.values())
    return {peer: samples / whole for peer, samples in told.items()}, "samples"
