"""What only libp2p can get wrong: moved privates, a dying p2pd, a lying DHT, hostile frames."""

from __future__ import annotations

import asyncio
import inspect
import os
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from time import monotonic
from typing import ClassVar

import psutil
import pytest
from hivemind.dht.routing import DHTID
from hivemind.dht.validation import DHTRecord
from hivemind.p2p import P2P
from hivemind.p2p.p2p_daemon_bindings.control import ControlClient
from hivemind.utils import MSGPackSerializer, get_dht_time

from demoloco.bounds import peer_to_raw
from demoloco.doctor.probing.link import probe_link
from demoloco.doctor.probing.peer import probe_dial_back
from demoloco.errors import ConfigError, SwarmError
from demoloco.swarm.hivemind.framing import Kind, read_frame
from demoloco.swarm.hivemind.hints import (
    MAX_RECORD_BYTES,
    MAX_RECORD_SECONDS,
    OnlyMembers,
    key_of,
)
from demoloco.swarm.hivemind.p2pd import CountingP2P
from demoloco.swarm.hivemind.servicer import NAMESPACE
from demoloco.swarm.hivemind.transport import BLOBS, HivemindSwarm
from demoloco.swarm.identity import Identity
from demoloco.swarm.port import MemberLost, MemberSeen
from demoloco.types import BlobRef
from demoloco.wire import digest_of, encode_member, seal
from tests.contract.swarm_lab import (
    DEADLINE_SECONDS,
    HIVEMIND_WARNINGS,
    HivemindGrpcLab,
    HivemindLab,
    a_run,
    two,
    until,
)
from tests.wire.values import ME, MEMBER, OTHER

pytestmark = HIVEMIND_WARNINGS


@pytest.fixture
async def lab(tmp_path: Path) -> AsyncIterator[HivemindLab]:
    lab = HivemindLab(tmp_path)
    yield lab
    await lab.close()


def test_hivemind_still_has_what_this_project_reaches_into() -> None:
    assert {"args", "kwargs"} <= set(inspect.signature(P2P._make_process_args).parameters)
    call = inspect.signature(P2P._call_unary_protobuf_handler).parameters
    assert list(call) == ["self", "peer_id", "handle_name", "input", "output_protobuf_type"]
    add = inspect.signature(P2P._add_protobuf_unary_handler).parameters
    assert list(add) == ["self", "handle_name", "handler", "input_protobuf_type", "balanced"]
    own = inspect.getsource(P2P.__init__)
    for name in ("_client", "_child", "_listen_task", "_reader_task"):
        assert f"self.{name}" in own
    source = inspect.getsource(ControlClient.__init__)
    for name in ("_pending_calls", "_handler_tasks", "_read_task", "_write_task"):
        assert f"self.{name}" in source
    assert "self.daemon_connector = " in source
    assert "self.daemon_connector.open_connection()" in inspect.getsource(ControlClient.connect)
    assert list(inspect.signature(ControlClient.connect).parameters) == [
        "self",
        "peer_id",
        "maddrs",
    ]


def test_flags_of_our_own_reach_p2pd() -> None:
    class Flagged(CountingP2P):
        flags: ClassVar[dict[str, object]] = {"relayService": 0}

    arguments = Flagged._make_process_args("p2pd", relay=True)
    assert arguments[-3:] == ["p2pd", "-relay=1", "-relayService=0"]


async def test_a_killed_p2pd_is_rebuilt_at_the_same_address_and_works(lab: HivemindLab) -> None:
    first, second = await two(lab)
    blob = first.shelf.put(bytes(1000))
    old_address, old_pid = first.swarm.addresses, first.swarm.transport.daemon_pid
    os.kill(old_pid, signal.SIGKILL)
    await until(lambda: first.swarm.transport.daemon_pid not in (None, old_pid))
    assert first.swarm.restarts == 1
    assert first.swarm.addresses == old_address
    await second.hears_anew(MemberSeen, lambda e: e.member.peer == first.peer)
    assert await second.swarm.fetch(blob, [first.peer]) == bytes(1000)


