"""A joiner starts where a member is; a gift that does harm is not taken."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path

import numpy as np
import pytest
import torch

from demoloco.codec import gift
from demoloco.codec.chunks import from_chunks
from demoloco.codec.dct import idct
from demoloco.codec.layout import CHUNK
from demoloco.codec.packet import decode
from demoloco.types import Loan, PeerId, Round
from demoloco.worker.checkpoint import newest_whole
from demoloco.worker.giving import MAX_RATIO
from demoloco.worker.port import (
    Contribute,
    Contributed,
    Correct,
    Corrected,
    GiftTried,
    Restore,
    Returned,
    SaveCheckpoint,
    Saved,
    Start,
    TakeAgreed,
)
from tests.worker.desk import CONFIG, Desk, advance, read_state

HEAD = bytes(range(32))
LOAN = Loan(lenders=(PeerId("a"),), since=Round(1))


@pytest.fixture
def agreed(tmp_path: Path) -> Path:
    return tmp_path / "agreed"


@pytest.fixture
def donor(tmp_path: Path, agreed: Path) -> Desk:
    """Has trained, and saved."""
    desk = Desk()
    desk.start(agreed)
    desk.train(1, 30)
    desk.tell(SaveCheckpoint(directory=tmp_path / "checkpoints", agreed=agreed, head=HEAD))
    return desk


def gift_of(desk: Desk) -> Path:
    path = desk.last(Saved).gift
    assert path is not None
    return path


def joiner(agreed: Path, path: Path, returned: Returned | None = None) -> Desk:
    desk = Desk(node="joiner")
    start = Start(path, returned or Returned())
    desk.tell(TakeAgreed(agreed=agreed, round=Round(1), start=start))
    return desk


def loss_of(desk: Desk) -> float:
    return desk.loop._training.evaluate()


def owed_by(desk: Desk, agreed: Path) -> torch.Tensor:
    """A − DCT(x) − b, as values: what the padding of chunks owes reaches no model."""
    own = desk.loop._own
    owed = torch.from_numpy(np.concatenate(list(own.owed(agreed))))
    return values_of(desk, owed if own.memory is None else owed - own.memory)


def values_of(desk: Desk, coefficients: torch.Tensor) -> torch.Tensor:
    chunks = idct(coefficients.reshape(-1, 64, 64))
    tensors = from_chunks(chunks, desk.loop._own.layout).values()
    return torch.cat([tensor.flatten() for tensor in tensors])


def test_a_joiner_starts_with_the_loss_of_its_lender(donor: Desk, agreed: Path) -> None:
    new = joiner(agreed, gift_of(donor))
    tried = new.last(GiftTried)
    assert tried.taken
    assert new.last(Corrected).round == 1
    there, without = loss_of(donor), tried.agreed_loss
    assert tried.gift_loss == pytest.approx(loss_of(new))
    assert abs(tried.gift_loss - there) < 0.01 * (without - there)


def test_a_joiner_owes_nothing_of_what_it_started_with(donor: Desk, agreed: Path) -> None:
    new = joiner(agreed, gift_of(donor))
    assert owed_by(new, agreed).abs().max() < 1e-4


def test_a_joiner_has_its_lenders_moments(donor: Desk, agreed: Path) -> None:
    new = joiner(agreed, gift_of(donor))
    theirs, ours = (desk.loop._training.optimizer.state_dict()["state"] for desk in (donor, new))
    assert ours.keys() == theirs.keys()
    assert {float(state["step"]) for state in ours.values()} == {30.0}
    for kind in ("exp_avg", "exp_avg_sq"):
        there, here = (
            torch.cat([state[kind].flatten() for state in states.values()])
            for states in (theirs, ours)
        )
        assert (here - there).norm() < 0.05 * there.norm()


def test_a_joiner_goes_on_as_its_lender_would(donor: Desk, agreed: Path) -> None:
    new = joiner(agreed, gift_of(donor))
    new.train(2, 20)
    donor.train(2, 20)
    fresh = Desk(node="joiner")
    fresh.tell(TakeAgreed(agreed=agreed, round=Round(1)))
    fresh.train(2, 20)
    assert loss_of(new) < loss_of(fresh)
    assert loss_of(new) == pytest.approx(loss_of(donor), rel=0.1)


def test_what_lenders_told_since_is_not_borrowed(donor: Desk, agreed: Path) -> None:
    body = donor.body(agreed)
    packet = decode(body, donor.spec)
    new = joiner(agreed, gift_of(donor), Returned((body,), 0.5))
    borrowed = new.loop._own.memory
    whole = joiner(agreed, gift_of(donor)).loop._own.memory
    assert borrowed is not None
    assert whole is not None
    index = torch.from_numpy(packet.index.astype(np.int64))
    assert not borrowed.gather(1, index).any()
    torch.testing.assert_close(borrowed, whole.scatter(1, index, 0.0) * 0.5)
    assert owed_by(new, agreed).abs().max() < 1e-4


def test_what_a_lender_tells_moves_to_the_agreed_part(
    donor: Desk, agreed: Path, tmp_path: Path
) -> None:
    """The borrower's own part is the same after the round as before."""
    new = joiner(agreed, gift_of(donor))
    new.train(2, 2)
    mine, theirs, after = new.body(agreed), donor.body(agreed), tmp_path / "after"
    advance(agreed, after, [mine, theirs], new.spec)
    told, dense = decode(mine, new.spec), np.zeros_like(read_state(agreed))
    np.put_along_axis(dense, told.index, told.value, 1)
    owed = owed_by(new, agreed) - values_of(new, torch.from_numpy(dense))
    orders = {"told": (mine,), "returned": Returned((theirs,), 1.0)}
    new.tell(Correct(before=agreed, after=after, round=Round(2), **orders))  # type: ignore[arg-type]
    torch.testing.assert_close(owed_by(new, after), owed, atol=1e-5, rtol=0)


