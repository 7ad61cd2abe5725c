"""Peers that send garbage, too much, or nothing at all: dropped, counted, survived."""

from __future__ import annotations

import asyncio
import os
import random
import signal
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest
from hivemind.p2p import PeerID

from demoloco.swarm.allowance import MAX_PEERS, Allowance
from demoloco.swarm.calls import Hello, encode_announcement, encode_hello, encode_publication
from demoloco.swarm.complaints import AGAIN_SECONDS, ALL_SECONDS, Complaints
from demoloco.swarm.gossip.rumours import Batch
from demoloco.swarm.hivemind import p2pd
from demoloco.swarm.hivemind.knocking import knock
from demoloco.swarm.hivemind.servicer import NAMESPACE, Message, PeerCalls
from demoloco.swarm.port import MemberLost, MemberSeen, OffersHeard, SwarmEvent
from demoloco.swarm.service import BUSY, BYTES_A_CALL, CALLS_A_SECOND, CALLS_AT_ONCE, PeerService
from demoloco.swarm.standing import Standing
from demoloco.swarm.transport import Fault, Method, Refused, Unreachable
from demoloco.types import PeerId
from demoloco.wire import digest_of
from tests.contract.swarm_lab import (
    HIVEMIND_WARNINGS,
    HivemindLab,
    MemoryLab,
    Node,
    Shelf,
    a_chain,
    a_run,
    an_offer,
    met,
    until,
)
from tests.wire.values import ME, MEMBER, OFFER, OTHER

pytestmark = HIVEMIND_WARNINGS


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def desk() -> tuple[PeerService, Standing, list[SwarmEvent], Clock]:
    """What answers for one node, at a time that the test sets."""
    events: list[SwarmEvent] = []
    clock = Clock()
    here = Standing(
        identity=ME, emit=events.append, library=Shelf(), rng=random.Random(0), now=clock
    )
    here.run = MEMBER.run
    return PeerService(here), here, events, clock


def answered(service: PeerService, peer: PeerId, body: bytes, method: Method, calls: int) -> int:
    """How many of so many calls were let through."""
    through = 0
    for _ in range(calls):
        try:
            service.answer(peer, method, body)
        except Refused as error:
            through += str(error) != BUSY
        else:
            through += 1
    return through


# Limits for each peer


@pytest.mark.parametrize(
    ("method", "body"),
    [
        (Method.HELLO, encode_hello(Hello(MEMBER.run, ()))),
        (Method.ANNOUNCE, encode_announcement(MEMBER.run, Batch(offers=(OFFER,)))),
        (Method.PUBLISH, encode_publication(MEMBER.run, b"")),
        (Method.MANIFESTS, b"\xff"),
        (Method.GENESIS, b""),
    ],
    ids=lambda value: value if isinstance(value, Method) else "",
)
def test_a_flood_of_one_peer_is_cut_to_its_allowance(method: Method, body: bytes) -> None:
    service, here, events, clock = desk()
    assert answered(service, OTHER.peer_id, body, method, 10_000) == CALLS_AT_ONCE
    assert answered(service, ME.peer_id, body, method, 10) == 10  # nobody else suffers
    clock.now += 1.0
    assert answered(service, OTHER.peer_id, body, method, 1_000) == CALLS_A_SECOND
    assert len(events) <= CALLS_AT_ONCE + CALLS_A_SECOND + 10
    assert here.dropped >= 10_000 - CALLS_AT_ONCE


def test_a_flood_of_large_calls_is_cut_by_their_bytes() -> None:
    service, here, _, _ = desk()
    large = encode_announcement(MEMBER.run, Batch(offers=(OFFER,) * 256))
    through = answered(service, OTHER.peer_id, large, Method.ANNOUNCE, 1_000)
    assert through == CALLS_AT_ONCE // (1 + len(large) // BYTES_A_CALL)
    assert here.dropped == 1_000 - through


def test_a_flood_of_streams_is_cut_too() -> None:
    service, _, _, _ = desk()
    refusals = []
    for _ in range(3_000):
        with pytest.raises(Refused) as raised:
            service.open_stream(OTHER.peer_id, b"\xff")
        refusals.append(str(raised.value))
    assert refusals.count(BUSY) == 3_000 - CALLS_AT_ONCE


def test_an_allowance_fills_again_and_the_table_is_bounded() -> None:
    clock = Clock()
    allowance = Allowance(a_second=2.0, at_once=4.0, now=clock)
    assert [allowance.spend(OTHER.peer_id, 3.0) for _ in range(2)] == [True, False]
    clock.now = 1.0
    assert allowance.spend(OTHER.peer_id, 3.0)
    clock.now = 100.0
    assert not allowance.spend(OTHER.peer_id, 4.1)
    for number in range(MAX_PEERS + 10):
        allowance.spend(PeerId(f"peer{number}"), 1.0)
    assert len(allowance._left) == MAX_PEERS


