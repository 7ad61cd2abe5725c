"""Two roads to one peer: which is taken, and what happens when one of them is gone. Words go over
the memory network, the direct road over 127.0.0.1."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from demoloco.errors import ConfigError, SwarmError
from demoloco.swarm.identity import Identity
from demoloco.swarm.memory import MemoryTransport
from demoloco.swarm.port import MemberLost, MemberSeen
from demoloco.swarm.roads import transport as roads
from demoloco.swarm.roads.certificates import make
from demoloco.swarm.roads.choice import Road
from demoloco.swarm.roads.direct import DirectOffer, decode_direct, encode_direct
from demoloco.swarm.roads.transport import Roads, Wish
from demoloco.swarm.transport import Fault, Method, Refused, Unreachable
from demoloco.types import PeerId
from demoloco.wire import digest_of
from tests.contract.swarm_lab import AutoLab, GrpcLab, MemoryLab, Node, a_run, met, two, until

BLOB = bytes(range(256)) * 4096  # 1 MiB: four chunks


@pytest.fixture
async def auto(tmp_path: Path) -> AsyncIterator[AutoLab]:
    lab = AutoLab(tmp_path)
    yield lab
    await lab.close()


@pytest.fixture
async def grpc(tmp_path: Path) -> AsyncIterator[GrpcLab]:
    lab = GrpcLab(tmp_path)
    yield lab
    await lab.close()


def open_to(node: Node, peer: Node) -> bool:
    """Whether the direct road from one to the other is open."""
    way = node.swarm.roads._ways.get(peer.peer)
    return way is not None and way.lanes is not None


async def opened(first: Node, second: Node) -> None:
    """Fetch a blob, which makes the first look for its direct road to the second."""
    await first.swarm.fetch(second.shelf.put(b"small"), [second.peer])
    await until(lambda: open_to(first, second))


async def opened_to_a_known_identity(lab: AutoLab) -> tuple[Node, Node, Identity]:
    """Two members and the second's identity; the first has its direct road to it open."""
    first, identity = lab.node(), Identity.new()
    await first.start(a_run(first))
    second = lab.node(first.address, identity=identity)
    await second.start(a_run(first))
    await met(first, second)
    await opened(first, second)
    return first, second, identity


async def restarted(lab: AutoLab, dead: Node, identity: Identity, seed: Node) -> Node:
    """The same identity in a new life, with a new certificate and other ports."""
    run = a_run(seed)
    await lab.kill(dead)
    alive = lab.node(seed.address, identity=identity)
    await alive.start(run)
    alive.say(run, sequence=2)
    await met(alive, seed)
    return alive


# Which road


async def test_the_first_blob_comes_over_libp2p_and_the_next_over_the_direct_road(
    auto: AutoLab,
) -> None:
    first, second = await two(auto)
    assert first.swarm.road(second.peer) == "libp2p"
    await opened(first, second)
    assert second.swarm.roads.listener.handshakes == 1
    assert await first.swarm.fetch(second.shelf.put(BLOB), [second.peer]) == BLOB
    assert first.swarm.road(second.peer) == "grpc"
    choice = first.swarm.roads._ways[second.peer].choice
    assert choice.pace(Road.GRPC).rate > 0
    assert choice.pace(Road.LIBP2P).rate == 0


async def test_the_peer_whose_certificate_came_need_not_be_asked_for_it(auto: AutoLab) -> None:
    first, second = await two(auto)
    await opened(first, second)
    second.swarm.roads._exchange = None  # would fail if it were called
    await opened(second, first)


async def test_a_member_says_where_its_direct_road_begins(auto: AutoLab) -> None:
    first, second = await two(auto)
    port = second.swarm.roads.listener.port
    seen = await first.hears(MemberSeen, lambda e: e.member.peer == second.peer)
    assert seen.member.direct == (f"127.0.0.1:{port}",)


