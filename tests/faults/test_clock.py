"""Clocks that are a minute off: nobody is lost by it, and the operator reads what is wrong."""

from __future__ import annotations

import logging
import time
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest
from hivemind.dht.routing import DHTID
from hivemind.dht.validation import DHTRecord
from hivemind.utils import MSGPackSerializer, get_dht_time

from demoloco.bounds import peer_to_raw
from demoloco.swarm.clocks import AGAIN_SECONDS, Clocks
from demoloco.swarm.hivemind import hints as hivemind_hints
from demoloco.swarm.hivemind.hints import RECORD_SECONDS, OnlyMembers, key_of
from demoloco.swarm.identity import Identity
from demoloco.swarm.port import MemberLost, MemberSeen
from demoloco.types import PeerId
from demoloco.wire import encode_member, seal
from tests.contract.swarm_lab import HIVEMIND_WARNINGS, MemoryLab, Node, a_run
from tests.wire.values import ME, MEMBER

pytestmark = HIVEMIND_WARNINGS

ANN, BOB, CAT = PeerId("ann"), PeerId("bob"), PeerId("cat")


def clocks(**ahead_of: float) -> Clocks:
    """Mine shows 1000 s; it is so many seconds ahead of each of these."""
    made = Clocks()
    for peer, seconds in ahead_of.items():
        made.note(PeerId(peer), int((1000.0 - seconds) * 1000), 999.9, 1000.1)
    return made


def test_the_median_clock_is_right() -> None:
    made = clocks(ann=60.0, bob=60.0, cat=0.0)
    assert made.ahead_seconds([ANN, BOB]) == pytest.approx(60.0)
    assert made.ahead_seconds([ANN, CAT]) == pytest.approx(0.0)
    assert made.ahead_seconds([ANN, BOB, CAT]) == pytest.approx(30.0)
    assert made.ahead_seconds([PeerId("who")]) == 0.0


def test_of_two_clocks_nobody_can_say_which_is_wrong(caplog: pytest.LogCaptureFixture) -> None:
    assert clocks(ann=60.0).ahead_seconds([ANN]) == pytest.approx(60.0)
    made = clocks(ann=-60.0)
    assert made.ahead_seconds([ANN]) == pytest.approx(-60.0)
    made.complain([ANN], 0.0)
    assert "behind the only other member's, and one of the two is wrong" in caplog.messages[0]


def test_an_answer_that_was_long_under_way_tells_no_time() -> None:
    made = Clocks()
    made.note(ANN, 900_000, 1000.0, 1010.0)
    made.note(BOB, 0, 1000.0, 1000.1)
    made.note(CAT, 900_000, 1000.0, 999.0)
    assert made.ahead_seconds([ANN, BOB, CAT]) == 0.0


def test_the_table_of_clocks_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("demoloco.swarm.clocks.MAX_CLOCKS", 2)
    assert clocks(ann=60.0, bob=0.0, cat=0.0).ahead_seconds([ANN]) == 0.0


