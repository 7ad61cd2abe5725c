"""When a round is told, and what of."""

from __future__ import annotations

from typing import Any

from demoloco_client.round_lines import MAX_LAG, RoundLines
from demoloco_proto.v1.control_pb2 import StatusReply


def lines_and_clock() -> tuple[RoundLines, list[float]]:
    now = [0.0]
    return RoundLines(lambda: now[0]), now


def reply(number: int, **fields: Any) -> StatusReply:
    values = {"phase": "training", "fingerprint": f"state {number}", "parameters": 1000} | fields
    return StatusReply(round=number, **values)


def test_a_round_is_told_when_all_have_reached_it() -> None:
    lines, now = lines_and_clock()
    lines.hear("a", reply(0))
    lines.hear("b", reply(0))
    lines.hear("a", reply(1, loss=2.0, samples_per_second=10, packet_bytes=100))
    assert list(lines.take()) == []
    now[0] = 61.0
    lines.hear("b", reply(1, loss=4.0, samples_per_second=20, packet_bytes=200))
    (line,) = lines.take()
    assert (line.round, line.seconds, line.loss, line.samples_per_second) == (1, 61.0, 3.0, 30.0)
    assert (line.packet_bytes, line.model_bytes, line.same_state) == (150, 4000, True)
    assert list(lines.take()) == []


def test_different_fingerprints_of_one_round_are_seen() -> None:
    lines, _ = lines_and_clock()
    lines.hear("a", reply(1))
    lines.hear("b", reply(1, fingerprint="other"))
    (line,) = lines.take()
    assert line.same_state is False
    assert "NO, they differ" in line.text()


def test_one_node_alone_proves_nothing() -> None:
    lines, _ = lines_and_clock()
    lines.hear("a", reply(1))
    (line,) = lines.take()
    assert line.same_state is None


def test_a_joining_node_holds_nobody_up() -> None:
    lines, _ = lines_and_clock()
    lines.hear("b", reply(0, phase="joining", fingerprint=""))
    lines.hear("a", reply(5))
    assert [line.round for line in lines.take()] == [5]


def test_a_node_far_behind_holds_nobody_up() -> None:
    lines, _ = lines_and_clock()
    lines.hear("b", reply(1))
    for number in range(1, 3 + MAX_LAG):
        lines.hear("a", reply(number))
    assert [line.round for line in lines.take()] == [1, 2]


def test_a_node_that_left_holds_nobody_up() -> None:
    lines, _ = lines_and_clock()
    lines.hear("b", reply(1))
    lines.hear("a", reply(1))
    lines.hear("a", reply(2))
    lines.forget("b")
    assert [line.round for line in lines.take()] == [1, 2]


def test_what_the_last_one_said_is_told_after_all_have_left() -> None:
    lines, _ = lines_and_clock()
    lines.hear("a", reply(1))
    lines.forget("a")
    assert [line.round for line in lines.take()] == [1]


def test_a_held_out_loss_is_told_once() -> None:
    lines, _ = lines_and_clock()
    told = []
    for number, measured in ((1, 0), (2, 0), (3, 3), (4, 3)):
        lines.hear("a", reply(number, eval_loss=5.0 - measured, eval_round=measured))
        told += [line.eval_loss for line in lines.take()]
    assert told == [5.0, None, 2.0, None]