async def test_with_libp2p_alone_nothing_is_offered(tmp_path: Path, auto: AutoLab) -> None:
    lab = MemoryLab(tmp_path)
    lab.network = auto.network
    old = lab.node(address="/ip4/127.0.0.1/tcp/99")
    await old.start(a_run(old))
    new = auto.node(old.address)
    await new.start(a_run(old))
    await met(old, new)
    seen = await new.hears(MemberSeen)
    assert seen.member.direct == ()
    assert await new.swarm.fetch(old.shelf.put(BLOB), [old.peer]) == BLOB
    way = new.swarm.roads._ways[old.peer]
    await until(lambda: way.error is not None)
    assert "offers no direct road" in str(way.error)
    assert way.choice.aside_left(Road.GRPC, new.swarm.roads._now()) > 30
    assert await old.swarm.fetch(new.shelf.put(BLOB), [new.peer]) == BLOB
    await lab.close()


async def test_where_only_the_direct_road_may_be_taken_a_peer_without_one_is_named(
    tmp_path: Path, grpc: GrpcLab
) -> None:
    lab = MemoryLab(tmp_path)
    lab.network = grpc.network
    old = lab.node(address="/ip4/127.0.0.1/tcp/99")
    await old.start(a_run(old))
    new = grpc.node(old.address)
    await new.start(a_run(old))
    await met(old, new)
    with pytest.raises(SwarmError, match=f"no direct road: to {old.peer}: it offers no direct"):
        await new.swarm.fetch(old.shelf.put(BLOB), [old.peer])
    await lab.close()


async def test_a_peer_that_cannot_be_reached_directly_is_fetched_from_over_libp2p(
    auto: AutoLab,
) -> None:
    first, second = await two(auto)
    await second.swarm.roads.listener.stop()  # as behind a router that lets nobody in
    assert await first.swarm.fetch(second.shelf.put(BLOB), [second.peer]) == BLOB
    way = first.swarm.roads._ways[second.peer]
    await until(lambda: way.error is not None)
    assert "nothing answers at 127.0.0.1" in str(way.error)
    assert await first.swarm.fetch(second.shelf.put(BLOB[1:]), [second.peer]) == BLOB[1:]
    assert way.choice.aside_left(Road.GRPC, first.swarm.roads._now()) > 30


# One of them is gone


async def test_a_blob_whose_direct_road_breaks_comes_over_libp2p(auto: AutoLab) -> None:
    first, second = await two(auto)
    await opened(first, second)
    big = BLOB * 32
    blob = second.shelf.put(big)
    before = len(second.shelf.reads)
    fetching = asyncio.create_task(first.swarm.fetch(blob, [second.peer]))
    await until(lambda: len(second.shelf.reads) > before + 1)  # the first frame is on its way
    assert first.swarm.road(second.peer) == "grpc"
    await second.swarm.roads.listener.stop()
    assert await fetching == big
    assert not open_to(first, second)


async def test_calls_take_the_direct_road_while_libp2p_is_down(auto: AutoLab) -> None:
    first, second = await two(auto)
    await opened(first, second)
    auto.network.kill(first.peer)  # its end of libp2p alone
    first.shelf.born = None
    second.shelf.chain = []
    with pytest.raises(Refused, match="does not have manifest"):
        await first.swarm.manifests(second.peer, digest_of(b"head"), 1)
    assert await first.swarm.fetch(second.shelf.put(BLOB), [second.peer]) == BLOB


async def test_a_peer_that_starts_again_is_asked_for_its_new_certificate(auto: AutoLab) -> None:
    first, second, identity = await opened_to_a_known_identity(auto)
    before = first.swarm.roads._trust.roots
    again = await restarted(auto, second, identity, first)
    blob = again.shelf.put(BLOB)
    assert await first.swarm.fetch(blob, [again.peer]) == BLOB
    first.swarm.roads._ways[again.peer].choice.forgive(Road.GRPC)
    await opened(first, again)
    assert first.swarm.roads._trust.roots != before
    assert await first.swarm.fetch(blob, [again.peer]) == BLOB
    assert first.swarm.road(again.peer) == "grpc"


