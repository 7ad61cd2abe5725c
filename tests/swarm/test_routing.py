"""Which way bytes go: thin uplinks are spared, load is spread, and nobody waits for the slowest."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from typing import Any

import pytest

from demoloco.errors import SwarmError
from demoloco.swarm.calls import decode_blob_request, encode_announcement, encode_busy
from demoloco.swarm.gossip.rumours import Batch
from demoloco.swarm.port import Link, OffersHeard
from demoloco.swarm.transport import Busy, Method
from demoloco.types import BlobRef, Offer, PeerId
from demoloco.wire import digest_of
from tests.contract.swarm_lab import a_chain, a_run
from tests.faults.virtual_time import in_virtual_time
from tests.swarm.linked import MBIT, Linked, copies, fails, linked, offered, spread

MIB = 1 << 20
THIN, FAST = 2 * MBIT, 50 * MBIT
BLOB = bytes(range(256)) * (3 * MIB // 256)


def asks(node: Linked) -> list[tuple[PeerId, int]]:
    """Whom this node asks for blobs from now on, and from which byte on."""
    transport: Any = node.swarm._transport
    honest, asked = transport.stream, []

    def stream(peer: PeerId, body: bytes, seconds: float) -> AsyncGenerator[bytes, None]:
        asked.append((peer, decode_blob_request(body)[2]))
        return honest(peer, body, seconds)

    transport.stream = stream
    return asked


def is_always_busy(node: Linked, named: Sequence[PeerId]) -> list[PeerId]:
    """From now on this node serves nobody and names these; who asked."""
    service: Any = node.swarm._transport.service  # type: ignore[attr-defined]
    asked: list[PeerId] = []

    def open_stream(peer: PeerId, body: bytes) -> None:
        asked.append(peer)
        raise Busy(encode_busy(named))

    service.open_stream = open_stream
    return asked


def held(blob: bytes, *nodes: Linked) -> BlobRef:
    (ref,) = {node.shelf.put(blob) for node in nodes}
    return ref


def timed(work: Any) -> Any:
    """Its result, and how long it took."""

    async def clocked() -> tuple[Any, float]:
        now = asyncio.get_running_loop().time
        began = now()
        return await work, now() - began

    return clocked()


# -- packets ---------------------------------------------------------------------------------------
@pytest.mark.parametrize("count", [8, 16])
def test_a_thin_uplink_sends_its_packet_about_once(count: int) -> None:
    async def story() -> tuple[float, list[float]]:
        async with linked([THIN] + [FAST] * (count - 1)) as (_, (owner, *others)):
            offer, _ = offered(owner, MIB)
            times = await spread(owner, others, offer)
            return copies(owner, offer), times

    sent, times = in_virtual_time(story())
    assert sent <= 1.5
    assert len(times) == count - 1
    assert max(times) < 2.0 * MIB / THIN  # one copy, and then the fast ones among themselves


def test_a_thin_owner_serves_on_where_those_who_took_it_do_not() -> None:
    async def story() -> tuple[float, float]:
        async with linked([THIN, FAST, FAST]) as (_, (owner, taker, late)):
            offer, _ = offered(owner, MIB)
            await taker.get(offer, [owner.peer])
            is_always_busy(taker, [])
            _, seconds = await timed(late.get(offer, [owner.peer, taker.peer]))
            return copies(owner, offer), seconds

    sent, seconds = in_virtual_time(story())
    assert sent == pytest.approx(2.0, abs=0.1)
    assert seconds < 12.0 + MIB / THIN


def test_the_packets_of_fast_members_do_not_wait_for_those_of_thin_ones() -> None:
    async def story() -> tuple[list[float], list[float]]:
        async with linked([FAST, THIN, THIN, THIN, THIN, THIN, FAST, FAST]) as (_, nodes):
            reader, owners = nodes[0], nodes[1:]
            now = asyncio.get_running_loop().time
            began = now()
            offers = [offered(owner, MIB, number)[0] for number, owner in enumerate(owners)]
            pairs = zip(offers, owners, strict=True)
            got = await asyncio.gather(*(reader.get(offer, [o.peer]) for offer, o in pairs))
            return [at - began for at in got[:5]], [at - began for at in got[5:]]

    thin, fast = in_virtual_time(story())
    assert max(fast) < 2.5
    assert max(thin) < 1.0 + 1.1 * MIB / THIN  # all five side by side


def test_the_open_round_goes_first_and_of_it_the_rarest() -> None:
    async def story() -> tuple[list[PeerId], list[Linked]]:
        async with linked([FAST] * 8) as (_, nodes):
            reader, *owners = nodes
            reader.swarm.measured = Link()
            busy = [offered(owner, MIB, number)[0] for number, owner in enumerate(owners[:4])]
            old, common, rare = (
                offered(owner, MIB, 9 + number)[0] for number, owner in enumerate(owners[4:])
            )
            held(nodes[6].shelf.blobs[common.packet], owners[0])
            reader.swarm._standing.holders.note(owners[0].peer, common.packet)
            reader.swarm._standing.holders.note(owners[5].peer, common.packet)
            asked = asks(reader)
            first = [reader.get(offer, [offer.contributor]) for offer in busy]
            old = Offer(**{**fields(old), "round": old.round + 7})
            rest = [reader.get(offer, [offer.contributor]) for offer in (old, common, rare)]
            await asyncio.gather(*first, *rest)
            return [peer for peer, _ in asked[4:]], [*owners]

    asked, owners = in_virtual_time(story())
    assert asked[0] == owners[6].peer  # the rarest
    assert asked[1] in (owners[5].peer, owners[0].peer)
    assert asked[2] == owners[4].peer  # of another round


def fields(offer: Offer) -> dict[str, Any]:
    return {name: getattr(offer, name) for name in Offer.__dataclass_fields__}


def test_who_got_a_packet_tells_those_who_lack_it_soon_and_nobody_else() -> None:
    async def story() -> tuple[float, list[list[PeerId]], PeerId]:
        async with linked([FAST] * 4) as (_, (owner, taker, has, lacks)):
            offer, _ = offered(owner, MIB)
            taker.swarm._standing.holders.note(has.peer, offer.packet)
            has.shelf.blobs |= owner.shelf.blobs
            at = await taker.get(offer, [owner.peer])
            await lacks.hears(OffersHeard)
            soon = asyncio.get_running_loop().time() - at
            await asyncio.sleep(5.0)
            return soon, [node.told for node in (owner, has, lacks)], taker.peer

    soon, told, taker = in_virtual_time(story())
    assert soon < 0.5
    assert told == [[], [], [taker]]


def test_who_announces_a_packet_or_proposes_it_holds_it_and_a_stranger_does_not() -> None:
    async def story() -> list[tuple[PeerId, ...]]:
        async with linked([FAST] * 3) as (_, (one, proposer, reader)):
            offer, _ = offered(one, 1000)
            await one.swarm.announce([offer])
            (sealed,) = a_chain(proposer, a_run(one), 1)
            await proposer.swarm.publish(sealed)
            service: Any = reader.swarm._transport.service  # type: ignore[attr-defined]
            body = encode_announcement(a_run(one), Batch(offers=(offer,)))
            service.answer(PeerId("stranger"), Method.ANNOUNCE, body)
            book = reader.swarm._standing.holders
            told = [book.of(offer.packet), book.of(digest_of(b"packet1"))]
            return [*told, (one.peer,), (proposer.peer,)]

    announced, proposed, *expected = in_virtual_time(story())
    assert [announced, proposed] == expected


# -- holders that are busy -------------------------------------------------------------------------
def test_a_busy_holder_names_who_has_it_and_that_one_is_asked() -> None:
    async def story() -> list[tuple[PeerId, int]]:
        async with linked([FAST] * 3) as (_, (owner, other, reader)):
            blob = held(BLOB[:1000], owner, other)
            is_always_busy(owner, [other.peer])
            asked = asks(reader)
            assert await reader.swarm.fetch(blob, [owner.peer], packet=True) == BLOB[:1000]
            return [(owner.peer, 0), (other.peer, 0)] if len(asked) == 2 else asked

    assert len(in_virtual_time(story())) == 2


def test_strangers_and_the_asker_itself_are_not_asked_for_being_named() -> None:
    async def story() -> tuple[set[PeerId], PeerId, str]:
        async with linked([FAST] * 2) as (_, (owner, reader)):
            stranger = Linked(type(reader.swarm)(reader.swarm._transport._network)).peer  # type: ignore[attr-defined]
            blob = held(BLOB[:1000], owner)
            is_always_busy(owner, [stranger, reader.peer, owner.peer])
            asked = asks(reader)
            why = await fails(reader, blob, [owner.peer])
            return {peer for peer, _ in asked}, owner.peer, why

    asked, owner, why = in_virtual_time(story())
    assert asked == {owner}
    assert "took over" in why


def test_a_holder_that_is_always_busy_keeps_no_fetch_alive() -> None:
    async def story() -> tuple[str, float, int]:
        async with linked([FAST] * 2) as (_, (owner, reader)):
            blob = held(BLOB[:1000], owner)
            asked = is_always_busy(owner, [])
            why, seconds = await timed(fails(reader, blob, [owner.peer]))
            return why, seconds, len(asked)

    why, seconds, asked = in_virtual_time(story())
    assert "took over 60 s" in why
    assert 50 < seconds <= 61
    assert asked < 60  # it is not hammered either


def test_one_that_is_named_and_does_not_have_it_is_asked_once_for_each_naming() -> None:
    async def story() -> tuple[int, int, int]:
        async with linked([FAST] * 3) as (_, (owner, liar, reader)):
            blob = held(BLOB[:1000], owner)
            busy = is_always_busy(owner, [liar.peer])
            asked = asks(reader)
            await fails(reader, blob, [owner.peer])
            return (
                sum(peer == liar.peer for peer, _ in asked),
                len(busy),
                reader.swarm.traffic.dropped,
            )

    lied, named, dropped = in_virtual_time(story())
    assert 1 <= lied <= named
    assert dropped == 0


def test_garbage_instead_of_holders_is_counted() -> None:
    async def story() -> int:
        async with linked([FAST] * 2) as (_, (owner, reader)):
            service: Any = owner.swarm._transport.service  # type: ignore[attr-defined]

            def open_stream(peer: PeerId, body: bytes) -> None:
                raise Busy(b"\xff")

            service.open_stream = open_stream
            await fails(reader, held(BLOB[:1000], owner), [owner.peer])
            return reader.swarm.traffic.dropped

    assert in_virtual_time(story()) > 5


# -- states ----------------------------------------------------------------------------------------
def test_a_large_blob_comes_from_all_that_hold_it_at_once() -> None:
    async def story() -> tuple[set[PeerId], float, set[PeerId]]:
        ups = [10 * MBIT] * 4 + [FAST]
        async with linked(ups, 20 * MBIT, delay=(0.005, 0.01)) as (_, (*holders, reader)):
            parts = [held(bytes([n]) + BLOB[1:], *holders) for n in range(3)]
            asked = asks(reader)
            names = [holder.peer for holder in holders]
            work = [reader.swarm.fetch(part, names) for part in parts]
            got, seconds = await timed(asyncio.gather(*work))
            assert [data[0] for data in got] == [0, 1, 2]
            return {peer for peer, _ in asked}, seconds, set(names)

    asked, seconds, holders = in_virtual_time(story())
    assert asked == holders
    assert seconds < 1.2 * 3 * len(BLOB) / (20 * MBIT)


def test_when_a_holder_is_killed_the_others_go_on_where_it_stopped() -> None:
    async def story() -> tuple[bool, float, list[tuple[PeerId, int]]]:
        async with linked([5 * MBIT, 5 * MBIT, FAST]) as (network, (one, other, reader)):
            blob = held(BLOB, one, other)
            asked = asks(reader)
            work = asyncio.create_task(reader.swarm.fetch(blob, [one.peer, other.peer]))
            await asyncio.sleep(1.0)
            network.kill(one.peer)
            data, seconds = await timed(work)
            return data == BLOB, seconds, asked

    whole, seconds, asked = in_virtual_time(story())
    assert whole
    assert seconds < 1.5 * len(BLOB) / (5 * MBIT)
    assert any(offset % MIB for _, offset in asked)


def test_nobody_waits_for_the_last_span_of_a_slow_holder() -> None:
    async def story() -> float:
        async with linked([FAST, FAST, FAST]) as (network, (slow, quick, reader)):
            network.limit(slow.peer, up=MBIT)  # it does not know that yet
            blob = held(BLOB, slow, quick)
            data, seconds = await timed(reader.swarm.fetch(blob, [slow.peer, quick.peer]))
            assert data == BLOB
            return seconds

    assert in_virtual_time(story()) < 0.6 * MIB / MBIT


def test_of_many_sources_that_lie_nobody_is_believed_until_one_brings_the_whole() -> None:
    async def story() -> bytes:
        async with linked([FAST] * 4) as (_, (liar, *honest, reader)):
            blob = held(BLOB, *honest)
            liar.shelf.blobs[blob.digest] = bytes(len(BLOB))
            holders = [liar.peer, *(node.peer for node in honest)]
            return await reader.swarm.fetch(blob, holders)

    assert in_virtual_time(story()) == BLOB


def test_the_fastest_is_the_one_that_says_or_showed_it() -> None:
    async def story() -> tuple[tuple[PeerId, ...], list[PeerId]]:
        async with linked([THIN, 20 * MBIT, FAST, FAST]) as (_, (thin, middle, fast, reader)):
            names = [thin.peer, middle.peer, fast.peer]
            return reader.swarm.fastest(names), names[::-1]

    ordered, expected = in_virtual_time(story())
    assert list(ordered) == expected


def test_a_fetch_that_nobody_can_serve_says_why() -> None:
    async def story() -> None:
        async with linked([FAST] * 2) as (_, (owner, reader)):
            offer, _ = offered(owner, 1000)
            owner.shelf.blobs.clear()
            with pytest.raises(SwarmError, match="does not hold blob"):
                await reader.get(offer, [owner.peer])

    in_virtual_time(story())
