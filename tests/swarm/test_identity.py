"""The key file, and the addresses that people type."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from demoloco.bounds import peer_from_raw, peer_to_raw
from demoloco.errors import ConfigError
from demoloco.swarm import addresses
from demoloco.swarm.addresses import PeerAddress, parse_announce, parse_listen, parse_peer
from demoloco.swarm.identity import FILE_BYTES, Identity, verify
from demoloco.types import PeerId
from tests.wire.values import ME, OTHER


def test_an_identity_is_made_once_and_found_again(tmp_path: Path) -> None:
    path = tmp_path / "identity"
    made = Identity.load_or_create(path)
    assert Identity.load_or_create(path).peer_id == made.peer_id
    assert stat.S_IMODE(path.stat().st_mode) == 0o400
    assert path.stat().st_size == FILE_BYTES
    assert [one.name for one in tmp_path.iterdir()] == ["identity"]
    assert made.peer_id.startswith("12D3KooW")
    assert peer_from_raw(peer_to_raw(made.peer_id)) == made.peer_id


@pytest.mark.parametrize("data", [b"", b"-----BEGIN PRIVATE KEY-----", bytes(FILE_BYTES), None])
def test_a_file_that_is_no_such_key_is_refused_and_left_alone(
    tmp_path: Path, data: bytes | None
) -> None:
    path = tmp_path / "identity"
    if data is None:  # the public half belongs to another key
        Identity.load_or_create(path)
        data = path.read_bytes()[:-1] + b"\0"
        path.unlink()
    path.write_bytes(data)
    with pytest.raises(ConfigError, match="move it away"):
        Identity.load_or_create(path)
    assert path.read_bytes() == data


def test_a_place_where_no_identity_can_be_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot make the identity"):
        Identity.load_or_create(tmp_path / "missing" / "identity")
    with pytest.raises(ConfigError, match="cannot read the identity"):
        Identity.load_or_create(tmp_path)


def test_a_signature_holds_for_one_message_of_one_peer() -> None:
    signature = ME.sign(b"word")
    assert verify(ME.peer_id, b"word", signature)
    assert not verify(ME.peer_id, b"words", signature)
    assert not verify(OTHER.peer_id, b"word", signature)
    assert not verify(ME.peer_id, b"word", signature[:-1])
    assert not verify(PeerId("nobody"), b"word", signature)


P = ME.peer_id
GOOD = [
    f"/ip4/192.0.2.1/tcp/4001/p2p/{P}",
    f"/ip6/2001:db8::1/tcp/4001/p2p/{P}",
    f"/dns/node.example.org/tcp/4001/p2p/{P}",
    f"/ip4/192.0.2.1/udp/4001/quic-v1/p2p/{P}",
    f"/ip4/192.0.2.1/tcp/4001/p2p/{OTHER.peer_id}/p2p-circuit/p2p/{P}",
]


@pytest.mark.parametrize("text", GOOD)
def test_an_address_to_dial_is_read_and_written_alike(text: str) -> None:
    parsed = parse_peer(f" {text}\n")
    assert parsed.peer == P
    assert str(parsed) == text
    assert parsed == PeerAddress(P, text.removesuffix(f"/p2p/{P}"))


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("192.0.2.1:4001", "did you mean /ip4/192.0.2.1/tcp/4001/p2p/<peer id>?"),
        ("node.example:4001", "did you mean /dns/node.example/tcp/4001/p2p/<peer id>?"),
        ("http://node.example:80/", "did you mean /dns/node.example/tcp/80/p2p/<peer id>?"),
        ("[2001:db8::1]:4001", "did you mean /ip6/2001:db8::1/tcp/4001/p2p/<peer id>?"),
        ("/ip4/192.0.2.1/tcp/4001", "/tcp/4001/p2p/<peer id>? That node prints"),
        (f"ip4/192.0.2.1/tcp/4001/p2p/{P}", f"did you mean /ip4/192.0.2.1/tcp/4001/p2p/{P}?"),
        ("", "the form is /ip4/"),
        (f"/ipv4/192.0.2.1/tcp/4001/p2p/{P}", "did you mean /ip4/ instead of /ipv4/?"),
        (f"/onion/x/tcp/1/p2p/{P}", "'onion' is not one of"),
        (f"/ip4/192.0.2.1/tpc/4001/p2p/{P}", "did you mean /tcp/ instead of /tpc/?"),
        (f"/ip4/192.0.2.1/tcp/65536/p2p/{P}", "ports are 0 to 65535"),
        (f"/ip4/192.0.2.1/tcp/x/p2p/{P}", "'x' is not a port"),
        (f"/ip4/192.0.2.1/tcp/0/p2p/{P}", "port 0 cannot be dialled"),
        (f"/ip4/192.0.2.300/tcp/1/p2p/{P}", "192.0.2.300"),
        (f"/ip4/node.example/tcp/1/p2p/{P}", "/dns/node.example/"),
        (f"/ip6/192.0.2.1/tcp/1/p2p/{P}", "192.0.2.1"),
        (f"/dns/-x/tcp/1/p2p/{P}", "not a host name"),
        (f"/ip4/192.0.2.1/udp/4001/p2p/{P}", "udp/4001/quic-v1"),
        (f"/ip4/192.0.2.1/tcp/4001/ws/p2p/{P}", "nothing may follow the port"),
        ("/ip4/192.0.2.1/tcp/4001/p2p/QmFoo", "is not a peer id of this network"),
        (f"/ip4/192.0.2.1/tcp/1/p2p/{P}/p2p-circuit/x/p2p/{P}", "nothing may stand between"),
    ],
)
def test_an_address_that_cannot_be_dialled_is_refused_with_the_right_form(
    text: str, hint: str
) -> None:
    with pytest.raises(ConfigError) as raised:
        parse_peer(text)
    assert hint in str(raised.value)
    assert repr(text) in str(raised.value)


def test_listening_and_announcing_have_their_own_rules() -> None:
    assert parse_listen("/ip4/0.0.0.0/tcp/0") == "/ip4/0.0.0.0/tcp/0"
    assert parse_announce("/dns/node.example/tcp/4001") == "/dns/node.example/tcp/4001"
    for parse, text, hint in (
        (parse_listen, f"/ip4/0.0.0.0/tcp/0/p2p/{P}", "without /p2p/"),
        (parse_listen, "/dns/node.example/tcp/1", "listens on an IP address"),
        (parse_listen, "4001", "the form is"),
        (parse_announce, "/ip4/192.0.2.1/tcp/0", "needs the port"),
        (parse_announce, f"/ip4/192.0.2.1/tcp/1/p2p/{P}", "without /p2p/"),
    ):
        with pytest.raises(ConfigError, match=hint):
            parse(text)


def test_a_port_is_read_and_replaced() -> None:
    assert addresses.tcp_host_port("/ip4/127.0.0.1/tcp/80") == ("127.0.0.1", 80)
    assert addresses.tcp_host_port("/ip4/127.0.0.1/udp/80/quic-v1") is None
    assert addresses.tcp_host_port("/dns/a/tcp/80") is None
    assert addresses.with_port("/ip4/0.0.0.0/tcp/0", 81) == "/ip4/0.0.0.0/tcp/81"
