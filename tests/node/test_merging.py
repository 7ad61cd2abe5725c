"""Who is in a mean of models, with what weight, and what of a gift is told by now."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from demoloco.codec import gift as codec
from demoloco.codec.layout import CHUNK
from demoloco.node.gathering import MAX_MEMBERS, NO_MODEL, TRIES, Gathering
from demoloco.node.loans import BORROWED_ROUNDS
from demoloco.node.merging import AHEAD, RECENT_ROUNDS, UNKNOWN, told_since, weights
from demoloco.rounds.rules import head_of
from demoloco.types import BlobRef, Digest, Gift, Head, Member, PeerId, Phase, Round
from demoloco.wire import digest_of
from tests.node.scribe import GENESIS, LAYOUT, RUN, SPEC, Scribe
from tests.node.test_couriers import A, B, C, FakeSwarm

PART = codec.owed_bytes(SPEC.chunks) // 2 + 1


@pytest.fixture
def scribe() -> Iterator[Scribe]:
    made = Scribe()
    yield made
    made.store.close()


def nobody_has(digest: Digest) -> bytes | None:
    return None


# -- what was told since ---------------------------------------------------------------------------
def gift_of(scribe: Scribe, head: Head) -> Gift:
    return Gift(head=head, blobs=(), lenders=(scribe.identities[1].peer_id,))


def test_what_a_lender_told_after_its_gift_is_no_longer_owed(scribe: Scribe) -> None:
    rounds = scribe.play(GENESIS, 4, 0, 1)
    gift = gift_of(scribe, head_of(rounds[1]))
    found = told_since(gift, Round(4), rounds, scribe.ledger.body)
    entries = [manifest.entry_of(gift.lenders[0]) for manifest in rounds[2:]]
    assert found == tuple(scribe.body(entry.packet) for entry in entries if entry is not None)


def test_a_gift_of_the_very_state_is_taken_as_it_is(scribe: Scribe) -> None:
    rounds = scribe.play(GENESIS, 2, 0, 1)
    assert told_since(gift_of(scribe, head_of(rounds[1])), Round(2), rounds, nobody_has) == ()
    assert told_since(gift_of(scribe, GENESIS), Round(0), (), nobody_has) == ()


def test_a_gift_of_which_the_log_does_not_tell_enough_is_left_out(scribe: Scribe) -> None:
    rounds, body = scribe.play(GENESIS, 4, 0, 1), scribe.ledger.body
    first = gift_of(scribe, head_of(rounds[0]))
    assert told_since(first, Round(4), rounds, nobody_has) == UNKNOWN
    assert told_since(first, Round(4), rounds[2:], body) == UNKNOWN
    assert told_since(first, Round(1 + BORROWED_ROUNDS), rounds, body) == UNKNOWN
    assert told_since(gift_of(scribe, head_of(rounds[3])), Round(3), rounds[:3], body) == AHEAD


def test_a_gift_of_another_chain_is_left_out(scribe: Scribe) -> None:
    rounds = scribe.play(GENESIS, 3, 0, 1)
    other = replace(head_of(rounds[0]), digest=digest_of(b"another"))
    found = told_since(gift_of(scribe, other), Round(3), rounds, scribe.ledger.body)
    assert found == "its model is of another chain than this node's"


# -- weights ---------------------------------------------------------------------------------------
def test_models_weigh_by_the_samples_of_the_last_rounds(scribe: Scribe) -> None:
    mine, theirs = (identity.peer_id for identity in scribe.identities)
    alone = scribe.play(GENESIS, RECENT_ROUNDS, 0)
    together = scribe.play(head_of(alone[-1]), RECENT_ROUNDS - 4, 0, 1)
    found, by = weights([mine, theirs], [*alone, *together])
    assert by == "samples"
    assert found == pytest.approx({mine: 16 / 28, theirs: 12 / 28})


def test_models_weigh_the_same_where_one_has_told_nothing(scribe: Scribe) -> None:
    peers = [scribe.me, scribe.identities[1].peer_id, C]
    found, by = weights(peers, scribe.play(GENESIS, 2, 0, 1))
    assert by == "equal"
    assert found == pytest.approx(dict.fromkeys(peers, 1 / 3))


# -- fetching --------------------------------------------------------------------------------------
class Giver:
    """Members with gifts, as a swarm offers them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.swarm = FakeSwarm()
        self.gathering = self.new()

    def new(self) -> Gathering:
        swarm: Any = self.swarm
        return Gathering(swarm, LAYOUT.digest, SPEC.chunks, self.folder)

    def gift(self, peer: PeerId, head: Head = GENESIS, layout: Digest = LAYOUT.digest) -> bytes:
        """All of it, in parts; the last ones have moments only."""
        path = self.folder / "whole"
        owed = np.linspace(-1, 1, SPEC.chunks * CHUNK, dtype=np.float32)
        content = codec.Content(head.digest, 3, [owed], [np.ones(9000)], [np.ones(9000)])
        codec.write(path, codec.GiftSpec(layout, SPEC.chunks, 9000), content)
        whole = path.read_bytes()
        parts = [whole[start : start + PART] for start in range(0, len(whole), PART)]
        self.swarm.blobs |= {digest_of(part): part for part in parts}
        blobs = tuple(BlobRef(digest=digest_of(part), size=len(part)) for part in parts)
        self.swarm.gifts[peer] = Gift(head=GENESIS, blobs=blobs, lenders=(peer,))
        return whole

    async def gather(self, *peers: PeerId, phase: Phase = Phase.TRAINING) -> list[tuple[int, int]]:
        return [heard async for heard in self.gathering.gather(members(*peers, phase=phase), 30.0)]


