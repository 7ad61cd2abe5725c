"""Who listens to a feed misses no phase of a round, and can't slow it down."""

from __future__ import annotations

import asyncio
import logging

import pytest

from demoloco.node.feed import MAX_PENDING, Feed, Status

LONG = 30.0
SHORT = 0.001


async def test_every_change_of_phase_is_heard_in_order() -> None:
    feed = Feed()
    with feed.subscribe() as news:
        for phase in ("joining", "training", "exchanging"):
            feed.update(phase=phase)
        heard = [await news.next(LONG) for _ in range(3)]
    assert [status.phase for status in heard if status] == ["joining", "training", "exchanging"]


async def test_a_new_round_is_heard_even_if_the_phase_is_the_same() -> None:
    feed = Feed(Status(phase="training", round=1))
    with feed.subscribe() as news:
        feed.update(round=2, fingerprint="two")
        feed.update(round=3, fingerprint="three")
        heard = [await news.next(LONG) for _ in range(2)]
    assert [(s.round, s.fingerprint) for s in heard if s] == [(2, "two"), (3, "three")]


async def test_what_lies_between_two_moments_is_heard_as_its_newest_only() -> None:
    feed = Feed(Status(phase="training"))
    with feed.subscribe() as news:
        feed.update(round=1, loss=3.0)
        feed.update(loss=2.0)
        feed.update(loss=1.0)
        first = await news.next(LONG)
        second = await news.next(SHORT)
    assert first is not None
    assert first.loss == 1.0
    assert second is not None
    assert second.loss == 1.0


async def test_without_a_moment_the_status_of_now_comes_after_the_patience() -> None:
    feed = Feed(Status(phase="training"))
    with feed.subscribe() as news:
        feed.update(inner_step=7)
        status = await news.next(SHORT)
    assert status is not None
    assert status.inner_step == 7


async def test_a_waiting_listener_is_woken_by_a_moment() -> None:
    feed = Feed()
    with feed.subscribe() as news:
        waiting = asyncio.create_task(news.next(LONG))
        await asyncio.sleep(0)
        feed.update(phase="training")
        status = await waiting
    assert status is not None
    assert status.phase == "training"


async def test_a_slow_listener_loses_the_oldest_and_no_memory() -> None:
    feed = Feed()
    with feed.subscribe() as news:
        for number in range(1, MAX_PENDING + 11):
            feed.update(round=number)
        rounds = []
        for _ in range(MAX_PENDING):
            status = await news.next(LONG)
            assert status is not None
            rounds.append(status.round)
    assert rounds == list(range(11, MAX_PENDING + 11))


async def test_a_closed_feed_ends_its_listeners_after_what_they_have_not_read() -> None:
    feed = Feed()
    with feed.subscribe() as news:
        feed.update(phase="leaving")
        feed.close()
        last = await news.next(LONG)
        assert last is not None
        assert last.phase == "leaving"
        assert await news.next(LONG) is None


async def test_the_last_figures_before_the_close_are_heard() -> None:
    feed = Feed()
    with feed.subscribe() as news:
        feed.update(phase="leaving")
        assert await news.next(LONG) is not None
        feed.update(eval_loss=1.5)
        feed.close()
        last = await news.next(LONG)
        assert last is not None
        assert last.eval_loss == 1.5
        assert await news.next(LONG) is None


async def test_a_listener_that_comes_after_the_close_ends_at_once() -> None:
    feed = Feed()
    feed.close()
    with feed.subscribe() as news:
        assert await news.next(LONG) is None


async def test_who_has_left_hears_nothing_any_more() -> None:
    feed = Feed()
    with feed.subscribe() as gone:
        pass
    feed.update(phase="training")
    status = await gone.next(SHORT)
    assert status is not None
    assert await gone.next(SHORT) == status or status.phase == "training"


def test_a_field_that_the_status_does_not_have_is_a_bug_and_says_so() -> None:
    with pytest.raises(TypeError, match="lost"):
        Feed().update(lost=1.0)


def test_the_uptime_is_that_of_the_moment_of_asking() -> None:
    times = iter([100.0, 103.5])
    assert Feed(clock=lambda: next(times)).status.uptime_seconds == 3.5


def test_a_line_is_one_log_record_of_the_project(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        Feed().line("round committed", round=3)
        Feed().warn("packet dropped", name="x")
    assert [record.levelname for record in caplog.records] == ["INFO", "WARNING"]
    assert {record.name for record in caplog.records} == {"demoloco"}