def test_garbage_is_one_line_a_peer_and_minute(caplog: pytest.LogCaptureFixture) -> None:
    complaints = Complaints()
    for tenth in range(10 * int(AGAIN_SECONDS) + 10):
        complaints.note(OTHER.peer_id, "junk", tenth / 10)
    assert caplog.messages == [
        f"garbage=dropped peer={OTHER.peer_id[-6:]} messages=1 why=junk",
        f"garbage=dropped peer={OTHER.peer_id[-6:]} messages=600 why=junk",
    ]


def test_garbage_of_many_peers_is_one_line_a_second(caplog: pytest.LogCaptureFixture) -> None:
    complaints = Complaints()
    for number in range(5_000):
        complaints.note(PeerId(f"peer{number}"), "junk", number / 1000 * ALL_SECONDS)
    assert len(caplog.messages) == 5
    assert len(complaints._peers) <= 1024


async def test_a_member_that_is_busy_stays_a_member(tmp_path: Path) -> None:
    lab = MemoryLab(tmp_path)
    first = lab.node()
    await first.start(a_run(first))
    second = lab.node(first.address)
    await second.start(a_run(first))
    await second.hears(MemberSeen, lambda e: e.member.peer == first.peer)
    transport = lab.network.at(first.swarm.addresses[0])
    assert transport is not None
    transport.service._allowance = Allowance(a_second=0.0, at_once=0.0, now=lambda: 0.0)
    second.heard.clear()
    for _ in range(10):
        await second.hears_anew(MemberSeen, lambda e: e.member.peer == first.peer)
    assert not [event for event in second.heard if isinstance(event, MemberLost)]
    assert second.swarm.traffic.failed_calls > 0
    await lab.close()


# Over libp2p


@pytest.fixture
async def lab(tmp_path: Path) -> AsyncIterator[HivemindLab]:
    lab = HivemindLab(tmp_path)
    yield lab
    await lab.close()


async def three(lab: HivemindLab) -> tuple[Node, Node, Node]:
    first = lab.node()
    run = a_run(first)
    await first.start(run)
    others = lab.node(first.address), lab.node(first.address)
    await asyncio.gather(*(other.start(run) for other in others))
    await met(first, *others)
    return first, *others


async def test_garbage_over_libp2p_is_dropped_counted_and_survived(
    lab: HivemindLab, caplog: pytest.LogCaptureFixture
) -> None:
    first, second, vandal = await three(lab)
    transport, chance = vandal.swarm.transport, random.Random(0)
    sent = 0
    for method in Method:
        for body in (b"\xff", chance.randbytes(1000), bytes(2 << 20)):
            if method is Method.GENESIS and len(body) <= 1000:
                continue  # it asks nothing, so it can ask nothing wrong
            with pytest.raises(Refused):
                await transport.call(first.peer, method, body, 5.0)
            sent += 1
    other_run = encode_announcement(digest_of(b"other"), Batch(offers=(an_offer(vandal),)))
    with pytest.raises(Refused, match="in run"):
        await transport.call(first.peer, Method.ANNOUNCE, other_run, 5.0)
    forged = bytearray(a_chain(vandal, a_run(first), 1)[0])
    forged[-1] ^= 1
    body = encode_publication(a_run(first), bytes(forged))
    with pytest.raises(Refused, match="not signed by"):
        await transport.call(first.peer, Method.PUBLISH, body, 5.0)
    assert first.swarm.traffic.dropped >= sent + 2
    lines = [line for line in caplog.messages if line.startswith("garbage=dropped")]
    assert len(lines) == 1
    assert vandal.peer[-6:] in lines[0]
    await first.swarm.announce([an_offer(first, 7)])
    await second.hears(OffersHeard, lambda e: e.offers == (an_offer(first, 7),))


