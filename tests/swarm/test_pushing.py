"""Packets that are sent before they are asked for: once to each, in time, and never trusted."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Any

import pytest

from demoloco.errors import PacketError
from demoloco.swarm.blobs.arriving import QUIET_SECONDS
from demoloco.swarm.blobs.pieces import (
    BLIND_BYTES,
    MAX_PIECE_BYTES,
    MAX_PUSHED_BYTES,
    MIN_PIECE_BYTES,
    Errand,
    Piece,
    decode_piece,
    encode_piece,
    errands,
)
from demoloco.swarm.blobs.pushing import MAX_PASSING, MAX_UNDER_WAY
from demoloco.swarm.blobs.spacing import Spacing
from demoloco.swarm.transport import Method, Refused
from demoloco.types import BlobRef, Offer, PeerId
from tests.faults.virtual_time import in_virtual_time
from tests.swarm.linked import MBIT, Linked, copies, linked, offered, spread

MEMBERS = [PeerId(f"member{number}") for number in range(5)]
KIB, MIB = 1 << 10, 1 << 20
THIN, FAST = 2 * MBIT, 50 * MBIT


def stretches(plan: Iterable[Errand], member: PeerId) -> list[tuple[int, int]]:
    return sorted((one.offset, one.end) for one in plan if one.to == member)


def covers(found: list[tuple[int, int]], size: int) -> bool:
    """Whether these lie end to end from the first byte to the last."""
    ends = [0, *(end for _, end in found)]
    return [start for start, _ in found] == ends[:-1] and ends[-1] == size


# -- who is sent what ------------------------------------------------------------------------------
def test_a_fast_link_sends_all_to_each() -> None:
    plan = errands(300 * KIB, MEMBERS, MEMBERS, FAST * 20, 0.03)
    assert all(covers(stretches(plan, member), 300 * KIB) for member in MEMBERS)
    assert not any(one.pass_on for one in plan)


@pytest.mark.parametrize("size", [33_000, 100_001, MIB, MAX_PUSHED_BYTES])
def test_a_thin_link_sends_each_byte_once_and_each_relay_about_as_much(size: int) -> None:
    plan = errands(size, MEMBERS, MEMBERS[:3], THIN, 0.03)
    assert covers(sorted((one.offset, one.end) for one in plan), size)
    assert all(one.pass_on for one in plan)
    shares = [sum(end - start for start, end in stretches(plan, m)) for m in MEMBERS[:3]]
    assert max(shares) - min(shares) <= MIN_PIECE_BYTES
    lengths = [one.end - one.offset for one in plan]
    assert min(lengths) >= MIN_PIECE_BYTES
    assert max(lengths) <= MAX_PIECE_BYTES


@pytest.mark.parametrize("relays", [MEMBERS, MEMBERS[:1]])
def test_a_thin_links_pieces_are_small_and_a_fat_ones_are_not(relays: list[PeerId]) -> None:
    thin = errands(400 * KIB, MEMBERS, relays, 0.25e6, 0.3)
    assert max(one.end - one.offset for one in thin) <= 0.06 * 0.25e6
    fat = errands(MIB, MEMBERS, relays, FAST, 0.03)
    assert max(one.end - one.offset for one in fat) > 40 * KIB


def test_what_is_too_large_or_nobody_knows_how_to_carry_is_left_to_be_fetched() -> None:
    assert errands(MAX_PUSHED_BYTES + 1, MEMBERS, MEMBERS, FAST, 0.03) == []
    assert errands(BLIND_BYTES + 1, MEMBERS, MEMBERS, 0.0, 0.03) == []
    assert errands(MIB, MEMBERS, (), THIN, 0.03) == []


# -- when it is sent ------------------------------------------------------------------------------
async def pieces_sent(answer: Callable[[int], float], trip: float, count: int) -> tuple[float, int]:
    """Seconds for so many pieces of 16 KiB on a link known to carry THIN, each answered after
    `answer(number)` seconds; and the most bytes that were under way."""
    now = asyncio.get_running_loop().time
    spacing, under_way, peak = Spacing(now), 0, 0

    async def send(number: int) -> None:
        nonlocal under_way, peak
        async with spacing.room(16 * KIB, THIN, trip):
            under_way += 16 * KIB
            peak = max(peak, under_way)
            await asyncio.sleep(answer(number))
            under_way -= 16 * KIB

    began = now()
    await asyncio.gather(*(send(number) for number in range(count)))
    return now() - began, peak


@pytest.mark.parametrize(("trip", "most"), [(0.3, 0.45 * 1.25 * THIN), (0.0, 320 * KIB)])
def test_a_thin_link_has_no_more_under_way_than_it_holds(trip: float, most: float) -> None:
    seconds, peak = in_virtual_time(pieces_sent(lambda _: 1.0, trip, 20))  # worse than was known
    assert peak <= most
    assert seconds >= 1.0 + 19 * 16 * KIB / (1.25 * THIN)


def test_pieces_go_faster_while_their_answers_come_as_soon_as_they_can() -> None:
    seconds, _ = in_virtual_time(pieces_sent(lambda _: 0.1, 0.1, 100))
    assert seconds < 0.6 * 100 * 16 * KIB / (1.25 * THIN)


def test_pieces_go_slower_when_most_answers_are_late() -> None:
    seconds, _ = in_virtual_time(pieces_sent(lambda _: 0.6, 0.1, 100))
    assert seconds > 1.5 * 100 * 16 * KIB / (1.25 * THIN)


def test_a_few_late_answers_do_not_slow_the_others() -> None:
    every_fifth = in_virtual_time(pieces_sent(lambda n: 0.6 if n % 5 == 4 else 0.1, 0.1, 100))
    none_early = in_virtual_time(pieces_sent(lambda _: 0.6, 0.1, 100))
    assert every_fifth[0] < 0.5 * none_early[0]


# -- a packet's way --------------------------------------------------------------------------------
def asked(node: Linked) -> list[PeerId]:
    """Whom this node asks for blobs from now on."""
    transport: Any = node.swarm._transport
    honest, peers = transport.stream, []

    def stream(peer: PeerId, body: bytes, seconds: float) -> Any:
        peers.append(peer)
        return honest(peer, body, seconds)

    transport.stream = stream
    return peers


@pytest.mark.parametrize("size", [30 * KIB, 200 * KIB, MIB])
def test_equal_thin_links_have_a_packet_in_the_time_of_one_copy(size: int) -> None:
    async def story() -> tuple[list[float], float, list[PeerId]]:
        async with linked([THIN] * 4, down=THIN, delay=(0.05, 0.05)) as (_, nodes):
            owner, *others = nodes
            fetched = [asked(other) for other in others]
            offer, _ = offered(owner, size)
            times = await spread(owner, others, offer)
            return times, copies(owner, offer), [peer for peers in fetched for peer in peers]

    times, sent, fetched = in_virtual_time(story())
    assert fetched == []
    assert sent == pytest.approx(1.0, abs=0.1)
    # a piece is on two links in a row, one way each, and comes whole
    assert max(times) < 1.7 * size / THIN + 4 * 0.05 + MIN_PIECE_BYTES / THIN


def test_a_packet_that_all_can_have_at_once_is_there_after_half_a_round_trip() -> None:
    async def story() -> list[float]:
        async with linked([FAST] * 4, delay=(0.05, 0.05)) as (_, (owner, *others)):
            offer, _ = offered(owner, 30 * KIB)
            began = asyncio.get_running_loop().time()
            telling = asyncio.create_task(owner.swarm.announce([offer]))
            await asyncio.sleep(0.051)
            times = await asyncio.gather(*(other.get(offer, [owner.peer]) for other in others))
            await telling
            return [at - began for at in times]

    assert max(in_virtual_time(story())) < 0.06 + 6 * 30 * KIB / FAST


def test_the_share_of_a_member_that_is_gone_takes_another_way() -> None:
    async def story() -> tuple[list[float], float]:
        async with linked([THIN] * 4, down=FAST) as (between, (owner, gone, *others)):
            between.kill(gone.peer)
            offer, _ = offered(owner, 300 * KIB)
            times = await spread(owner, others, offer)
            return times, copies(owner, offer)

    times, sent = in_virtual_time(story())
    assert max(times) < 2.5 * 300 * KIB / THIN
    assert sent < 1.8


def test_what_is_lost_of_a_packet_is_fetched_and_no_more_than_that() -> None:
    async def story() -> tuple[list[float], float]:
        async with linked([FAST] * 3) as (_, (owner, first, second)):
            loses(owner, times=1)
            offer, _ = offered(owner, 300 * KIB)
            times = await spread(owner, [first, second], offer)
            return times, copies(owner, offer)

    times, sent = in_virtual_time(story())
    assert QUIET_SECONDS < max(times) < QUIET_SECONDS + 1.0
    assert sent < 2.05


def loses(node: Linked, times: int) -> None:
    """So many pieces of this node do not arrive."""
    transport: Any = node.swarm._transport
    honest, left = transport.call, [times]

    async def call(peer: PeerId, method: Method, body: bytes, seconds: float) -> bytes:
        if method is Method.PUSH and left[0]:
            left[0] -= 1
            return b""
        answer: bytes = await honest(peer, method, body, seconds)
        return answer

    transport.call = call


# -- what is not believed --------------------------------------------------------------------------
def pieces(offer: Offer, data: bytes, *, pass_on: bool = False) -> list[Piece]:
    steps = range(0, offer.size, MAX_PIECE_BYTES)
    return [Piece(offer, at, data[at : at + MAX_PIECE_BYTES], pass_on) for at in steps]


async def push(sender: Linked, receiver: Linked, piece: Piece) -> None:
    body = encode_piece(sender.swarm._standing.own_run, piece)
    await sender.swarm._transport.call(receiver.peer, Method.PUSH, body, 5.0)


def test_wrong_bytes_of_a_member_that_passes_on_are_fetched_anew() -> None:
    async def story() -> tuple[bytes, bytes, int]:
        async with linked([FAST] * 3) as (_, (owner, liar, reader)):
            offer, data = offered(owner, 90 * KIB)
            first, second = pieces(offer, data)
            await push(owner, reader, first)
            await push(liar, reader, Piece(offer, second.offset, bytes(len(second.data)), False))
            blob = BlobRef(digest=offer.packet, size=offer.size)
            came = await reader.swarm.fetch(blob, [owner.peer], packet=True, round=offer.round)
            return came, data, reader.swarm.traffic.dropped

    came, data, dropped = in_virtual_time(story())
    assert came == data
    assert dropped == 1


def test_only_a_packets_contributor_bids_to_pass_it_on() -> None:
    async def story() -> tuple[int, int]:
        async with linked([FAST] * 3) as (_, (owner, other, reader)):
            offer, data = offered(owner, 90 * KIB)
            with pytest.raises(Refused, match="another's packet"):
                await push(other, reader, pieces(offer, data, pass_on=True)[0])
            return reader.swarm.traffic.dropped, owner.swarm.traffic.blobs_received

    assert in_virtual_time(story()) == (1, 0)


def test_a_contributors_word_counts_more_than_another_members() -> None:
    async def story() -> tuple[bytes, bytes]:
        async with linked([FAST] * 3) as (_, (owner, liar, reader)):
            offer, data = offered(owner, 90 * KIB)
            false = Offer(**{**fields(offer), "packet": bytes(32)})
            await push(liar, reader, pieces(false, data)[0])
            for piece in pieces(offer, data):
                await push(owner, reader, piece)
            await push(liar, reader, pieces(false, data)[1])
            owner.shelf.blobs.clear()  # nobody could be asked for it
            blob = BlobRef(digest=offer.packet, size=offer.size)
            return await reader.swarm.fetch(blob, [owner.peer], packet=True), data

    came, data = in_virtual_time(story())
    assert came == data


def test_what_is_passed_on_may_come_before_the_contributors_word() -> None:
    async def story() -> tuple[bytes, bytes]:
        async with linked([FAST] * 3) as (_, (owner, other, reader)):
            offer, data = offered(owner, 90 * KIB)
            for piece in pieces(offer, data):
                await push(other, reader, piece)
            owner.shelf.blobs.clear()
            blob = BlobRef(digest=offer.packet, size=offer.size)
            return await reader.swarm.fetch(blob, [owner.peer], packet=True), data

    came, data = in_virtual_time(story())
    assert came == data


def test_a_stranger_is_refused_and_counted() -> None:
    async def story() -> int:
        async with linked([FAST] * 3) as (_, (_owner, stranger, reader)):
            offer, data = offered(stranger, 30 * KIB)
            reader.swarm._standing.roster.lose(stranger.peer)
            with pytest.raises(Refused, match="no member"):
                await push(stranger, reader, pieces(offer, data)[0])
            return reader.swarm.traffic.dropped

    assert in_virtual_time(story()) == 1


def test_packets_of_far_rounds_take_no_memory() -> None:
    async def story() -> int:
        async with linked([FAST] * 2) as (_, (owner, reader)):
            offer, data = offered(owner, 30 * KIB)
            for number in (9, 1000):
                far = Offer(**{**fields(offer), "round": number})
                await push(owner, reader, pieces(far, data)[0])
            return len(reader.swarm._standing.arriving._of)

    assert in_virtual_time(story()) == 0


def test_a_contributor_has_one_packet_of_a_round_on_its_way() -> None:
    async def story() -> tuple[list[Offer], Offer]:
        async with linked([FAST] * 2) as (_, (owner, reader)):
            for number in (1, 2, 3):
                offer, data = offered(owner, 90 * KIB, number)
                await push(owner, reader, pieces(offer, data)[0])
            return [coming.offer for coming in reader.swarm._standing.arriving._of.values()], offer

    found, newest = in_virtual_time(story())
    assert found == [newest]


def fields(offer: Offer) -> dict[str, Any]:
    return {name: getattr(offer, name) for name in Offer.__dataclass_fields__}


def test_a_packet_that_trickles_in_is_fetched_from_who_has_it() -> None:
    """Else its contributor, once its packet is in a manifest, could hold up all who need it."""

    async def story() -> float:
        async with linked([FAST] * 3) as (_, (owner, proposer, reader)):
            offer, data = offered(owner, MAX_PUSHED_BYTES)
            proposer.shelf.put(data)
            proposer.swarm.pass_on(offer)
            trickling = asyncio.create_task(trickle(owner, reader, offer, data))
            await asyncio.sleep(1.0)
            began = asyncio.get_running_loop().time()
            at = await reader.get(offer, [owner.peer, proposer.peer])
            trickling.cancel()
            return at - began

    assert in_virtual_time(story()) < 50.0


async def trickle(sender: Linked, receiver: Linked, offer: Offer, data: bytes) -> None:
    for at in range(0, offer.size, MIN_PIECE_BYTES):
        await push(sender, receiver, Piece(offer, at, data[at : at + MIN_PIECE_BYTES], False))
        await asyncio.sleep(0.9 * QUIET_SECONDS)


def test_who_sends_more_than_can_be_passed_on_does_not_fill_the_memory() -> None:
    async def story() -> tuple[int, int]:
        async with linked([FAST * 20, THIN, FAST]) as (_, (flooder, relay, _other)):
            sent = 0
            for number in range(12):
                offer, data = offered(flooder, 40 * MAX_PIECE_BYTES, number)
                for piece in pieces(offer, data, pass_on=True):
                    await push(flooder, relay, piece)
                    sent += 1
            return sent, len(relay.swarm._tasks._running)

    sent, waiting = in_virtual_time(story())
    assert sent > 1.5 * MAX_PASSING
    assert waiting < MAX_PASSING + MAX_UNDER_WAY + 20


@pytest.mark.parametrize(
    "wrong",
    [
        {"data": b""},
        {"data": bytes(MAX_PIECE_BYTES + 1)},
        {"data": bytes(MIN_PIECE_BYTES - 1)},
        {"offset": 90 * KIB - 100},
        {"offset": 90 * KIB, "data": b""},
        {"offset": 1 << 40},
    ],
)
def test_a_piece_that_is_none_is_refused(wrong: dict[str, Any]) -> None:
    offer = Offer(
        packet=bytes(32),
        contributor=PeerId("12D3KooWEyoppNCUx8Yx66oV9fJnriXwCcXwDDUA2kj6vnc6iDEp"),
        round=1,
        parent=bytes(32),
        samples=1,
        size=90 * KIB,
    )
    good = {"offer": offer, "offset": 0, "data": bytes(MIN_PIECE_BYTES), "pass_on": False}
    assert decode_piece(encode_piece(bytes(32), Piece(**good)))[1] == Piece(**good)
    with pytest.raises(PacketError):
        decode_piece(encode_piece(bytes(32), Piece(**{**good, **wrong})))