async def test_a_peer_that_starts_again_and_calls_first_replaces_its_road(auto: AutoLab) -> None:
    first, second, identity = await opened_to_a_known_identity(auto)
    again = await restarted(auto, second, identity, first)
    await opened(again, first)
    assert not open_to(first, again)
    await opened(first, again)


async def test_a_lost_member_may_not_use_the_direct_road_any_longer(auto: AutoLab) -> None:
    first, second = await two(auto)
    await opened(first, second)
    lanes = first.swarm.roads._ways[second.peer].lanes
    second.swarm._standing.lose(first.peer, "the test says so")
    await second.hears(MemberLost)
    with pytest.raises(Unreachable, match="trusted"):
        await lanes.call(Method.GENESIS, b"", 3.0)
    assert second.swarm.roads.listener.refused == 1


async def test_a_piece_goes_over_libp2p_only_where_it_may(
    auto: AutoLab, grpc: GrpcLab, monkeypatch: pytest.MonkeyPatch
) -> None:
    for lab, begins in ((auto, [Method.DIRECT, Method.PUSH]), (grpc, [Method.DIRECT])):
        first, second = await two(lab)
        mine, asked = first.swarm.roads, []

        async def call(peer: PeerId, method: Method, *rest: object, asked=asked) -> bytes:
            if method in (Method.DIRECT, Method.PUSH):
                asked.append(method)
            raise Unreachable(Fault.TIMEOUT)

        monkeypatch.setattr(mine._libp2p, "call", call)
        with pytest.raises(Unreachable):
            await mine.call(second.peer, Method.PUSH, b"a piece", 3.0)
        await until(lambda asked=asked: Method.DIRECT in asked)  # its road is looked for meanwhile
        assert sorted(asked) == begins


async def test_a_piece_takes_the_direct_road_once_it_is_open(grpc: GrpcLab) -> None:
    first, second = await two(grpc)
    await opened(first, second)
    first.swarm.roads._libp2p.call = None  # would fail if it were called
    with pytest.raises(Refused):
        await first.swarm.roads.call(second.peer, Method.PUSH, b"no piece", 3.0)
    assert second.swarm.traffic.dropped == 1


# What peers say of it


async def test_a_bad_certificate_is_refused_and_counted(auto: AutoLab) -> None:
    first, second = await two(auto)
    run = a_run(first)
    body = encode_direct(run, DirectOffer(make(Identity.new()).der, ()))
    with pytest.raises(Refused, match="another peer's name"):
        await second.swarm.roads.call(first.peer, Method.DIRECT, body, 3.0)
    assert first.swarm.traffic.dropped == 1
    assert first.swarm.roads._trust.roots == b""


async def test_a_peer_of_another_run_learns_no_certificate(auto: AutoLab) -> None:
    first, second = await two(auto)
    own = second.swarm.roads._own.der
    body = encode_direct(digest_of(b"another"), DirectOffer(own, ()))
    with pytest.raises(Refused, match="it is in run"):
        await second.swarm.roads.call(first.peer, Method.DIRECT, body, 3.0)


async def test_a_stranger_gets_no_certificate_and_is_not_trusted(auto: AutoLab) -> None:
    first, second = await two(auto)
    stranger = Identity.new()
    transport = MemoryTransport(auto.network, stranger.peer_id, "/ip4/127.0.0.1/tcp/77")
    body = encode_direct(a_run(first), DirectOffer(make(stranger).der, ()))
    await transport.start(_Service())
    await transport.connect(first.peer, first.swarm.addresses, 3.0)
    with pytest.raises(Refused, match=roads.STRANGER):
        await transport.call(first.peer, Method.DIRECT, body, 3.0)
    await transport.stop()
    assert first.swarm.roads._trust.roots == b""
    await opened(second, first)