def test_a_clock_that_is_off_is_told_when_it_begins_and_ends_and_not_all_the_time(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    made = clocks(ann=60.0, bob=60.0)
    for now in range(100):
        made.complain([ANN, BOB], float(now))
    (line,) = caplog.messages
    assert line.startswith("clock=off seconds=60 why=this machine's clock is ahead of")
    assert "timedatectl set-ntp true" in line
    made.complain([ANN, BOB], AGAIN_SECONDS)
    assert len(caplog.messages) == 2
    made.complain([], AGAIN_SECONDS)  # who is alone learns nothing new
    assert len(caplog.messages) == 2
    for peer in (ANN, BOB):
        made.note(peer, 1_000_000, 1000.0, 1000.0)
    made.complain([ANN, BOB], AGAIN_SECONDS)
    made.complain([ANN, BOB], AGAIN_SECONDS)
    assert caplog.messages[2:] == ["clock=right seconds=0.0"]


# Whole nodes


@pytest.fixture
async def lab(tmp_path: Path) -> AsyncIterator[MemoryLab]:
    lab = MemoryLab(tmp_path)
    yield lab
    await lab.close()


async def shifted(lab: MemoryLab, seconds: float, *seeds: str, run=None, **options) -> Node:
    """A node on a machine whose clock is so much ahead."""
    node = lab.node(*seeds, **options)
    run = run or a_run(node)
    await node.start()
    node.swarm._standing.wall = lambda: time.time() + seconds
    node.swarm.enter(run)
    node.say(run)
    return node


@pytest.mark.parametrize("seconds", [60.0, -60.0])
async def test_a_node_whose_clock_is_off_joins_stays_and_leaves(
    lab: MemoryLab, seconds: float, caplog: pytest.LogCaptureFixture
) -> None:
    first = await shifted(lab, 0.0)
    run = a_run(first)
    second = await shifted(lab, 0.0, first.address, run=run)
    odd = await shifted(lab, seconds, first.address, run=run)
    for node in (first, second):
        for _ in range(10):  # longer than anybody's patience
            await node.hears_anew(MemberSeen, lambda e: e.member.peer == odd.peer)
        assert not [event for event in node.heard if isinstance(event, MemberLost)]
    await odd.hears(MemberSeen, lambda e: e.member.peer == second.peer)
    word = "ahead of" if seconds > 0 else "behind"
    lines = [line for line in caplog.messages if "clock=off" in line]
    assert [line for line in lines if f"seconds=60 why=this machine's clock is {word}" in line]
    await odd.swarm.stop()
    lost = await second.hears(MemberLost, lambda e: e.peer == odd.peer)
    assert lost.why == "said goodbye"


async def test_a_node_that_comes_back_with_an_earlier_clock_is_a_member_at_once(
    lab: MemoryLab,
) -> None:
    first = await shifted(lab, 0.0)
    run = a_run(first)
    ahead = await shifted(lab, 60.0, first.address, run=run)
    before = await first.hears(MemberSeen, lambda e: e.member.peer == ahead.peer)
    await lab.kill(ahead)
    await ahead.swarm._tasks.cancel()
    await first.hears(MemberLost, lambda e: e.peer == ahead.peer)
    first.heard.clear()
    behind = await shifted(
        lab,
        -60.0,
        first.address,
        run=run,
        identity=ahead.swarm._identity,
        address="/memory/later",
    )
    after = await first.hears(MemberSeen, lambda e: e.member.peer == behind.peer)
    assert after.member.sequence > before.member.sequence
    assert after.member.addresses == ("/memory/later",)


# Hints in the DHT


def left_by(identity: Identity, clock_seconds: float) -> DHTRecord:
    """What a member leaves whose clock is so much ahead."""
    member = seal("member", identity.sign, encode_member(replace(MEMBER, peer=identity.peer_id)))
    return DHTRecord(
        key=DHTID.generate(key_of(MEMBER.run)).to_bytes(),
        subkey=MSGPackSerializer.dumps(peer_to_raw(identity.peer_id)),
        value=MSGPackSerializer.dumps(member),
        expiration_time=get_dht_time() + clock_seconds + RECORD_SECONDS,
    )


@pytest.mark.parametrize("seconds", [60.0, -60.0, 600.0, -500.0])
def test_a_hint_is_good_where_the_clock_is_off(seconds: float) -> None:
    validator = OnlyMembers()
    validator.run = MEMBER.run
    record = left_by(ME, seconds)
    assert validator.validate(record)
    assert record.expiration_time > get_dht_time() + 60.0


def test_the_dht_keeps_the_hints_of_so_many_members_and_no_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(hivemind_hints, "MAX_RECORDS", 2)
    validator = OnlyMembers()
    validator.run = MEMBER.run
    names = [Identity.new() for _ in range(3)]
    assert [validator.validate(left_by(name, 0.0)) for name in names] == [True, True, False]
    assert validator.validate(left_by(names[0], 0.0))
    now = get_dht_time()
    monkeypatch.setattr(hivemind_hints, "get_dht_time", lambda: now + 2 * RECORD_SECONDS)
    assert validator.validate(left_by(names[2], 2 * RECORD_SECONDS))
