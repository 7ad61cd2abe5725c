"""A packet's checks, each one over."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from demoloco.bounds import MAX_SAMPLES
from demoloco.errors import PacketError
from demoloco.node.packets import read_packet
from demoloco.types import Digest, Offer, PeerId, Round
from tests.node.scribe import EXPECTED, GENESIS, K, Scribe


def test_an_honest_packet_is_read() -> None:
    sealed, offer = Scribe().packet(GENESIS)
    packet = read_packet(sealed, EXPECTED, offer)
    assert packet.header.contributor == offer.contributor
    assert packet.sparse.k == K
    assert packet.norm > 0


@pytest.mark.parametrize(
    ("header", "why"),
    [
        ({"run": Digest(b"other run" + bytes(23))}, "another run"),
        ({"spec": b"othrspec"}, "another model or other settings"),
        ({"k": 64}, "the header says k = 64, the coefficients k = 8"),
        ({"samples": 0}, "samples"),
        ({"samples": MAX_SAMPLES + 1}, "samples"),
        ({"round": 0}, "round"),
    ],
)
def test_a_packet_that_says_something_else_is_refused(header: dict[str, Any], why: str) -> None:
    sealed, _ = Scribe().packet(GENESIS, **header)
    with pytest.raises(PacketError, match=why):
        read_packet(sealed, EXPECTED)


@pytest.mark.parametrize(
    "lie",
    [
        {"samples": 9},
        {"round": Round(2)},
        {"parent": Digest(b"?" * 32)},
        {"contributor": PeerId("another")},
    ],
)
def test_a_packet_that_is_not_as_announced_is_refused(lie: dict[str, Any]) -> None:
    sealed, offer = Scribe().packet(GENESIS)
    claimed: Offer = replace(offer, **lie)
    with pytest.raises(PacketError, match=f"{next(iter(lie))} is not the one"):
        read_packet(sealed, EXPECTED, claimed)


def test_a_packet_signed_by_another_is_refused() -> None:
    scribe = Scribe()
    sealed, _ = scribe.packet(GENESIS, 0, contributor=scribe.identities[1].peer_id)
    with pytest.raises(PacketError, match="not signed"):
        read_packet(sealed, EXPECTED)


def test_a_packet_one_byte_over_the_limit_is_refused_unread() -> None:
    with pytest.raises(PacketError, match="this run's packets have"):
        read_packet(bytes(EXPECTED.max_packet_bytes + 1), EXPECTED)
    with pytest.raises(PacketError, match=r"Signed|signature"):
        read_packet(bytes(EXPECTED.max_packet_bytes), EXPECTED)


def test_a_damaged_packet_is_refused() -> None:
    sealed, _ = Scribe().packet(GENESIS)
    for at in range(0, len(sealed), 7):
        damaged = bytearray(sealed)
        damaged[at] ^= 1
        with pytest.raises(PacketError):
            read_packet(bytes(damaged), EXPECTED)