async def test_who_is_no_member_yet_asks_again_soon(
    auto: AutoLab, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = await two(auto)
    seen = second.swarm.roads.seen
    monkeypatch.setattr(second.swarm.roads, "seen", lambda member: None)
    member = second.swarm.roads._members.pop(first.peer)
    assert await first.swarm.fetch(second.shelf.put(b"small"), [second.peer]) == b"small"
    way = first.swarm.roads._ways[second.peer]
    await until(lambda: way.error is not None)
    assert str(way.error) == roads.STRANGER
    assert way.choice.aside_left(Road.GRPC, first.swarm.roads._now()) < 3
    seen(member)
    way.choice.forgive(Road.GRPC)
    await opened(first, second)


async def test_a_member_that_names_anothers_host_makes_nobody_dial_it(auto: AutoLab) -> None:
    first, second = await two(auto)
    with socket.create_server(("127.0.0.2", 0)) as victim:
        victim.setblocking(False)
        theirs = f"127.0.0.2:{victim.getsockname()[1]}"
        own = second.swarm.roads.direct
        second.swarm.roads._trust.take(first.peer, first.swarm.roads._own.der)
        offer = DirectOffer(second.swarm.roads._own.der, (theirs, *own))
        lanes = await first.swarm.roads._dialled(second.peer, offer)
        assert lanes._place == own[0]
        await lanes.close()
        with pytest.raises(BlockingIOError):
            victim.accept()
    assert first.swarm.traffic.dropped == 1


async def test_a_member_is_dialled_where_libp2p_sees_it(
    auto: AutoLab, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = await two(auto)
    mine = first.swarm.roads

    async def observed(peer: str) -> str:
        return "/ip4/203.0.113.9/tcp/4001"

    monkeypatch.setattr(mine._libp2p, "observed", observed)
    places = ("203.0.113.9:5", "203.0.113.10:5", "127.0.0.1:5")
    assert await mine._own_places(second.peer, places) == (places[0], places[2])
    assert first.swarm.traffic.dropped == 1


def test_the_offer_of_a_direct_road_travels_as_it_is() -> None:
    run = digest_of(b"run")
    offer = DirectOffer(b"certificate", ("203.0.113.7:1", "[2001:db8::1]:2"))
    assert decode_direct(encode_direct(run, offer)) == (run, offer)


# How it starts and ends


async def test_nothing_to_listen_on_is_the_operators_mistake_where_it_is_needed(
    auto: AutoLab,
) -> None:
    hosts = ("203.0.113.7",)  # no machine's of this test
    for exchange in ("auto", "grpc"):
        identity = Identity.new()
        transport = MemoryTransport(auto.network, identity.peer_id, f"/ip4/1.1.1.1/tcp/{exchange}")
        made = Roads(identity, transport, Wish(exchange=exchange, hosts=hosts))
        service = _Service()
        if exchange == "grpc":
            with pytest.raises(ConfigError, match="exchange = grpc"):
                await made.start(service)
        else:
            await made.start(service)
            assert made.direct == ()
        await made.stop()


async def test_stopping_in_the_middle_of_a_dial_leaves_nothing_behind(
    monkeypatch: pytest.MonkeyPatch, auto: AutoLab
) -> None:
    first, second = await two(auto)
    monkeypatch.setattr(roads, "DIAL_SECONDS", 60.0)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        place = f"127.0.0.1:{silent.getsockname()[1]}"
        way = first.swarm.roads._way(second.peer)
        way.offer = DirectOffer(second.swarm.roads._own.der, (place,))
        assert await first.swarm.fetch(second.shelf.put(BLOB), [second.peer]) == BLOB
        assert way.opening is not None
        await first.swarm.stop()
        assert way.opening is None


class _Service:
    direct = None