async def test_methods_that_there_are_not_and_calls_beyond_all_limits_harm_nobody(
    lab: HivemindLab, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = lab.node()
    await first.start(a_run(first))
    monkeypatch.setattr(p2pd, "MAX_UNARY_BYTES", 64 << 20)
    vandal = lab.node(first.address)
    await vandal.start(a_run(first))
    await met(first, vandal)
    p2p = vandal.swarm.transport._up
    stub = PeerCalls.get_stub(p2p, PeerID.from_base58(first.peer), namespace=NAMESPACE)
    with pytest.raises(TimeoutError):  # libp2p cuts it before it is here
        await stub.rpc_hello(Message(bytes(20 << 20)), timeout=2.0)
    with pytest.raises(p2pd.P2PDaemonError, match="protocols not supported"):
        await p2p.call_protobuf_handler(
            PeerID.from_base58(first.peer),
            f"{NAMESPACE}::PeerCalls.rpc_nothing",
            Message(),
            Message,
        )
    await first.hears_anew(MemberSeen, lambda e: e.member.peer == vandal.peer)
    assert first.swarm.restarts == 0


async def test_a_flood_of_the_dht_is_cut(lab: HivemindLab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(p2pd, "DHT_CALLS_AT_ONCE", 20.0)
    monkeypatch.setattr(p2pd, "DHT_CALLS_A_SECOND", 0.0)
    first, second, _ = await three(lab)
    protocol = second.swarm.transport._hints._node.protocol
    first_id = PeerID.from_base58(first.peer)
    pings = [await protocol.call_ping(first_id) for _ in range(30)]
    assert pings[-1] is None
    await second.hears_anew(MemberSeen, lambda e: e.member.peer == first.peer)


async def test_one_that_accepts_and_never_answers_holds_up_nobody(lab: HivemindLab) -> None:
    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()

    mute = await asyncio.start_server(accept, "127.0.0.1", 0)
    port = mute.sockets[0].getsockname()[1]
    seed = f"/ip4/127.0.0.1/tcp/{port}/p2p/{OTHER.peer_id}"
    try:
        first = lab.node(seed)
        run = a_run(first)
        async with asyncio.timeout(10):
            await first.start(run)
        second = lab.node(seed, first.address)
        await second.start(run)
        await met(first, second)
        blob = first.shelf.put(bytes(1000))
        assert await second.swarm.fetch(blob, [OTHER.peer_id, first.peer]) == bytes(1000)
    finally:
        await lab.close()
        lab.nodes.clear()
        mute.close()
        await mute.wait_closed()


async def test_a_member_whose_p2pd_has_stopped_is_lost_and_the_rest_go_on(
    lab: HivemindLab,
) -> None:
    first, second, stopped = await three(lab)
    pid = stopped.swarm.transport.daemon_pid
    assert pid is not None
    os.kill(pid, signal.SIGSTOP)
    try:
        first.heard.clear()
        number = 0
        while not any(isinstance(event, MemberLost) for event in first.heard):
            number += 1
            async with asyncio.timeout(6):  # what it waits for one that does not answer
                await first.swarm.announce([an_offer(first, number)])
            await second.hears(OffersHeard, lambda e, n=number: e.offers == (an_offer(first, n),))
        lost = await first.hears(MemberLost)
        assert lost.peer == stopped.peer
        assert "no sign of life" in lost.why
    finally:
        os.kill(pid, signal.SIGCONT)
    await first.hears_anew(MemberSeen, lambda e: e.member.peer == stopped.peer)


# Knocking before a dial


async def test_a_knock_tells_where_nobody_listens() -> None:
    server = await asyncio.start_server(lambda r, w: w.close(), "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    nobody, somebody = "/ip4/127.0.0.1/tcp/1", f"/ip4/127.0.0.1/tcp/{port}"
    await knock([nobody, somebody])
    await knock([nobody, "/dns4/example.org/tcp/4001"])  # only a dial can tell
    await knock([f"{somebody}/p2p/{OTHER.peer_id}/p2p-circuit"])
    server.close()
    await server.wait_closed()
    with pytest.raises(Unreachable) as raised:
        await knock([nobody, somebody])
    assert raised.value.fault is Fault.REFUSED


async def test_libp2p_is_not_asked_to_dial_where_nobody_listens(
    lab: HivemindLab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each vain dial makes it wait longer before it tries at all: five seconds, six, nine, 14, 21
    … five minutes."""
    dials = 0
    connect = p2pd.connect

    async def counted(p2p: p2pd.CountingP2P, peer: PeerId, addresses: Sequence[str]) -> None:
        nonlocal dials
        dials += 1
        await connect(p2p, peer, addresses)

    monkeypatch.setattr(p2pd, "connect", counted)
    seed = lab.node()
    await seed.start(a_run(seed))
    address, name = seed.swarm.addresses[0], seed.address
    await seed.swarm.stop()
    node = lab.node(name)
    await node.start()
    await until(lambda: seed.peer in node.swarm.transport._faults)  # one vain dial
    dials = 0
    for _ in range(5):
        with pytest.raises(Unreachable) as raised:
            await node.swarm.transport.connect(seed.peer, [address], 3.0)
        assert raised.value.fault is Fault.REFUSED
    assert dials == 0
    again = lab.node(identity=seed.swarm._identity, address=address)
    await again.start(a_run(seed))
    node.swarm.enter(a_run(seed))
    node.say(a_run(seed))
    await node.hears(MemberSeen, lambda e: e.member.peer == again.peer)