def members(*peers: PeerId, phase: Phase = Phase.TRAINING) -> list[Member]:
    return [
        Member(peer=peer, run=RUN, addresses=(), head=GENESIS, phase=phase, sequence=1)
        for peer in peers
    ]


@pytest.fixture
def giver(tmp_path: Path) -> Giver:
    return Giver(tmp_path)


async def test_what_members_owe_is_fetched_and_not_their_moments(giver: Giver) -> None:
    whole = giver.gift(A)
    giver.gift(B)
    assert (await giver.gather(A, B))[-1] == (2, 2)
    assert giver.gathering.failed == {}
    file = giver.gathering.came[A].file
    assert file.read_bytes() == whole[: 2 * PART]
    assert len(giver.swarm.asked) == 4  # of 3 parts or more that each gift has
    assert len(giver.swarm.gifts[A].blobs) > 2
    head, owed = codec.read_owed(file, LAYOUT.digest, SPEC.chunks)
    assert head == GENESIS.digest
    np.testing.assert_allclose(owed.read(0, 3), np.linspace(-1, 1, 8192)[:3], atol=0.01)


async def test_one_who_does_not_give_is_named_and_the_others_are_there(giver: Giver) -> None:
    giver.gift(A)
    giver.swarm.away.add(B)
    await giver.gather(A, B)
    assert giver.gathering.came.keys() == {A}
    assert giver.gathering.failed.keys() == {B}


@pytest.mark.parametrize("phase", NO_MODEL)
async def test_one_who_has_no_model_to_give_is_not_asked(giver: Giver, phase: Phase) -> None:
    giver.gift(A)
    await giver.gather(A, phase=phase)
    assert giver.gathering.failed == {A: NO_MODEL[phase]}
    assert giver.swarm.asked == []


async def test_a_gift_for_another_model_or_state_is_refused(giver: Giver) -> None:
    giver.gift(A, layout=digest_of(b"another"))
    await giver.gather(A)
    giver.gift(B, head=Head(digest=digest_of(b"other"), round=Round(0), samples_total=0))
    await giver.gather(B)
    assert giver.gathering.came == {}
    assert giver.gathering.failed == {
        A: "a gift for another model",
        B: "a gift for another agreed state than it says",
    }


async def test_a_gift_that_gave_way_is_asked_for_anew(giver: Giver) -> None:
    giver.gift(A)
    asked, gift = [], giver.swarm.gift

    async def later(holder: PeerId) -> Gift:
        found = await gift(holder)
        asked.append(holder)
        gone = (BlobRef(digest=digest_of(b"gone"), size=PART), *found.blobs[1:])
        return found if len(asked) == TRIES else replace(found, blobs=gone)

    giver.swarm.gift = later  # type: ignore[method-assign]
    await giver.gather(A)
    assert giver.gathering.came.keys() == {A}
    assert giver.gathering.failed == {}


async def test_one_who_takes_too_long_is_left_out_by_name(giver: Giver) -> None:
    giver.gift(A)
    never = asyncio.Event()
    fetch = giver.swarm.fetch

    async def slow(blob: BlobRef, holders: list[PeerId]) -> bytes:
        if B in holders:
            await never.wait()
        return await fetch(blob, holders)

    giver.swarm.gifts[B] = giver.swarm.gifts[A]
    giver.swarm.fetch = slow  # type: ignore[assignment]
    heard = [step async for step in giver.gathering.gather(members(A, B), 0.3)]
    assert heard == [(1, 2)]
    assert giver.gathering.came.keys() == {A}
    assert giver.gathering.failed == {B: "it did not give its model in 0.3 s"}


async def test_their_number_is_bounded(giver: Giver) -> None:
    many = [PeerId(f"p{number:03}") for number in range(MAX_MEMBERS + 1)]
    giver.gift(A)
    giver.swarm.gifts |= dict.fromkeys(many, giver.swarm.gifts[A])
    await giver.gather(*many)
    assert len(giver.gathering.came) == MAX_MEMBERS
    assert giver.gathering.failed == {many[-1]: f"no more than {MAX_MEMBERS} others are merged"}