def test_a_checkpoint_keeps_what_is_borrowed_and_of_whom(
    donor: Desk, agreed: Path, tmp_path: Path
) -> None:
    new = joiner(agreed, gift_of(donor))
    new.train(2, 3)
    owed, borrowed = owed_by(new, agreed), new.loop._own.memory
    directory = tmp_path / "joiner"
    new.tell(SaveCheckpoint(directory=directory, agreed=agreed, head=HEAD, loan=LOAN))
    assert new.last(Saved).loan == LOAN
    found = newest_whole(directory)
    assert found is not None
    assert found.loan == LOAN
    back = Desk(node="joiner")
    back.tell(Restore(checkpoint=found.path, agreed=agreed, round=Round(1), told_since=()))
    assert borrowed is not None
    assert torch.equal(back.loop._own.memory, borrowed)  # type: ignore[arg-type]
    torch.testing.assert_close(owed_by(back, agreed), owed, atol=1e-5, rtol=0)
    let_go = Restore(
        checkpoint=found.path,
        agreed=agreed,
        round=Round(1),
        told_since=(),
        returned=Returned((), 0),
    )
    back.tell(let_go)
    assert back.loop._own.memory is None


def test_a_borrower_gives_on_all_that_is_in_its_model(
    donor: Desk, agreed: Path, tmp_path: Path
) -> None:
    second = joiner(agreed, gift_of(donor))
    second.train(2, 5)
    second.tell(SaveCheckpoint(directory=tmp_path / "second", agreed=agreed, head=HEAD, loan=LOAN))
    third = joiner(agreed, gift_of(second))
    assert loss_of(third) == pytest.approx(loss_of(second), rel=0.05)


# -- what is not taken -----------------------------------------------------------------------------
def assert_stands_on(desk: Desk, agreed: Path) -> None:
    assert desk.loop._own.memory is None
    assert owed_by(desk, agreed).abs().max() < 1e-4
    assert not desk.loop._training.optimizer.state


def test_a_gift_that_makes_the_model_worse_is_not_taken(donor: Desk, agreed: Path) -> None:
    path = gift_of(donor)
    rows = np.memmap(path, gift._BLOCK, "r+", gift._HEAD.size)
    rows["scale"][: donor.loop._own.layout.chunks] = 1e6
    rows.flush()
    new = joiner(agreed, path)
    tried = new.last(GiftTried)
    assert not tried.taken
    assert tried.why == "the model is worse with it"
    assert tried.gift_loss > tried.agreed_loss
    assert_stands_on(new, agreed)


