"""The law that all real daemons stand under finds what it should find."""

from __future__ import annotations

from typing import Any

from benchmarks.law import Law
from demoloco_proto.v1.control_pb2 import StatusReply

LINES: list[dict[str, Any]] = [
    {"event": "standing at round 4, head aa"},
    {"event": "round committed", "round": 5, "head": "bb", "own_samples": 8},
    {"event": "round undone", "round": 5, "head": "bb", "own_samples": 8},
    {"event": "round committed", "round": 5, "head": "cc", "own_samples": 0},
    {"event": "round committed", "round": 6, "head": "dd", "own_samples": 12},
]


def showed(head: str, learnt: int, told: int, owed: int) -> StatusReply:
    return StatusReply(
        head=head * 32, samples_learnt=learnt, samples_told=told, samples_owed=owed, round=6
    )


def breaches(*statuses: StatusReply, lines: list[dict[str, Any]] = LINES) -> list[str]:
    law = Law("node")
    law.check(statuses, lines)
    return law.breaches


LAWFUL = (
    showed("aa", 108, 100, 8),
    showed("bb", 108, 108, 0),
    showed("cc", 112, 100, 12),
    showed("dd", 120, 112, 8),
)


def test_lawful_figures_pass() -> None:
    assert breaches(*LAWFUL) == []


def test_a_packet_that_counts_twice_is_found() -> None:
    twice = breaches(*LAWFUL[:3], showed("dd", 132, 124, 8))
    assert twice == ["node: at round 6 124 told, but by its own lines it is 112"]
    assert breaches(showed("dd", 120, 124, 8)) == [
        "node: at round 6 120 learnt, but 124 told and 8 owed"
    ]


def test_what_is_owed_no_longer_and_was_not_told_is_found() -> None:
    assert breaches(showed("aa", 108, 100, 0)) == [
        "node: at round 6 108 learnt, but 100 told and 0 owed"
    ]


def test_an_undone_round_that_still_counts_is_found() -> None:
    assert len(breaches(*LAWFUL[:2], showed("cc", 120, 108, 12))) == 1


def test_a_life_that_forgot_what_an_earlier_one_told_is_found() -> None:
    law = Law("node")
    law.check(LAWFUL, LINES)
    law.check([showed("dd", 112, 100, 12)], [{"event": "standing at round 6, head dd"}])
    assert law.breaches == ["node: at round 6 100 told, but by its own lines it is 112"]


def test_rounds_of_a_life_that_ended_before_it_logged_them_break_nothing() -> None:
    law = Law("node")
    law.check(LAWFUL, LINES)
    law.check([showed("ee", 120, 120, 0)], [{"event": "standing at round 7, head ee"}])
    assert law.breaches == []
