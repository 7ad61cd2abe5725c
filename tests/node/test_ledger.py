"""The ledger: whole or not at all, and what is needed stays."""

from __future__ import annotations

import numpy as np
import pytest

from demoloco.errors import PacketError, StoreError
from demoloco.node import ledger
from demoloco.node.ledger import MAX_SEALED, DoesNotApply, Lacking
from demoloco.rounds.chain import Chain
from demoloco.rounds.rules import head_of
from demoloco.types import Digest
from tests.node.scribe import GENESIS, SPEC, Scribe


def test_applying_moves_head_and_state() -> None:
    scribe = Scribe()
    before = scribe.ledger.fingerprint(GENESIS.digest)
    manifest = scribe.manifest(GENESIS, [scribe.told(GENESIS, 0), scribe.told(GENESIS, 1)])
    head, name = scribe.ledger.apply((), (manifest,))
    assert head == head_of(manifest) == scribe.store.head()
    assert name == scribe.ledger.fingerprint(head.digest) != before


def test_a_manifest_that_starts_from_another_state_does_not_apply() -> None:
    scribe = Scribe()
    manifest = scribe.manifest(GENESIS, [scribe.told(GENESIS)], state=Digest(b"x" * 32))
    with pytest.raises(DoesNotApply, match="it starts from state"):
        scribe.ledger.apply((), (manifest,))
    assert scribe.store.head() == GENESIS
    assert scribe.store.state(manifest.digest) is None


def test_of_several_manifests_all_apply_or_none() -> None:
    scribe = Scribe()
    first = scribe.round(GENESIS, 0, 1)
    second = scribe.manifest(head_of(first), [scribe.told(head_of(first))], state=Digest(b"x" * 32))
    with pytest.raises(DoesNotApply):
        scribe.ledger.apply((), (first, second))
    assert scribe.store.head() == GENESIS


def test_a_manifest_whose_packet_is_gone_does_not_apply() -> None:
    scribe = Scribe()
    _, offer = scribe.packet(GENESIS)
    with pytest.raises(Lacking, match="is gone"):
        scribe.ledger.apply((), (scribe.manifest(GENESIS, [offer]),))


def test_without_an_agreed_state_nothing_applies() -> None:
    scribe = Scribe()
    manifest = scribe.round(GENESIS, 0)
    scribe.store._head = None  # type: ignore[attr-defined]
    with pytest.raises(StoreError, match="no agreed state"):
        scribe.ledger.apply((), (manifest,))


def test_a_fork_taken_and_taken_back_gives_the_same_bits() -> None:
    scribe = Scribe()
    ours, theirs = scribe.round(GENESIS, 0), scribe.round(GENESIS, 1, salt=1)
    there = scribe.ledger.apply((), (ours,))
    state = np.array(scribe.store.state(ours.digest))
    scribe.ledger.apply((ours,), (theirs,))
    assert scribe.store.head() == head_of(theirs)
    assert scribe.ledger.apply((theirs,), (ours,)) == there
    assert np.array_equal(np.asarray(scribe.store.state(ours.digest)), state)


def test_a_pruned_state_under_a_fork_is_made_again() -> None:
    scribe = Scribe()
    shared = scribe.play(GENESIS, 2, 0)
    theirs = scribe.round(head_of(shared[-1]), 1, salt=1)
    fork = np.array(scribe.store.state(theirs.digest))
    ours = scribe.play(head_of(shared[-1]), 2, 0)
    for gone in (*shared, theirs):
        del scribe.store._states[gone.digest]  # type: ignore[attr-defined]
    scribe.ledger.apply(tuple(reversed(ours)), (theirs,))
    assert scribe.store.head() == head_of(theirs)
    assert np.array_equal(np.asarray(scribe.store.state(theirs.digest)), fork)


def test_a_fork_under_a_state_that_is_gone_does_not_apply() -> None:
    scribe = Scribe()
    theirs = scribe.round(GENESIS, 1, salt=1)
    ours = scribe.play(GENESIS, 2, 0)
    del scribe.store._states[GENESIS.digest]  # type: ignore[attr-defined]
    del scribe.store._states[theirs.digest]  # type: ignore[attr-defined]
    with pytest.raises(Lacking, match="is not kept"):
        scribe.ledger.apply(tuple(reversed(ours)), (theirs,))
    assert scribe.store.head() == head_of(ours[-1])


# -- the log ---------------------------------------------------------------------------------------
def test_a_fork_tells_what_two_chains_do_not_share() -> None:
    scribe = Scribe()
    common = scribe.play(GENESIS, 2, 0)
    ours = scribe.play(head_of(common[-1]), 3, 0)
    theirs = scribe.round(head_of(common[-1]), 1, salt=1)
    fork = scribe.ledger.fork
    assert fork(ours[-1].digest, theirs.digest) == (tuple(ours), (theirs,))
    assert fork(GENESIS.digest, common[-1].digest) == ((), tuple(common))
    assert fork(ours[-1].digest, ours[-1].digest) == ((), ())


def test_where_the_log_does_not_tell_there_is_no_fork() -> None:
    scribe = Scribe()
    ours = scribe.play(GENESIS, 2, 0)
    assert scribe.ledger.fork(Digest(b"?" * 32), ours[-1].digest) is None


