"""What the operator sees follows from what was told to the report."""

from __future__ import annotations

import math
from typing import Any

import pytest

from demoloco.node.feed import Feed
from demoloco.node.report import Report
from demoloco.rounds.facts import Settings
from demoloco.rounds.machine import Machine
from demoloco.rounds.rules import Pace
from demoloco.types import Member, PeerId, Phase, Round
from demoloco.worker.port import Evaluated, Progress
from tests.node.scribe import GENESIS, RUN, Scribe, SilentSwarm

PACE = Pace(quorum=0.6, max_contributors=9)


class Desk:
    """A report of this node, its feed, and a machine that has not begun."""

    def __init__(self) -> None:
        self.scribe = Scribe()
        self.feed = Feed()
        self.warnings: list[str] = []
        self.feed.warn = lambda event, **facts: self.warnings.append(event)  # type: ignore[method-assign]
        swarm: Any = SilentSwarm()
        self.report = Report(self.feed, swarm, self.scribe.me)
        settings = Settings(
            me=self.scribe.me,
            run=RUN,
            creator=self.scribe.me,
            pace=PACE,
            inner_steps=1,
            leave_seconds=1,
            snapshot_bytes=1,
            snapshot_every=1,
            step_samples=1,
        )
        self.machine = Machine(settings)


def member(peer: str, phase: Phase = Phase.TRAINING) -> Member:
    return Member(peer=PeerId(peer), run=RUN, addresses=(), head=GENESIS, phase=phase, sequence=1)


def test_rounds_in_and_out_are_counted_and_uncounted() -> None:
    desk = Desk()
    taken, missed = desk.scribe.round(GENESIS, 0, 1), desk.scribe.round(GENESIS, 1)
    desk.report.round_applied(taken, mine_was_out=True)
    desk.report.round_applied(missed, mine_was_out=True)
    desk.report.round_applied(missed, mine_was_out=False)
    tally = desk.report.account.tally
    assert (tally.rounds_contributed, tally.rounds_left_out, tally.samples_told) == (1, 1, 8)
    desk.report.round_undone(taken)
    desk.report.round_undone(missed)
    assert (tally.rounds_contributed, tally.samples_told) == (0, 0)


@pytest.mark.parametrize(
    ("noted", "contributed"),
    [({"rounds_contributed": 3, "other": 1}, 3), (None, 0), ([], 0), ({}, 0)],
)
def test_the_tally_goes_on_over_the_lives(noted: object, contributed: int) -> None:
    desk = Desk()
    desk.report.account.recall(noted)
    assert desk.report.account.tally.rounds_contributed == contributed


def test_a_node_says_once_each_time_that_it_is_alone() -> None:
    desk = Desk()
    desk.report.alone()
    desk.report.alone()
    assert len(desk.warnings) == 1
    desk.report.member_seen(member("a"))
    desk.report.member_seen(member("b"))
    desk.report.member_lost(PeerId("a"), "gone")
    assert len(desk.warnings) == 1
    desk.report.member_lost(PeerId("b"), "gone")
    desk.report.member_lost(PeerId("b"), "gone")
    assert len(desk.warnings) == 2


def test_the_table_of_members_has_me_first_and_the_others_in_order() -> None:
    desk = Desk()
    for peer in ("b", "a"):
        desk.report.member_seen(member(peer))
    desk.report.refresh(desk.machine, force=True)
    table = desk.feed.status.members
    assert [one.peer_id for one in table] == [desk.scribe.me, "a", "b"]
    assert [one.me for one in table] == [True, False, False]
    assert desk.feed.status.why == desk.machine.why()


def test_a_refresh_that_changes_nothing_is_not_made_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    desk = Desk()
    desk.report.refresh(desk.machine)
    made: list[dict[str, object]] = []
    monkeypatch.setattr(desk.feed, "update", lambda **changes: made.append(changes))
    desk.report.refresh(desk.machine)
    assert made == []
    desk.report.refresh(desk.machine, force=True)
    assert len(made) == 1


def test_a_loss_that_is_no_number_is_no_loss() -> None:
    desk = Desk()
    progress = Progress(
        round=Round(1),
        step=1,
        steps=2,
        loss=math.nan,
        samples_per_second=3.0,
        learning_rate=0.1,
        learnt=4,
    )
    desk.report.progress(progress)
    status = desk.feed.status
    assert (status.loss, status.inner_step, status.samples_per_second) == (None, 1, 3.0)


def test_the_first_evaluation_stays_beside_the_newest() -> None:
    desk = Desk()
    for round, loss in ((1, 4.0), (2, 3.0)):
        desk.report.evaluated(Evaluated(round=Round(round), loss=loss))
    status = desk.feed.status
    assert (status.eval_loss_first, status.eval_loss, status.eval_round) == (4.0, 3.0, 2)


def test_what_was_counted_is_shown_with_the_swarms_figures() -> None:
    desk = Desk()
    desk.report.count("packets_refused")
    desk.report.count("packets_refused", 2)
    desk.report.refresh(desk.machine, force=True)
    assert desk.feed.status.counters == {
        "packets_refused": 3,
        "messages_dropped": 0,
        "calls_failed": 0,
    }


def test_compression_is_against_the_whole_model() -> None:
    desk = Desk()
    desk.report.dense_bytes = 1000
    desk.report.packet_made(Round(1), 10, 64, "it fits")
    assert (desk.feed.status.packet_bytes, desk.feed.status.compression) == (10, 100.0)