async def test_a_connected_peer_is_seen_and_dialled_back_where_it_listens(
    lab: HivemindLab,
) -> None:
    first, second = await two(lab)
    road = second.swarm.transport
    seen = await first.swarm.transport.observed(second.peer)
    assert seen is not None
    assert seen.startswith("/ip4/127.0.0.1/tcp/")
    assert await road.observed(Identity.new().peer_id) is None
    assert await road.own_addresses() == second.swarm.addresses

    found = await probe_dial_back(road, first.peer, int(second.swarm.addresses[0].split("/")[4]))
    assert (found["outcome"], found["observed_host"]) == ("open", "127.0.0.1")
    assert (await probe_dial_back(road, first.peer, 1))["outcome"] == "refused"


async def test_the_link_to_a_peer_is_measured_both_ways(lab: HivemindLab) -> None:
    first, second = await two(lab)
    found = await probe_link(second.swarm.transport, first.peer)
    assert found["error"] == ""
    assert min(found["up"], found["down"]) > 0


async def test_a_peer_that_does_not_know_a_call_is_an_older_one(lab: HivemindLab) -> None:
    older = lab.node()
    await older.start()
    name = f"{NAMESPACE}::PeerCalls.rpc_probe"
    await older.swarm.transport._p2p._client.remove_unary_handler(name)
    newer = lab.node()
    await newer.start()
    await newer.swarm.transport.connect(older.peer, older.swarm.addresses, DEADLINE_SECONDS)
    found = await probe_link(newer.swarm.transport, older.peer)
    assert found["old"] is True, found


