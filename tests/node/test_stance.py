"""Where the model stands: what a packet told leaves it exactly once, whatever happens between."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from demoloco.config import RunConfig
from demoloco.errors import StoreError
from demoloco.node.disk import Disk
from demoloco.node.stance import MIDWAY_SECONDS, Stance
from demoloco.rounds import effects as ef
from demoloco.rounds.rules import head_of
from demoloco.types import Digest, Head, Manifest, Offer, Round
from demoloco.worker.checkpoint import Checkpoint, Counters
from demoloco.worker.port import (
    Contribute,
    Contributed,
    Correct,
    NotSaved,
    Restore,
    SaveCheckpoint,
    Saved,
    TakeAgreed,
)
from tests.node.scribe import GENESIS, FakeCrew, Scribe, state_file


class Desk:
    """A stance with nothing around it."""

    def __init__(self) -> None:
        self.scribe = Scribe()
        self.crew = FakeCrew()
        self.disk = Disk()
        self.stance = self.new_stance()

    def new_stance(self) -> Stance:
        crew: Any = self.crew
        config = RunConfig(evaluate_every=2)
        return Stance(self.scribe.me, crew, self.scribe.ledger, self.disk, config, share=0.5)

    def close(self) -> None:
        self.disk.close()
        self.scribe.store.close()

    async def apply(self, *redo: Manifest, undo: tuple[Manifest, ...] = ()) -> Correct:
        """The agreed state moves; what the worker hears of it."""
        head, _ = self.scribe.ledger.apply(undo, redo)
        await self.stance.move(head, undo, redo)
        correct = self.crew.last
        assert isinstance(correct, Correct)
        return correct

    async def restore(self, then: Head, mine: Offer | None = None) -> Restore:
        """A fresh worker, from a checkpoint that stands on `then`."""
        self.stance = self.new_stance()
        head = self.scribe.store.head()
        assert head is not None
        await self.stance.settle(head, checkpoint_of(then), mine)
        restore = self.crew.last
        assert isinstance(restore, Restore)
        return restore


@pytest.fixture
def desk() -> Iterator[Desk]:
    made = Desk()
    yield made
    made.close()


def checkpoint_of(head: Head) -> Checkpoint:
    counters = Counters(
        round=head.round, head=head.digest.hex(), layout="", samples_read=0, inner_steps=0
    )
    return Checkpoint(path=Path("checkpoint"), counters=counters, size=0)


# -- told once -------------------------------------------------------------------------------------
async def test_a_packet_that_was_taken_leaves_the_model(desk: Desk) -> None:
    await desk.stance.settle(GENESIS, None, None)
    manifest = desk.scribe.round(GENESIS, 0, 1)
    correct = await desk.apply(manifest)
    assert correct.told == (desk.scribe.mine(manifest),)
    assert correct.untold == ()
    store = desk.scribe.store
    assert correct.before == state_file(store, GENESIS.digest)
    assert correct.after == state_file(store, manifest.digest)


async def test_a_packet_that_was_left_out_stays_in_the_model(desk: Desk) -> None:
    await desk.stance.settle(GENESIS, None, None)
    desk.scribe.told(GENESIS)
    correct = await desk.apply(desk.scribe.round(GENESIS, 1))
    assert (correct.told, correct.untold) == ((), ())


async def test_what_was_told_on_an_abandoned_chain_is_owed_again(desk: Desk) -> None:
    await desk.stance.settle(GENESIS, None, None)
    ours = desk.scribe.round(GENESIS, 0)
    await desk.apply(ours)
    correct = await desk.apply(desk.scribe.round(GENESIS, 1, salt=1), undo=(ours,))
    assert correct.told == ()
    assert correct.untold == (desk.scribe.mine(ours),)


async def test_of_what_an_abandoned_chain_told_only_what_is_gone_is_lost(desk: Desk) -> None:
    await desk.stance.settle(GENESIS, None, None)
    first, second = desk.scribe.play(GENESIS, 2, 0)
    await desk.stance.move(head_of(second), (), (first, second))
    del desk.scribe.store._blobs[first.entries[0].packet]  # type: ignore[attr-defined]
    other = desk.scribe.round(GENESIS, 1, salt=1)
    head, _ = desk.scribe.ledger.apply((second, first), (other,))
    assert await desk.stance.move(head, (second, first), (other,)) == first.entries[0].samples
    assert desk.crew.last.untold == (desk.scribe.mine(second),)


async def test_a_packet_that_both_chains_took_changes_nothing(desk: Desk) -> None:
    await desk.stance.settle(GENESIS, None, None)
    offer = desk.scribe.told(GENESIS)
    ours = desk.scribe.manifest(GENESIS, [offer])
    theirs = desk.scribe.manifest(GENESIS, [offer], salt=1)
    await desk.apply(ours)
    correct = await desk.apply(theirs, undo=(ours,))
    assert correct.told == correct.untold == (desk.scribe.body(offer),)


async def test_a_restored_model_forgets_what_was_told_since_its_checkpoint(desk: Desk) -> None:
    first, second, third = desk.scribe.play(GENESIS, 3, 0)
    restore = await desk.restore(head_of(first))
    assert restore.told_since == (desk.scribe.mine(second), desk.scribe.mine(third))
    correct = await desk.apply(desk.scribe.round(head_of(third), 1))
    assert (correct.told, correct.untold) == ((), ())


async def test_a_restored_model_has_told_the_pending_packet_once_when_it_is_taken(
    desk: Desk,
) -> None:
    mine = desk.scribe.told(GENESIS)
    restore = await desk.restore(GENESIS, mine)
    assert restore.told_since == (desk.scribe.body(mine),)
    correct = await desk.apply(desk.scribe.manifest(GENESIS, [mine]))
    assert (correct.told, correct.untold) == ((), ())


async def test_a_restored_model_owes_the_pending_packet_again_when_it_is_left_out(
    desk: Desk,
) -> None:
    mine = desk.scribe.told(GENESIS)
    await desk.restore(GENESIS, mine)
    correct = await desk.apply(desk.scribe.round(GENESIS, 1))
    assert (correct.told, correct.untold) == ((), (desk.scribe.body(mine),))


async def test_without_a_checkpoint_the_pending_packet_is_told_once_too(desk: Desk) -> None:
    mine = desk.scribe.told(GENESIS)
    await desk.stance.settle(GENESIS, None, mine)
    assert isinstance(desk.crew.last, TakeAgreed)
    correct = await desk.apply(desk.scribe.manifest(GENESIS, [mine]))
    assert (correct.told, correct.untold) == ((), ())


async def test_a_packet_for_another_round_is_not_pending(desk: Desk) -> None:
    mine = desk.scribe.told(GENESIS)
    (first,) = desk.scribe.play(GENESIS, 1, 1)
    assert (await desk.restore(head_of(first), mine)).told_since == ()


async def test_a_checkpoint_of_an_abandoned_chain_owes_again_what_was_told_there(
    desk: Desk,
) -> None:
    ours, theirs = desk.scribe.round(GENESIS, 0), desk.scribe.round(GENESIS, 1, salt=1)
    desk.scribe.ledger.apply((), (theirs,))
    assert (await desk.restore(head_of(ours))).told_since == ()
    correct = await desk.apply(desk.scribe.round(head_of(theirs), 1))
    assert correct.untold == (desk.scribe.mine(ours),)


async def test_a_checkpoint_above_the_head_does_not_tell_again_on_the_way_back_up(
    desk: Desk,
) -> None:
    first, second = desk.scribe.play(GENESIS, 2, 0)
    desk.scribe.store.move_head(GENESIS)  # the states above were damaged
    assert (await desk.restore(head_of(second))).told_since == ()
    down = await desk.apply(first)
    assert (down.told, down.untold) == ((), (desk.scribe.mine(second),))
    up = await desk.apply(second)
    assert (up.told, up.untold) == ((desk.scribe.mine(second),), ())


async def test_where_what_was_told_is_gone_the_checkpoint_is_of_no_use(desk: Desk) -> None:
    first, second = desk.scribe.play(GENESIS, 2, 0)
    entry = second.entry_of(desk.scribe.me)
    assert entry is not None
    del desk.scribe.store._blobs[entry.packet]  # type: ignore[attr-defined]
    checkpoint = checkpoint_of(head_of(first))
    assert await desk.stance.settle(head_of(second), checkpoint, None) is None
    assert desk.crew.told == []
    assert await desk.stance.settle(head_of(second), None, None, 16) == "the agreed state"
    agreed = state_file(desk.scribe.store, second.digest)
    assert desk.crew.told == [TakeAgreed(agreed=agreed, round=Round(2), told_samples=16)]


async def test_a_model_whose_told_part_is_gone_is_of_no_use(desk: Desk) -> None:
    """As in a home that was restored from an old copy: on a snapshot's way lie own packets that
    this disk never had."""
    await desk.stance.settle(GENESIS, None, None)
    desk.stance.followed()
    manifest = desk.scribe.round(GENESIS, 0, 1)
    head, _ = desk.scribe.ledger.apply((), (manifest,))
    entry = manifest.entry_of(desk.scribe.me)
    assert entry is not None
    del desk.scribe.store._blobs[entry.packet]  # type: ignore[attr-defined]
    assert await desk.stance.move(head, (), (manifest,)) is None
    assert len(desk.crew.told) == 1
    assert desk.stance.standing is None


# -- files -----------------------------------------------------------------------------------------
async def test_states_stay_wanted_until_the_worker_has_left_them(desk: Desk) -> None:
    await desk.stance.settle(GENESIS, None, None)
    desk.stance.followed()
    first = desk.scribe.round(GENESIS, 0)
    await desk.apply(first)
    second = desk.scribe.round(head_of(first), 0)
    await desk.apply(second)
    assert desk.stance.states == (GENESIS.digest, first.digest, second.digest)
    desk.stance.followed()
    assert desk.stance.states == (first.digest, second.digest)
    desk.stance.followed()
    desk.stance.followed()
    assert desk.stance.states == (second.digest,) == (desk.stance.standing,)


async def test_a_state_stays_wanted_though_the_worker_says_late_that_it_stands(desk: Desk) -> None:
    """A slow worker's first word came after the state had moved and was taken for the move's: the
    state before was pruned on a fork, and the worker fell for want of it."""
    await desk.stance.settle(GENESIS, None, None)
    first = desk.scribe.round(GENESIS, 0)
    await desk.apply(first)
    desk.stance.followed()  # it stands on the genesis, and has yet to move from there
    assert desk.stance.states == (GENESIS.digest, first.digest)
    desk.stance.followed()
    assert desk.stance.states == (first.digest,)


async def test_a_state_that_is_gone_is_named(desk: Desk) -> None:
    with pytest.raises(StoreError, match="is gone"):
        desk.stance.contribute(ef.Contribute(Round(1), Digest(b"?" * 32), 8))


async def test_without_a_worker_the_state_moves_alone(desk: Desk) -> None:
    await desk.stance.settle(GENESIS, None, None)
    desk.stance.fell()
    manifest = desk.scribe.round(GENESIS, 0)
    head, _ = desk.scribe.ledger.apply((), (manifest,))
    await desk.stance.move(head, (), (manifest,))
    assert [type(command) for command in desk.crew.told] == [TakeAgreed]
    assert desk.stance.standing is None


async def test_evaluation_is_asked_for_where_it_is_due(desk: Desk) -> None:
    await desk.stance.settle(GENESIS, None, None)
    first = desk.scribe.round(GENESIS, 0)
    assert not (await desk.apply(first)).evaluate
    assert (await desk.apply(desk.scribe.round(head_of(first), 0))).evaluate


# -- packets ---------------------------------------------------------------------------------------
async def test_a_packet_of_a_worker_that_fell_answers_nothing(desk: Desk) -> None:
    await desk.stance.settle(GENESIS, None, None)
    wish = ef.Contribute(Round(1), GENESIS.digest, 8)
    desk.stance.contribute(wish)
    asked = desk.crew.last
    assert isinstance(asked, Contribute)
    answer = Contributed(ticket=asked.ticket, body=b"", k=64)
    assert desk.stance.wanted(answer) == wish
    desk.stance.fell()
    assert desk.stance.wanted(answer) is None
    assert not desk.stance.contributed(answer)


async def test_a_packet_is_answered_once(desk: Desk) -> None:
    await desk.stance.settle(GENESIS, None, None)
    desk.stance.contribute(ef.Contribute(Round(1), GENESIS.digest, 8))
    answer = Contributed(ticket=desk.crew.last.ticket, body=b"", k=64)
    assert desk.stance.contributed(answer)
    assert not desk.stance.contributed(answer)


# -- checkpoints -----------------------------------------------------------------------------------
async def test_checkpoints_take_no_more_than_their_share_of_the_time(desk: Desk) -> None:
    desk.stance.save_if_due()
    assert desk.crew.told == []
    await desk.stance.settle(GENESIS, None, None)
    desk.stance.save_if_due()
    desk.stance.save_if_due()
    assert [type(command) for command in desk.crew.told] == [TakeAgreed, SaveCheckpoint]
    desk.stance.saved(Saved(head=GENESIS.digest, seconds=1000.0, size=1, learnt=0))
    desk.stance.save_if_due()
    assert len(desk.crew.told) == 2
    assert desk.stance.checkpoints == (GENESIS.digest,)


async def test_in_the_midst_of_a_round_there_is_time_between_checkpoints(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 100.0
    monkeypatch.setattr("demoloco.node.stance.time.monotonic", lambda: now)
    await desk.stance.settle(GENESIS, None, None)
    for then, saves in ((100.0, 1), (104.9, 1), (105.0, 2)):
        now = then
        desk.stance.save_if_due(MIDWAY_SECONDS)
        assert sum(isinstance(command, SaveCheckpoint) for command in desk.crew.told) == saves
        if then == 100.0:
            desk.stance.saved(Saved(head=GENESIS.digest, seconds=0.0, size=1, learnt=0))


async def test_what_a_checkpoint_needs_is_kept_from_when_it_is_ordered(desk: Desk) -> None:
    """It may be durable, and the node end, before anybody heard of it."""
    await desk.stance.settle(GENESIS, None, None)
    assert desk.stance.checkpoints == ()
    desk.stance.save_if_due()
    assert desk.stance.checkpoints == (GENESIS.digest,)


async def test_a_checkpoint_that_failed_is_tried_again_and_counts_for_nothing(desk: Desk) -> None:
    await desk.stance.settle(GENESIS, None, None)
    desk.stance.save_if_due()
    desk.stance.saved(NotSaved(head=GENESIS.digest, why="no room"))
    assert desk.stance.checkpoints == ()
    desk.stance.save_if_due()
    saves = [command for command in desk.crew.told if isinstance(command, SaveCheckpoint)]
    assert len(saves) == 2


async def test_no_checkpoint_is_made_of_a_model_that_is_ahead_of_its_chain(desk: Desk) -> None:
    await desk.restore(GENESIS, desk.scribe.told(GENESIS))
    desk.stance.save_if_due()
    assert isinstance(desk.crew.last, Restore)
    assert await desk.stance.save_at_last() is None
    await desk.apply(desk.scribe.round(GENESIS, 1))
    desk.stance.save_if_due()
    assert isinstance(desk.crew.last, SaveCheckpoint)
