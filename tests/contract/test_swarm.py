"""What every swarm adapter promises, on the memory network and on libp2p."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing
from pathlib import Path

import pytest

from demoloco.errors import ConfigError, SwarmError
from demoloco.swarm.calls import Chunk, decode_chunk, encode_blob_request
from demoloco.swarm.mesh import Mesh
from demoloco.swarm.port import (
    Link,
    ManifestHeard,
    MemberLost,
    MemberSeen,
    OffersHeard,
)
from demoloco.types import BlobRef, Gift, Head, Phase, Round, Snapshot
from demoloco.wire import digest_of
from tests.contract.swarm_lab import (
    HIVEMIND_WARNINGS,
    AutoLab,
    GrpcLab,
    HivemindGrpcLab,
    HivemindLab,
    Lab,
    MemoryLab,
    a_chain,
    a_genesis,
    a_run,
    an_offer,
    met,
    until,
)

pytestmark = HIVEMIND_WARNINGS

LABS = {
    "memory": MemoryLab,
    "hivemind": HivemindLab,
    "grpc": GrpcLab,
    "auto": AutoLab,
    "hivemind-grpc": HivemindGrpcLab,
}
BRIEF = ("memory", "hivemind", "grpc")
PARAMS = [pytest.param(one, marks=() if one in BRIEF else pytest.mark.slow) for one in LABS]
BLOB = bytes(range(256)) * 4096  # 1 MiB: four chunks


@pytest.fixture(params=PARAMS)
async def lab(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Lab]:
    lab = LABS[request.param](tmp_path)
    yield lab
    await lab.close()


async def pair(lab: Lab):
    """Two members of one run that know each other."""
    first = lab.node()
    run = a_run(first)
    await first.start(run)
    second = lab.node(first.address)
    await second.start(run)
    await first.hears(MemberSeen, lambda e: e.member.peer == second.peer)
    await second.hears(MemberSeen, lambda e: e.member.peer == first.peer)
    return first, second, run


# Members


async def test_a_member_hears_of_a_third_through_the_one_it_knows(lab: Lab) -> None:
    first, second, run = await pair(lab)
    third = lab.node(first.address)
    await third.start(run)
    seen = await second.hears(MemberSeen, lambda e: e.member.peer == third.peer)
    assert seen.member.addresses == third.swarm.addresses
    await third.hears(MemberSeen, lambda e: e.member.peer == second.peer)
    assert third.address in second.swarm.known_addresses()


async def test_new_words_of_a_member_reach_the_others(lab: Lab) -> None:
    first, second, run = await pair(lab)
    first.say(run, Phase.EXCHANGING, sequence=2)
    seen = await second.hears(MemberSeen, lambda e: e.member.phase is Phase.EXCHANGING)
    assert seen.member.peer == first.peer
    assert seen.member.head == Head(digest=run, round=Round(0), samples_total=0)


async def test_a_goodbye_takes_a_member_off_the_list_at_once(lab: Lab) -> None:
    first, second, _ = await pair(lab)
    await first.swarm.stop()
    lost = await second.hears(MemberLost)
    assert (lost.peer, lost.why) == (first.peer, "said goodbye")


async def test_a_killed_member_is_lost(lab: Lab) -> None:
    first, second, _ = await pair(lab)
    await lab.kill(second)
    lost = await first.hears(MemberLost)
    assert lost.peer == second.peer
    assert "refused" in lost.why or "no sign of life" in lost.why


async def test_a_member_of_another_run_is_refused_and_told_both_runs(lab: Lab) -> None:
    first, second, run = await pair(lab)
    other = digest_of(b"another run")
    second.swarm.enter(other)
    with pytest.raises(SwarmError, match=f"in run {run.hex()}, the call is for run {other.hex()}"):
        await second.swarm.snapshot(first.peer)
    lost = await second.hears(MemberLost)
    assert "in run" in lost.why


async def test_a_node_that_starts_before_its_seed_joins_when_the_seed_is_there(
    lab: Lab,
) -> None:
    first, second, run = await pair(lab)
    address, identity = first.swarm.addresses[0], first.swarm._identity
    seed = first.address
    await first.swarm.stop()
    early = lab.node(seed)
    await early.start(run)
    again = lab.node(identity=identity, address=address)
    await again.start(run)
    await early.hears(MemberSeen, lambda e: e.member.peer == again.peer)
    await second.hears(MemberLost, lambda e: e.peer == again.peer)


# Words to all


async def test_an_announcement_reaches_all_members(lab: Lab) -> None:
    first, second, _ = await pair(lab)
    offers = (an_offer(first, 1), an_offer(first, 2))
    await first.swarm.announce(offers)
    heard = await second.hears(OffersHeard)
    assert (heard.holder, heard.offers) == (first.peer, offers)


async def test_a_published_manifest_arrives_as_it_was_sealed(lab: Lab) -> None:
    first, second, run = await pair(lab)
    sealed = a_chain(first, run, 1)[0]
    await first.swarm.publish(sealed)
    heard = await second.hears(ManifestHeard)
    assert heard.sealed == sealed
    assert heard.manifest.digest == digest_of(sealed)
    assert heard.holder == first.peer


async def test_a_manifest_that_somebody_else_signed_is_dropped(lab: Lab) -> None:
    first, second, run = await pair(lab)
    forged = bytearray(a_chain(first, run, 1)[0])
    forged[-1] ^= 1
    await first.swarm.publish(bytes(forged))
    await first.swarm.announce([an_offer(first)])
    await second.hears(OffersHeard)
    assert not [event for event in second.heard if isinstance(event, ManifestHeard)]
    assert second.swarm.traffic.dropped == 1
    assert first.swarm.traffic.failed_calls >= 1


# Blobs


async def test_a_blob_is_fetched_and_the_holder_lets_go_of_it(lab: Lab) -> None:
    first, second, _ = await pair(lab)
    blob = first.shelf.put(BLOB)
    assert await second.swarm.fetch(blob, [first.peer]) == BLOB
    await until(lambda: first.shelf.reads[-1] == -1)


async def test_a_packet_is_counted_with_its_framing(lab: Lab) -> None:
    first, second, _ = await pair(lab)
    blob = first.shelf.put(b"packet" * 100)
    await second.swarm.fetch(blob, [first.peer], packet=True)
    count, size = second.swarm.packets_received()
    assert count == 1
    assert 600 < size < 640
    assert second.swarm.traffic.blobs_received == size
    await until(lambda: first.swarm.traffic.blobs_sent == size)


async def test_fetching_goes_on_with_the_next_holder_where_one_broke_off(lab: Lab) -> None:
    first, second, run = await pair(lab)
    third = lab.node(first.address)
    await third.start(run)
    await third.hears(MemberSeen, lambda e: e.member.peer == second.peer)
    blob = first.shelf.put(BLOB)
    second.shelf.put(BLOB)
    first.shelf.breaks_at[blob.digest] = 600_000
    assert await third.swarm.fetch(blob, [first.peer, second.peer]) == BLOB
    assert second.shelf.reads[0] == 512 << 10


async def test_a_holder_that_lies_is_passed_over_and_not_asked_again(lab: Lab) -> None:
    first, second, run = await pair(lab)
    third = lab.node(first.address)
    await third.start(run)
    await third.hears(MemberSeen, lambda e: e.member.peer == second.peer)
    blob = second.shelf.put(BLOB)
    first.shelf.blobs[blob.digest] = bytes(len(BLOB))
    assert await third.swarm.fetch(blob, [first.peer, second.peer]) == BLOB
    assert third.swarm.traffic.dropped == 1
    reads = len(first.shelf.reads)
    assert await third.swarm.fetch(blob, [first.peer, second.peer]) == BLOB
    assert len(first.shelf.reads) == reads


async def test_a_holder_that_sends_more_than_the_blob_is_cut_off(lab: Lab) -> None:
    first, second, _ = await pair(lab)
    blob = BlobRef(digest=digest_of(BLOB), size=1000)
    first.shelf.put(BLOB)
    with pytest.raises(SwarmError, match="sends more than the 1000 bytes"):
        await second.swarm.fetch(blob, [first.peer])


async def test_a_holder_without_a_free_slot_names_another(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second, run = await pair(lab)
    third = lab.node(first.address)
    await third.start(run)
    await met(first, second, third)
    monkeypatch.setattr(Mesh, "link", property(lambda self: Link(up=1000.0)))  # one slot
    blob = first.shelf.put(BLOB * 8)
    third.shelf.put(BLOB * 8)
    body = encode_blob_request(run, blob.digest, 0)
    async with aclosing(third.swarm._transport.stream(first.peer, body, 5.0)) as taking:
        assert await anext(taking)
        assert await second.swarm.fetch(blob, [first.peer], packet=True) == BLOB * 8
    assert third.shelf.reads[0] == 0


async def test_a_blob_can_be_asked_for_in_part(lab: Lab) -> None:
    first, second, run = await pair(lab)
    blob = first.shelf.put(BLOB)
    body = encode_blob_request(run, blob.digest, 1000, 2000)
    async with aclosing(second.swarm._transport.stream(first.peer, body, 5.0)) as frames:
        chunks = [decode_chunk(frame) async for frame in frames]
    assert chunks == [Chunk(1000, BLOB[1000:3000], True)]


async def test_a_missing_blob_is_said_to_be_missing(lab: Lab) -> None:
    first, second, _ = await pair(lab)
    blob = BlobRef(digest=digest_of(b"?"), size=1)
    with pytest.raises(SwarmError, match="does not hold blob"):
        await second.swarm.fetch(blob, [first.peer])


# Chains and snapshots


async def test_manifests_come_head_first_and_linked(lab: Lab) -> None:
    first, second, run = await pair(lab)
    first.shelf.chain = a_chain(first, run, 5)
    head = digest_of(first.shelf.chain[0])
    chain = await second.swarm.manifests(first.peer, head, 3)
    assert [manifest.round for manifest, _ in chain] == [5, 4, 3]
    assert [sealed for _, sealed in chain] == first.shelf.chain[:3]


async def test_an_unknown_head_is_refused(lab: Lab) -> None:
    first, second, _ = await pair(lab)
    with pytest.raises(SwarmError, match="does not have manifest"):
        await second.swarm.manifests(first.peer, digest_of(b"?"), 3)


async def test_a_chain_with_a_gap_is_not_believed(lab: Lab) -> None:
    first, second, run = await pair(lab)
    first.shelf.chain = a_chain(first, run, 4)
    del first.shelf.chain[1]
    with pytest.raises(SwarmError, match="not the one that was asked for"):
        await second.swarm.manifests(first.peer, digest_of(first.shelf.chain[0]), 3)
    assert second.swarm.traffic.dropped == 1


async def test_a_snapshot_is_described(lab: Lab) -> None:
    first, second, run = await pair(lab)
    with pytest.raises(SwarmError, match="no snapshot yet"):
        await second.swarm.snapshot(first.peer)
    part = first.shelf.put(BLOB)
    head = Head(digest=run, round=Round(0), samples_total=0)
    first.shelf.taken = Snapshot(head=head, blobs=(part, part))
    assert await second.swarm.snapshot(first.peer) == first.shelf.taken


async def test_a_gift_for_joiners_is_described_and_its_giver_is_a_lender(lab: Lab) -> None:
    first, second, run = await pair(lab)
    with pytest.raises(SwarmError, match="no gift for joiners"):
        await second.swarm.gift(first.peer)
    blobs = (first.shelf.put(BLOB),)
    head = Head(digest=run, round=Round(7), samples_total=70)
    first.shelf.given = Gift(head=head, blobs=blobs, lenders=(first.peer, second.peer))
    assert await second.swarm.gift(first.peer) == first.shelf.given
    first.shelf.given = Gift(head=head, blobs=blobs, lenders=(second.peer,))
    with pytest.raises(SwarmError, match="its giver is no lender"):
        await second.swarm.gift(first.peer)


# The run


async def test_a_joiner_learns_the_run_from_a_seed(lab: Lab) -> None:
    creator = lab.node()
    creator.shelf.born = a_genesis(creator)
    await creator.start(a_run(creator))
    joiner = lab.node(f"{lab.nobody}/p2p/{creator.peer}", creator.address)
    await joiner.start()
    assert await joiner.swarm.find_genesis(10) == creator.shelf.born


async def test_each_seed_that_does_not_tell_the_run_has_its_reason(lab: Lab) -> None:
    idle, stranger = lab.node(), lab.node()
    await asyncio.gather(idle.start(), stranger.start())
    wrong = f"{stranger.swarm.addresses[0]}/p2p/{lab.node().peer}"
    nobody = f"{lab.nobody}/p2p/{idle.peer}"
    for seeds, reason in (
        ((nobody,), "connection refused"),
        ((wrong,), "another peer answers"),
        ((idle.address,), "alive but has no run yet"),
    ):
        joiner = lab.node(*seeds)
        await joiner.start()
        with pytest.raises(ConfigError) as raised:
            await joiner.swarm.find_genesis(0.8)
        line = str(raised.value).splitlines()[1]
        assert line.strip().startswith(seeds[0])
        assert reason in line


async def test_no_seed_at_all_is_said_plainly(lab: Lab) -> None:
    node = lab.node()
    with pytest.raises(ConfigError, match="--peers"):
        await node.swarm.find_genesis(1)


# Start and stop


async def test_an_address_in_use_is_refused_with_the_way_out(lab: Lab) -> None:
    first = lab.node()
    await first.start()
    second = lab.node(address=first.swarm.addresses[0])
    with pytest.raises(ConfigError, match=r"in use.* another"):
        await second.start()


async def test_stopping_twice_or_before_the_start_is_no_error(lab: Lab) -> None:
    node = lab.node()
    await node.swarm.stop()
    other = lab.node()
    await other.start()
    await other.swarm.stop()
    await other.swarm.stop()
    assert other.swarm.traffic.failed_calls == 0


async def test_stopping_leaves_no_task_behind(lab: Lab) -> None:
    before = asyncio.all_tasks()
    first, second, _ = await pair(lab)
    await asyncio.gather(first.swarm.stop(), second.swarm.stop())
    await asyncio.gather(*first._wakers, *second._wakers)
    left = asyncio.all_tasks() - before
    assert not left


async def test_words_before_the_start_are_refused(lab: Lab) -> None:
    node = lab.node()
    with pytest.raises(SwarmError, match="not been started"):
        await node.swarm.announce([an_offer(node)])