@pytest.mark.slow
async def test_two_nodes_stay_members_over_the_direct_road_while_a_p2pd_is_down(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    lab = HivemindGrpcLab(tmp_path)
    first, second = await two(lab)
    for node, other in ((first, second), (second, first)):  # which opens the road both ways
        assert await node.swarm.fetch(other.shelf.put(b"small"), [other.peer]) == b"small"
    monkeypatch.setattr(first.swarm.transport, "_rebuild", asyncio.Event().wait)
    os.kill(first.swarm.transport.daemon_pid, signal.SIGKILL)
    await until(lambda: first.swarm.transport.daemon_pid is None)
    begun, patience = monotonic(), 2 * lab.timing.patience_seconds
    blob = second.shelf.put(bytes(1 << 20))
    await until(lambda: monotonic() - begun > patience)
    assert await first.swarm.fetch(blob, [second.peer]) == bytes(1 << 20)
    assert not [event for event in first.heard + second.heard if isinstance(event, MemberLost)]
    await lab.close()


CHILD = """
import asyncio, sys, uvloop
from pathlib import Path
from demoloco.swarm.hivemind.transport import HivemindSwarm, Options
from demoloco.swarm.hivemind.p2pd import LOOPBACK

async def main():
    options = Options(reach=LOOPBACK)
    swarm = HivemindSwarm(Path(sys.argv[1]), listen=("/ip4/127.0.0.1/tcp/0",), options=options)
    await swarm.start(print, None)
    print(swarm.transport.daemon_pid, flush=True)
    await asyncio.Event().wait()

uvloop.run(main())
"""


async def test_p2pd_dies_with_a_node_that_is_killed(tmp_path: Path) -> None:
    child = await asyncio.create_subprocess_exec(
        sys.executable, "-c", CHILD, str(tmp_path / "identity"), stdout=asyncio.subprocess.PIPE
    )
    try:
        assert child.stdout is not None
        async with asyncio.timeout(60):
            line = await child.stdout.readline()
        daemon = int(line)  # and nothing else was printed before it
        assert psutil.pid_exists(daemon)
    finally:
        child.kill()
        await child.wait()
    await until(lambda: not psutil.pid_exists(daemon))


async def test_a_record_left_in_the_dht_is_found_by_another(lab: HivemindLab) -> None:
    first, second = await two(lab)
    run = a_run(first)
    record = first.swarm._standing.sealed
    async with asyncio.timeout(DEADLINE_SECONDS):
        found: list[bytes] = []
        while record not in found:
            await second.swarm.transport.find(run)  # to meet
            await first.swarm.transport.advertise(run, record)
            found = list(await second.swarm.transport.find(run))
    assert record in found


def dht_record(**change) -> DHTRecord:
    run = MEMBER.run
    value = seal("member", ME.sign, encode_member(MEMBER))
    fields = {
        "key": DHTID.generate(key_of(run)).to_bytes(),
        "subkey": MSGPackSerializer.dumps(bytes_of(ME)),
        "value": MSGPackSerializer.dumps(value),
        "expiration_time": get_dht_time() + 60,
    }
    return DHTRecord(**{**fields, **change})


def bytes_of(identity: Identity) -> bytes:
    return peer_to_raw(identity.peer_id)


def test_the_dht_takes_a_members_own_record() -> None:
    validator = OnlyMembers()
    assert not validator.validate(dht_record())
    validator.run = MEMBER.run
    assert validator.validate(dht_record())


@pytest.mark.parametrize(
    "change",
    [
        {"key": DHTID.generate("junk").to_bytes()},
        {"subkey": MSGPackSerializer.dumps(bytes_of(OTHER))},
        {"subkey": b"\xc1"},
        {"value": MSGPackSerializer.dumps(7)},
        {"value": b"\xc1"},
        {"value": MSGPackSerializer.dumps(bytes(100))},
        {"value": MSGPackSerializer.dumps(bytes(MAX_RECORD_BYTES))},
        {"value": MSGPackSerializer.dumps(seal("member", OTHER.sign, encode_member(MEMBER)))},
        {"expiration_time": get_dht_time() + MAX_RECORD_SECONDS + 3600},
    ],
)
def test_the_dht_takes_nothing_else(change) -> None:
    validator = OnlyMembers()
    validator.run = MEMBER.run
    assert not validator.validate(dht_record(**change))


async def test_a_frame_beyond_the_limit_is_refused_before_it_is_read(lab: HivemindLab) -> None:
    async def hostile(info, reader, writer) -> None:
        await read_frame(reader, 5.0)
        writer.write(bytes((Kind.PIECE,)) + b"\xff\xff\xff\xff" + bytes(1000))
        await writer.drain()
        await reader.read()
        writer.close()

    first = lab.node()
    first.swarm.transport._on_stream = hostile
    run = a_run(first)
    await first.start(run)
    second = lab.node(first.address)
    await second.start(run)
    await second.hears(MemberSeen, lambda e: e.member.peer == first.peer)
    blob = BlobRef(digest=digest_of(b""), size=1 << 20)
    with pytest.raises(SwarmError, match="a frame of 4294967295 bytes"):
        await second.swarm.fetch(blob, [first.peer])
    assert second.swarm.traffic.dropped == 1
    assert BLOBS.startswith("demoloco-v1::")


async def test_a_stream_that_is_cut_is_never_taken_for_its_end(lab: HivemindLab) -> None:
    async def cut(info, reader, writer) -> None:
        await read_frame(reader, 5.0)
        writer.close()

    first = lab.node()
    first.swarm.transport._on_stream = cut
    run = a_run(first)
    await first.start(run)
    second = lab.node(first.address)
    await second.start(run)
    await second.hears(MemberSeen, lambda e: e.member.peer == first.peer)
    with pytest.raises(SwarmError, match="the connection broke"):
        await second.swarm.fetch(BlobRef(digest=digest_of(b""), size=1), [first.peer])


def test_an_address_that_cannot_be_used_is_refused_before_anything_starts(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"did you mean /ip4/10\.0\.0\.1/tcp/4001/p2p/"):
        HivemindSwarm(tmp_path / "identity", seeds=("10.0.0.1:4001",))
    with pytest.raises(ConfigError, match="needs the port"):
        HivemindSwarm(tmp_path / "identity", announce=("/ip4/192.0.2.1/tcp/0",))


def test_the_transport_needs_its_identity_on_disk() -> None:
    with pytest.raises(ConfigError, match="p2pd reads it"):
        HivemindSwarm(Identity.new())


async def test_an_address_of_another_machine_is_refused(tmp_path: Path) -> None:
    swarm = HivemindSwarm(tmp_path / "identity", listen=("/ip4/192.0.2.1/tcp/4001",))
    with pytest.raises(ConfigError, match=r"cannot listen on .*/ip4/0\.0\.0\.0/tcp/4001"):
        await swarm.start(print, None)
    await swarm.stop()
