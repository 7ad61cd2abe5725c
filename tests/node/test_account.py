"""Learnt = told + owed, in samples, over forks, falls and lives."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import pytest

from demoloco.node.account import Account
from demoloco.node.assembly import _recall
from demoloco.rounds.rules import head_of
from tests.node.scribe import GENESIS, Scribe


class Desk:
    """A node's account, and a chain to play with: each packet tells eight samples."""

    def __init__(self) -> None:
        self.scribe = Scribe()
        self.account = Account(self.scribe.me)


def test_what_is_shown_waits_until_the_machine_knows() -> None:
    desk = Desk()
    desk.account.enter(desk.scribe.round(GENESIS, 0))
    assert desk.account.shown.samples_told == 0
    desk.account.show()
    assert desk.account.shown.samples_told == 8
    desk.account.undo(desk.scribe.round(GENESIS, 0))
    assert desk.account.shown.samples_told == 8


def test_a_worker_owes_what_its_checkpoint_counts_less_what_is_told() -> None:
    desk = Desk()
    desk.account.enter(desk.scribe.round(GENESIS, 0))
    desk.account.show()
    assert desk.account.start_from(20, None) == 12
    assert (desk.account.learnt, desk.account.take_lost()) == (20, 0)


def test_what_was_told_after_the_checkpoint_is_learnt_too() -> None:
    desk = Desk()
    for manifest in desk.scribe.play(GENESIS, 3, 0):
        desk.account.enter(manifest)
    desk.account.show()
    mine = desk.scribe.told(GENESIS)
    assert desk.account.start_from(20, mine) == 8
    assert desk.account.learnt == 32


def test_only_what_neither_a_checkpoint_nor_a_packet_has_is_lost_and_it_is_said_once() -> None:
    desk = Desk()
    desk.account.enter(desk.scribe.round(GENESIS, 0))
    desk.account.show()
    desk.account.trained(30)
    desk.account.hear(34)
    assert desk.account.start_from(20, None) == 12
    assert desk.account.start_from(16, None) == 8  # the newest checkpoint was damaged
    assert desk.account.take_lost() == 18
    assert desk.account.take_lost() == 0


def test_a_round_that_was_not_noted_before_the_end_counts_in_the_next_life() -> None:
    desk = Desk()
    (first,) = desk.scribe.play(GENESIS, 1, 0)
    aside = desk.scribe.round(head_of(first), 1, salt=1)
    second, third = desk.scribe.play(head_of(first), 2, 0)
    desk.account.enter(first)
    desk.account.trained(24)
    desk.scribe.ledger.note_json("tally", desk.account.note(first.digest.hex()))
    again = Account(desk.scribe.me)
    _recall(again, desk.scribe.ledger)
    assert again.shown.samples_told == 0  # the machine has not started
    again.show()
    assert asdict(again.shown) == {
        "rounds_contributed": 3,
        "rounds_left_out": 0,
        "samples_told": 24,
    }
    again.catch_up((third, second), (aside,))
    again.show()
    assert again.shown.samples_told == 8
    assert again.start_from(0, None) == 0
    assert again.take_lost() == 16


@pytest.mark.parametrize("noted", [{"samples_told": 3}, {"head": "??", "samples_told": 3}])
def test_a_note_of_another_kind_ends_nothing(noted: dict[str, Any]) -> None:
    desk = Desk()
    desk.scribe.play(GENESIS, 1, 0)
    desk.scribe.ledger.note_json("tally", noted)
    _recall(desk.account, desk.scribe.ledger)
    assert desk.account.tally.samples_told == 3