def test_signed_bytes_that_the_chain_needs_outlive_a_flood_of_others() -> None:
    scribe = Scribe()
    needed = scribe.round(GENESIS, 0)
    chain = Chain(GENESIS, scribe.me)
    chain.learn_applied(needed)
    for number in range(2 * MAX_SEALED):
        scribe.ledger._sealed[Digest(number.to_bytes(32, "big"))] = b"noise"
    scribe.ledger.bound(chain)
    assert len(scribe.ledger._sealed) == MAX_SEALED
    assert needed.digest in scribe.ledger._sealed


def test_a_manifest_whose_bytes_nobody_kept_is_not_committed() -> None:
    scribe = Scribe()
    manifest = scribe.round(GENESIS, 0)
    with pytest.raises(StoreError, match="are gone"):
        Scribe().ledger.commit(manifest)


# -- packets ---------------------------------------------------------------------------------------
def test_a_refused_packet_is_not_kept() -> None:
    scribe = Scribe()
    sealed, offer = scribe.packet(GENESIS, run=Digest(b"other run" + bytes(23)))
    with pytest.raises(PacketError):
        scribe.ledger.store_packet(sealed, offer)
    assert scribe.store.get(offer.packet) is None


def test_the_pending_packet_is_mine_and_of_the_round_after_the_head() -> None:
    scribe = Scribe()
    mine, theirs = scribe.told(GENESIS, 0), scribe.told(GENESIS, 1)
    assert scribe.ledger.pending(scribe.me) is None
    scribe.ledger.keep_pending(theirs.packet)
    assert scribe.ledger.pending(scribe.me) is None
    scribe.ledger.keep_pending(mine.packet)
    found = scribe.ledger.pending(scribe.me)
    assert found is not None
    assert found[0] == mine
    scribe.play(GENESIS, 1, 1)
    assert scribe.ledger.pending(scribe.me) is None


# -- housekeeping ----------------------------------------------------------------------------------
def test_pruning_keeps_what_others_can_use_and_a_checkpoint_or_a_long_partition_needs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Packets as long as those since are no more than two snapshots; of states only the last."""
    scribe = Scribe()
    rounds = scribe.play(GENESIS, 40, 0, 1)
    head = scribe.store.head()
    assert head is not None
    scribe.store.snapshot_every = 10
    bytes_a_round = sum(entry.size for entry in rounds[-1].entries)
    monkeypatch.setattr(ledger, "CHUNK", 15 * bytes_a_round // SPEC.chunks // 8 + 1)
    for _ in range(2):
        scribe.ledger.prune((), (rounds[0].digest,), scribe.me)
    assert scribe.store.state(rounds[1].digest) is None
    assert scribe.store.state(rounds[-1].digest) is not None
    for manifest in rounds:
        mine, theirs = sorted(manifest.entries, key=lambda entry: entry.contributor != scribe.me)
        assert scribe.ledger.body(mine.packet) is not None
        assert (scribe.ledger.body(theirs.packet) is None) == (manifest.round <= 40 - 15)
    assert scribe.ledger.fork(rounds[0].digest, head.digest) == ((), tuple(rounds[1:]))


def test_the_log_outlives_the_packets_as_long_as_it_names_few(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    scribe = Scribe()
    rounds = scribe.play(GENESIS, 20, 0, 1)
    scribe.store.snapshot_every = 4
    monkeypatch.setattr(ledger, "KEEP_ROUNDS", 2)
    monkeypatch.setattr(ledger, "MAX_REPLAY", 2)
    for rounds_kept, packets, left in ((16, 999, 16), (15, 999, 15), (15, 29, 14), (99, 8, 5)):
        monkeypatch.setattr(ledger, "LOG_ROUNDS", rounds_kept)
        monkeypatch.setattr(ledger, "LOG_PACKETS", packets)
        scribe.ledger.prune((), (), scribe.me)
        kept = [m for m in rounds if scribe.store.manifest(m.digest) is not None]
        assert len(kept) == left  # at least since the older of two snapshots, of round 16
        assert kept == rounds[-left:]
        assert scribe.ledger.body(rounds[10].entries[0].packet) is None


def test_where_two_chains_are_not_joined_the_newest_lacking_round_is_named() -> None:
    scribe = Scribe()
    common = scribe.play(GENESIS, 4, 0)
    theirs = scribe.play(head_of(common[-1]), 5, 1)
    for gone in (*common[:2], theirs[1]):
        del scribe.store._links[gone.digest]  # type: ignore[attr-defined]
        scribe.store._sealed.pop(gone.digest)  # type: ignore[attr-defined]
        scribe.ledger._sealed.pop(gone.digest)
    ends = common[-1].digest, theirs[-1].digest
    assert scribe.ledger.fork(*ends) is None
    assert scribe.ledger.unknown(*ends) == theirs[1].round
    assert scribe.ledger.unknown(common[-1].digest) == 2


def test_a_checkpoint_that_the_log_no_longer_reaches_is_taken_for_older() -> None:
    scribe = Scribe()
    rounds = scribe.play(GENESIS, 3, 0)
    lost = Digest(b"?" * 32)
    assert scribe.ledger.around(lost, rounds[-1].digest) == ((), tuple(rounds))