def test_a_damaged_gift_is_not_taken(donor: Desk, agreed: Path, tmp_path: Path) -> None:
    path = tmp_path / "short"
    path.write_bytes(gift_of(donor).read_bytes()[:-1])
    new = joiner(agreed, path)
    assert "bytes; this run's have" in new.last(GiftTried).why
    assert_stands_on(new, agreed)


def test_a_gift_that_is_gone_is_not_taken(agreed: Path, tmp_path: Path) -> None:
    Desk().start(agreed)
    new = joiner(agreed, tmp_path / "absent")
    assert not new.last(GiftTried).taken
    assert_stands_on(new, agreed)


def test_moments_that_no_gradients_could_make_are_cut_down(donor: Desk, agreed: Path) -> None:
    """A first moment that is large beside its second would make parameters leap."""
    own, path = donor.loop._own, gift_of(donor)
    rows = np.memmap(path, gift._BLOCK, "r+", gift._HEAD.size)
    blocks = (len(rows) - own.layout.chunks) // 2
    rows["scale"][own.layout.chunks : own.layout.chunks + blocks] *= 1e9
    rows.flush()
    new = joiner(agreed, path)
    assert new.last(GiftTried).taken
    for state in new.loop._training.optimizer.state.values():
        limit = state["exp_avg_sq"].sqrt() * MAX_RATIO
        assert (state["exp_avg"].abs() <= limit * 1.0001).all()


def test_gradients_never_make_a_larger_ratio_of_moments() -> None:
    parameter = torch.nn.Parameter(torch.zeros(64))
    optimizer = torch.optim.AdamW([parameter], betas=(0.9, 0.95))
    generator = torch.Generator().manual_seed(0)
    for number in range(200):
        size = 0.88**-number if number < 60 else 1.0
        parameter.grad = torch.rand(64, generator=generator) * size
        optimizer.step()
        state = optimizer.state[parameter]
        assert (state["exp_avg"] <= MAX_RATIO * state["exp_avg_sq"].sqrt() * 1.0001).all()
    assert pytest.approx(1.1649, abs=1e-3) == MAX_RATIO


def test_a_run_that_never_evaluates_takes_a_finite_gift(
    donor: Desk, agreed: Path, tmp_path: Path
) -> None:
    desk = Desk(dataclasses.replace(CONFIG, evaluate_every=0), node="joiner")
    start = Start(gift_of(donor), Returned())
    desk.tell(TakeAgreed(agreed=agreed, round=Round(1), start=start))
    tried = desk.last(GiftTried)
    assert tried.taken
    assert math.isnan(tried.gift_loss)


# -- what is not given -----------------------------------------------------------------------------
def test_who_has_learnt_nothing_yet_has_nothing_to_give(agreed: Path, tmp_path: Path) -> None:
    desk = Desk()
    desk.start(agreed)
    desk.tell(SaveCheckpoint(directory=tmp_path / "c", agreed=agreed, head=HEAD))
    assert (desk.last(Saved).gift, desk.last(Saved).blobs) == (None, ())


def test_synced_replicas_have_nothing_to_give(agreed: Path, tmp_path: Path) -> None:
    desk = Desk(dataclasses.replace(CONFIG, method="synced"))
    desk.start(agreed)
    desk.train(1, 2)
    desk.tell(Contribute(ticket=1, agreed=agreed, k=64))
    assert desk.last(Contributed).ticket == 1
    desk.tell(SaveCheckpoint(directory=tmp_path / "c", agreed=agreed, head=HEAD))
    assert desk.last(Saved).gift is None


def test_a_gift_is_smaller_than_the_agreed_state(donor: Desk, agreed: Path) -> None:
    blobs = donor.last(Saved).blobs
    assert sum(blob.size for blob in blobs) == gift_of(donor).stat().st_size
    chunks = len(read_state(agreed))
    assert gift_of(donor).stat().st_size <= gift.max_bytes(chunks)
    assert gift.max_bytes(chunks) < 3.1 * CHUNK * (chunks + 1)
