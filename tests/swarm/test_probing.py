"""A peer may measure its link to a node, and no more than that."""

from __future__ import annotations

import random

import pytest

from demoloco.errors import PacketError
from demoloco.swarm.calls import encode_blob_request
from demoloco.swarm.probing import (
    BYTES_A_MINUTE,
    BYTES_AT_ONCE,
    MAX_FILLER_BYTES,
    Probes,
    decode_probe_reply,
    encode_probe_request,
)
from demoloco.swarm.service import CALLS_AT_ONCE, PeerService
from demoloco.swarm.standing import Standing
from demoloco.swarm.transport import Method, Refused
from demoloco.types import PeerId
from tests.contract.swarm_lab import Shelf
from tests.wire.values import ME, MEMBER
from tests.wire.values import OTHER as SOMEBODY

OTHER = SOMEBODY.peer_id

BIG = encode_probe_request(wanted=MAX_FILLER_BYTES)


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def spent(probes: Probes, peer: PeerId) -> int:
    """How many bytes this peer gets before it is refused."""
    got = 0
    while True:
        try:
            got += decode_probe_reply(probes.answer(peer, BIG), MAX_FILLER_BYTES)
        except Refused:
            return got


def test_a_probe_is_answered_with_as_many_bytes_as_were_wanted() -> None:
    reply = Probes(Clock()).answer(OTHER, encode_probe_request(wanted=1000, sent=7))
    assert decode_probe_reply(reply, 1000) == 1000
    with pytest.raises(PacketError):
        decode_probe_reply(reply, 999)


@pytest.mark.parametrize(
    "body",
    [
        encode_probe_request(wanted=MAX_FILLER_BYTES + 1),
        b"\x12\x81\x80\x10" + bytes(MAX_FILLER_BYTES + 1),
        b"\xff",
    ],
)
def test_a_probe_out_of_bounds_is_refused(body: bytes) -> None:
    with pytest.raises(PacketError):
        Probes(Clock()).answer(OTHER, body)


def test_what_one_peer_may_probe_comes_back_with_time() -> None:
    clock = Clock()
    probes = Probes(clock)
    assert BYTES_AT_ONCE - MAX_FILLER_BYTES - 1e5 < spent(probes, OTHER) <= BYTES_AT_ONCE
    assert spent(probes, OTHER) == 0
    clock.now = 60.0
    assert 0 < spent(probes, OTHER) <= BYTES_A_MINUTE + MAX_FILLER_BYTES


def test_many_names_burn_no_more_than_two() -> None:
    probes = Probes(Clock())
    assert sum(spent(probes, PeerId(f"peer{number}")) for number in range(9)) <= 2 * BYTES_AT_ONCE


# As a node answers them


def service() -> tuple[PeerService, Standing, Shelf]:
    shelf = Shelf()
    here = Standing(
        identity=ME, emit=lambda event: None, library=shelf, rng=random.Random(0), now=Clock()
    )
    return PeerService(here), here, shelf


def test_a_probe_needs_no_run_and_counts_as_one_call() -> None:
    node, here, _ = service()
    body = encode_probe_request(sent=MAX_FILLER_BYTES)
    bytes_as_calls = CALLS_AT_ONCE * 1024
    probed = 0
    while probed + MAX_FILLER_BYTES < BYTES_AT_ONCE - 100_000:
        node.answer(OTHER, Method.PROBE, body)
        probed += MAX_FILLER_BYTES
    assert probed > bytes_as_calls
    with pytest.raises(Refused, match="in the last minute"):
        node.answer(OTHER, Method.PROBE, body)
    assert here.dropped == 0


def test_no_probe_is_answered_while_blobs_go_out() -> None:
    node, here, shelf = service()
    here.run = MEMBER.run
    blob = shelf.put(bytes(1000))
    stream = node.open_stream(OTHER, encode_blob_request(MEMBER.run, blob.digest, 0))
    with pytest.raises(Refused, match="busy: it sends blobs"):
        node.answer(OTHER, Method.PROBE, BIG)
    stream.close()
    assert node.answer(OTHER, Method.PROBE, BIG)


@pytest.mark.parametrize("method", [Method.PROBE, Method.DIAL_BACK])
def test_garbage_instead_of_a_request_without_a_run_is_counted(method: Method) -> None:
    node, here, _ = service()
    with pytest.raises(Refused):
        node.answer(OTHER, method, b"\xff")
    assert here.dropped == 1
