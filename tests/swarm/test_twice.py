"""One identity in two homes is told loudly; words of an earlier life are not."""

from __future__ import annotations

import random
from typing import Any

import pytest

from demoloco.swarm.identity import Identity
from demoloco.swarm.standing import Standing
from demoloco.swarm.twice import MAX_JUMP, MAX_OUTBIDS, ROW_SECONDS
from demoloco.types import Digest, Member, Phase

RUN = Digest(b"R" * 32)
LIBRARY: Any = None


class Time:
    """Seconds that pass when a test says so."""

    def __init__(self) -> None:
        self.now = 1000.0


def standing(identity: Identity, time: Time, ahead: float = 0.0, seed: int = 0) -> Standing:
    """A node of this identity, whose clock is ahead by so many seconds."""
    here = Standing(
        identity=identity,
        emit=lambda event: None,
        library=LIBRARY,
        rng=random.Random(seed),
        now=lambda: time.now,
        wall=lambda: time.now + ahead,
        run=RUN,
    )
    here.record = Member(
        peer=identity.peer_id,
        run=RUN,
        addresses=("/ip4/127.0.0.1/tcp/1",),
        head=None,
        phase=Phase.TRAINING,
        sequence=0,
    )
    here.renew()
    return here


def _twice(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.message for record in caplog.records if "identity=twice" in record.message]


@pytest.mark.parametrize("ahead", [0.0, -5000.0, 5000.0])
def test_two_homes_with_one_identity_are_both_warned(
    ahead: float, caplog: pytest.LogCaptureFixture
) -> None:
    """Whatever the clock of the second says: a third member carries their words to each other."""
    time, identity, carrier = Time(), Identity.new(), Identity.new().peer_id
    homes = [standing(identity, time), standing(identity, time, ahead, seed=1)]
    for _ in range(2 * MAX_OUTBIDS + 1):
        for here, other in (homes, reversed(homes)):
            time.now += 1.0
            here.renew()
            other.take_records([here.sealed], carrier)
    assert len(_twice(caplog)) == 2
    assert "--home" in _twice(caplog)[0]
    for _ in range(60):
        for here, other in (homes, reversed(homes)):
            time.now += 1.0
            here.renew()
            other.take_records([here.sealed], carrier)
    assert 4 <= len(_twice(caplog)) <= 7  # once a minute, each


def test_words_of_an_earlier_life_from_a_clock_ahead_are_no_alarm(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """They come from many members, each with another of the last words, oldest first."""
    time, identity = Time(), Identity.new()
    before = standing(identity, time, ahead=86_400.0)
    words = []
    for _ in range(300):  # ten minutes of heartbeats
        time.now += 2.0
        before.renew()
        words.append(before.sealed)
    after = standing(identity, time, seed=3)
    for word in words:
        time.now += 0.5
        after.take_records([word], Identity.new().peer_id)
        after.renew()
    assert after.record is not None
    assert before.record is not None
    assert after.record.sequence > before.record.sequence
    assert _twice(caplog) == []


def test_strange_words_that_come_rarely_are_no_alarm(caplog: pytest.LogCaptureFixture) -> None:
    time, identity = Time(), Identity.new()
    here, before = standing(identity, time), standing(identity, time)
    for _ in range(3 * MAX_OUTBIDS):
        time.now += ROW_SECONDS + 1
        assert here.record is not None
        before._sequence = here.record.sequence + 2 * MAX_JUMP
        before.renew()
        here.take_records([before.sealed], Identity.new().peer_id)
        here.renew()
    assert _twice(caplog) == []
