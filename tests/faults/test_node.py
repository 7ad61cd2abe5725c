"""What a node does of itself about its swarm's faults: it says that it is alone, notes whom it met,
asks for its old port, and lets nobody fill its inbox."""

from __future__ import annotations

import json
import socket
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from demoloco.errors import StoreError
from demoloco.node import report as report_module
from demoloco.node.acquaintances import KEY, Acquaintances
from demoloco.node.disk import Disk
from demoloco.node.driver import MAX_WAITING
from demoloco.node.feed import Feed
from demoloco.node.listening import listen_addresses
from demoloco.node.report import ALONE, SILENT_SECONDS, Report
from demoloco.store.memory import MemoryStore
from demoloco.swarm.port import Link, MemberLost, MemberSeen, OffersHeard, Traffic
from demoloco.types import Manifest, Phase
from tests.node.cluster import cluster
from tests.wire.values import DRAFT, ME, MEMBER, OFFER, OTHER, name


class Swarm:
    """As much of one as a report reads."""

    traffic = Traffic()
    link = Link()
    addresses: tuple[str, ...] = ()

    def __init__(self) -> None:
        self.known: tuple[str, ...] = ()

    def known_addresses(self) -> tuple[str, ...]:
        return self.known


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(report_module, "time", made)
    return made


def desk(caplog: pytest.LogCaptureFixture) -> Report:
    caplog.set_level("INFO")
    return Report(Feed(), Swarm(), ME.peer_id)


def lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    events = [r.msg["event"] if isinstance(r.msg, dict) else str(r.msg) for r in caplog.records]
    return [event for event in events if "alone" in event]


def a_round(*contributors: str) -> Manifest:
    entries = tuple(replace(DRAFT.entries[0], contributor=peer) for peer in contributors)
    return Manifest(**asdict(DRAFT) | {"entries": entries, "digest": name("manifest")})


def test_a_node_that_nobody_joined_is_alone_from_its_first_round_on(
    caplog: pytest.LogCaptureFixture, clock: Clock
) -> None:
    report = desk(caplog)
    for _ in range(3):
        report.round_applied(a_round(ME.peer_id), mine_was_out=True)
    assert lines(caplog) == [ALONE]


def test_a_node_that_loses_the_last_member_is_alone_at_once(
    caplog: pytest.LogCaptureFixture, clock: Clock
) -> None:
    report = desk(caplog)
    report.member_seen(replace(MEMBER, peer=OTHER.peer_id))
    report.round_applied(a_round(ME.peer_id), mine_was_out=True)
    assert lines(caplog) == []
    report.member_lost(OTHER.peer_id, "no sign of life for 10.0 s")
    report.round_applied(a_round(ME.peer_id), mine_was_out=True)
    assert lines(caplog) == [ALONE]
    report.member_seen(replace(MEMBER, peer=OTHER.peer_id))
    report.member_seen(replace(MEMBER, peer=OTHER.peer_id))
    assert lines(caplog) == [ALONE, "no longer alone"]


def test_a_round_that_no_silent_member_took_part_in_is_told_before_they_are_lost(
    caplog: pytest.LogCaptureFixture, clock: Clock
) -> None:
    report = desk(caplog)
    report.member_seen(replace(MEMBER, peer=OTHER.peer_id))
    clock.now += SILENT_SECONDS + 0.1
    report.round_applied(a_round(ME.peer_id, OTHER.peer_id), mine_was_out=True)
    assert lines(caplog) == []
    report.round_applied(a_round(ME.peer_id), mine_was_out=True)
    assert lines(caplog) == [ALONE]
    report.member_seen(replace(MEMBER, peer=OTHER.peer_id))
    assert lines(caplog) == [ALONE, "no longer alone"]


# The inbox


async def test_nobody_fills_the_inbox(tmp_path: Path) -> None:
    async with cluster(tmp_path) as made:
        (node,) = await made.found(1)
        await made.all_reach(1)
        driver, run = node.driver, node.run.digest
        member = replace(MEMBER, run=run, peer=OTHER.peer_id, head=None, phase=Phase.JOINING)
        before = driver._inbox.qsize()
        for number in range(5_000):
            driver.hear_swarm(MemberSeen(replace(member, sequence=number + 1)))
        assert driver._inbox.qsize() == before + 1
        for _ in range(5_000):
            driver.hear_swarm(OffersHeard(OTHER.peer_id, (OFFER,)))
        assert driver._inbox.qsize() <= MAX_WAITING
        reached = node.round
        await made.all_reach(reached + 2)
        seen = node.parts.machine.state.members._seen[OTHER.peer_id]
        assert seen.sequence == 5_000
        assert node.feed.status.counters["words_dropped"] > 4_000


async def test_a_member_that_goes_and_comes_again_is_there(tmp_path: Path) -> None:
    async with cluster(tmp_path) as made:
        (node,) = await made.found(1)
        member = replace(MEMBER, run=node.run.digest, peer=OTHER.peer_id, head=None)
        node.driver.hear_swarm(MemberSeen(member))
        node.driver.hear_swarm(MemberLost(OTHER.peer_id, "away"))
        node.driver.hear_swarm(MemberSeen(replace(member, sequence=member.sequence + 1)))
        await made.until(lambda: node.driver._inbox.empty())
        assert OTHER.peer_id in node.parts.machine.state.members


# Notes for the next start


async def test_whom_a_node_meets_is_noted_when_it_changes(caplog: pytest.LogCaptureFixture) -> None:
    store, swarm, disk = MemoryStore(), Swarm(), Disk()
    notes: list[bytes] = []
    note = store.note
    store.note = lambda key, value: (notes.append(value), note(key, value))[1]
    met = Acquaintances(swarm, store, disk, desk(caplog))
    for known in ((), ("/a", "/b"), ("/b", "/a"), ("/a", "/b", "/c")):
        swarm.known = known
        await met.note()
    assert len(notes) == 2
    assert json.loads(store.noted(KEY) or b"") == ["/a", "/b", "/c"]
    disk.close()


async def test_a_disk_that_takes_no_notes_is_a_line_and_no_end(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def refuse(key: str, value: bytes) -> None:
        raise StoreError("the disk is full")

    store, swarm, disk = MemoryStore(), Swarm(), Disk()
    store.note = refuse
    swarm.known = ("/a",)
    await Acquaintances(swarm, store, disk, desk(caplog)).note()
    assert "addresses not noted" in str(caplog.records[-1].msg)
    disk.close()


async def test_the_port_of_the_last_start_is_asked_for_again() -> None:
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        port = held.getsockname()[1]
    last = (f"/ip4/127.0.0.1/tcp/{port}",)
    wished = ("/ip4/127.0.0.1/tcp/0", "/ip4/127.0.0.1/tcp/7")
    assert await listen_addresses(wished, last) == (last[0], wished[1])


async def test_a_port_whose_last_connections_are_still_ending_is_free() -> None:
    with socket.socket() as server:
        server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        server.bind(("127.0.0.1", 0))
        server.listen()
        port = server.getsockname()[1]
        with socket.create_connection(("127.0.0.1", port)):
            served, _ = server.accept()
            served.close()  # the side that closes first keeps the port in TIME_WAIT
    last = (f"/ip4/127.0.0.1/tcp/{port}",)
    assert await listen_addresses(("/ip4/127.0.0.1/tcp/0",), last) == last


async def test_a_port_that_somebody_else_has_is_left_to_them() -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        last = (f"/ip4/127.0.0.1/tcp/{other.getsockname()[1]}",)
        wished = ("/ip4/127.0.0.1/tcp/0",)
        assert await listen_addresses(wished, last) == wished
