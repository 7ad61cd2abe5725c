"""Partitions, losses and bad clocks, on the memory network."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from demoloco.errors import SwarmError
from demoloco.swarm.calls import Hello, decode_hello_reply, encode_blob_request, encode_hello
from demoloco.swarm.memory import MemoryNetwork
from demoloco.swarm.port import MemberLost, MemberSeen, OffersHeard
from demoloco.swarm.service import PeerService
from demoloco.swarm.standing import Standing
from demoloco.swarm.transport import Method, Refused
from demoloco.swarm.twice import MAX_JUMP
from demoloco.wire import decode_member, digest_of, encode_member, seal
from tests.contract.swarm_lab import TIMING, MemoryLab, Node, Shelf, a_run, an_offer, met
from tests.wire.values import ME, MEMBER, OTHER

# A lost message costs its caller the whole deadline; it must fit into a member's patience.
HASTY = replace(TIMING, call_seconds=0.3, connect_seconds=0.3)


@pytest.fixture
async def lab(tmp_path: Path) -> AsyncIterator[MemoryLab]:
    lab = MemoryLab(tmp_path)
    yield lab
    await lab.close()


async def trio(lab: MemoryLab) -> tuple[Node, Node, Node]:
    first = lab.node(timing=HASTY)
    run = a_run(first)
    await first.start(run)
    others = lab.node(first.address, timing=HASTY), lab.node(first.address, timing=HASTY)
    await asyncio.gather(*(other.start(run) for other in others))
    await met(first, *others)
    return first, *others


async def test_a_partition_loses_members_and_its_end_brings_them_back(lab: MemoryLab) -> None:
    first, second, third = await trio(lab)
    lab.network.partition([first.peer, second.peer], [third.peer])
    await first.hears(MemberLost, lambda e: e.peer == third.peer)
    await third.hears(MemberLost, lambda e: e.peer == second.peer)
    assert "no sign of life" in (await third.hears(MemberLost)).why
    for node in (first, second, third):
        node.heard.clear()
    lab.network.heal()
    await first.hears(MemberSeen, lambda e: e.member.peer == third.peer)
    await third.hears(MemberSeen, lambda e: e.member.peer == second.peer)


async def test_a_member_that_only_others_reach_stays_a_member(lab: MemoryLab) -> None:
    first, second, third = await trio(lab)
    lab.network.sever(second.peer, third.peer)
    second.heard.clear()
    for _ in range(12):  # longer than anybody's patience, in words of the third
        await second.hears_anew(MemberSeen, lambda e: e.member.peer == third.peer)
    assert not [event for event in second.heard if isinstance(event, MemberLost)]
    assert first.swarm.traffic.dropped == 0


async def test_a_slow_member_does_not_hold_up_an_announcement(lab: MemoryLab) -> None:
    patient = replace(TIMING, settle_seconds=0.2, call_seconds=60.0, missed_heartbeats=1000)
    first = lab.node(timing=patient)
    run = a_run(first)
    await first.start(run)
    second, third = lab.node(first.address), lab.node(first.address)
    await asyncio.gather(second.start(run), third.start(run))
    await met(first, second, third)
    lab.network.partition([first.peer, second.peer], [third.peer])
    began = asyncio.get_running_loop().time()
    await first.swarm.announce([an_offer(first)])
    assert asyncio.get_running_loop().time() - began < 5.0
    await second.hears(OffersHeard)


async def test_a_swarm_with_losses_still_knows_its_members(tmp_path: Path) -> None:
    lab = MemoryLab(tmp_path)
    lab.network = MemoryNetwork(3, loss=0.1)
    try:
        first, second, third = await trio(lab)
        blob = first.shelf.put(bytes(1000))
        for _ in range(5):
            assert await fetched(second, blob, first) == bytes(1000)
        assert third.peer in second.swarm._standing.roster
    finally:
        await lab.close()


async def fetched(node: Node, blob, holder: Node) -> bytes:
    for _ in range(5):
        try:
            return await node.swarm.fetch(blob, [holder.peer])
        except SwarmError:
            continue
    raise AssertionError("five fetches of three passes each failed")


async def test_a_node_without_seeds_finds_its_run_by_hints(lab: MemoryLab) -> None:
    first = lab.node()
    run = a_run(first)
    await first.start(run)
    second = lab.node()
    await second.start(run)
    await met(first, second)
    assert first.address in second.swarm.known_addresses()


def test_a_hint_says_where_and_not_who_is_live() -> None:
    events: list[object] = []
    here = standing_of(Shelf(), events)
    forged = record_of(OTHER, 9)[:-1] + b"\0"
    here.take_hints([forged, record_of(OTHER, 9), record_of(ME, 9)])
    assert here.known == {OTHER.peer_id: MEMBER.addresses}
    assert (len(here.roster), events, here.dropped) == (0, [], 1)


async def test_the_networks_faults_follow_from_its_seed() -> None:
    one, other = MemoryNetwork(5, loss=0.5), MemoryNetwork(5, loss=0.5)
    assert [one.rng.random() for _ in range(9)] == [other.rng.random() for _ in range(9)]


# The parts behind the mesh


def standing_of(shelf: Shelf, events: list[object]) -> Standing:
    here = Standing(
        identity=ME,
        emit=events.append,
        library=shelf,
        rng=random.Random(0),
        now=lambda: 0.0,
        wall=lambda: 1000.0,
    )
    here.run = MEMBER.run
    here.record = replace(MEMBER, sequence=0)
    here.renew()
    return here


def record_of(identity, sequence: int, **change: object) -> bytes:
    member = replace(MEMBER, peer=identity.peer_id, sequence=sequence, **change)
    return seal("member", identity.sign, encode_member(member))


def test_a_node_whose_clock_went_back_outbids_its_earlier_words() -> None:
    events: list[object] = []
    here = standing_of(Shelf(), events)
    assert decode_member(here.sealed, lambda *_: True).sequence == 1_000_000
    here.take_records([record_of(ME, 5_000_000)], carrier=OTHER.peer_id)
    here.renew()
    assert 0 < decode_member(here.sealed, lambda *_: True).sequence - 5_000_001 <= MAX_JUMP
    assert events == []


def test_a_peer_whose_words_are_old_is_shown_the_newer_ones() -> None:
    here = standing_of(Shelf(), [])
    newer = record_of(OTHER, 9)
    here.take_records([newer], carrier=OTHER.peer_id)
    body = encode_hello(Hello(here.run, (record_of(OTHER, 3),)))
    reply = decode_hello_reply(PeerService(here).answer(OTHER.peer_id, Method.HELLO, body))
    assert newer in reply.records
    assert reply.clock_ms == 1_000_000


def test_records_that_are_forged_or_of_another_run_are_counted_and_dropped() -> None:
    events: list[object] = []
    here = standing_of(Shelf(), events)
    forged = bytearray(record_of(OTHER, 9))
    forged[-1] ^= 1
    here.take_records(
        [bytes(forged), b"junk", record_of(OTHER, 9, run=digest_of(b"other"))], ME.peer_id
    )
    assert here.dropped == 3
    assert events == []
    here.take_records([record_of(ME, 5_000_000)[:-1] + b"\0"], carrier=OTHER.peer_id)
    here.renew()
    assert decode_member(here.sealed, lambda *_: True).sequence < 5_000_000


def test_a_request_beyond_the_blob_is_refused() -> None:
    shelf = Shelf()
    blob = shelf.put(bytes(10))
    here = standing_of(shelf, [])
    service = PeerService(here)
    beyond = encode_blob_request(here.own_run, blob.digest, 10)
    with pytest.raises(Refused, match="offset 10 of a blob of 10 bytes"):
        service.open_stream(ME.peer_id, beyond)


def test_a_peer_before_its_run_says_so() -> None:
    here = standing_of(Shelf(), [])
    service = PeerService(here)
    asked = encode_hello(Hello(None, ()))
    reply = decode_hello_reply(service.answer(OTHER.peer_id, Method.HELLO, asked))
    assert (reply.run, reply.records) == (here.run, ())
    run, here.run = here.run, None
    with pytest.raises(Refused, match="not entered a run"):
        service._check_run(OTHER.peer_id, run)
    with pytest.raises(SwarmError, match="not entered a run"):
        assert here.own_run
    with pytest.raises(Refused, match="a request of"):
        service.answer(OTHER.peer_id, Method.HELLO, bytes((1 << 20) + 1))
    with pytest.raises(Refused, match="not a Hello"):
        service.answer(OTHER.peer_id, Method.HELLO, b"\xff")
    assert here.dropped == 2
