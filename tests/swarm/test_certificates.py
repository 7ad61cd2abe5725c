"""Certificates of the direct road: made in a peer's name, believed in no other."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from demoloco.errors import PacketError
from demoloco.swarm.identity import Identity
from demoloco.swarm.roads.certificates import MAX_CERTIFICATE_BYTES, PREFIX, VOUCHER, check, make
from demoloco.swarm.roads.direct import MAX_TRUSTED, Trust, hosts_of, places_of

ME, OTHER = Identity.new(), Identity.new()
NOW = datetime.now(UTC)
DAY = timedelta(days=1)


def forged(
    *,
    name: str = ME.peer_id,
    alternative: str | None = None,
    voucher: Identity | None = ME,
    ca: bool = False,
    curve: ec.EllipticCurve | None = None,
) -> bytes:
    """A certificate that says what the test wants."""
    key = ec.generate_private_key(curve or ec.SECP256R1())
    spki = key.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])
    builder = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(NOW - DAY)
        .not_valid_after(NOW + DAY)
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(alternative or name)]), False)
        .add_extension(x509.BasicConstraints(ca=ca, path_length=None), True)
    )
    if voucher is not None:
        signed = voucher.sign(PREFIX + spki)
        builder = builder.add_extension(x509.UnrecognizedExtension(VOUCHER, signed), False)
    return builder.sign(key, hashes.SHA256()).public_bytes(Encoding.DER)


def test_a_certificate_that_a_node_makes_is_believed_in_its_own_name() -> None:
    own = make(ME)
    assert check(own.der, ME.peer_id) == own.pem
    assert len(own.der) < MAX_CERTIFICATE_BYTES
    assert check(forged(), ME.peer_id)  # so the refusals below are for what they change


@pytest.mark.parametrize(
    ("der", "why"),
    [
        (forged(name=OTHER.peer_id, voucher=OTHER), "another peer's name"),
        (forged(alternative="localhost"), "another host's name"),
        (forged(voucher=OTHER), "did not sign"),
        (forged(voucher=None), "vouches"),
        (forged(ca=True), "may sign others"),
        (forged(curve=ec.SECP384R1()), "P-256"),
        (make(ME, begins=NOW - 2 * DAY, ends=NOW - DAY).der, "clocks"),
        (make(ME, begins=NOW + DAY, ends=NOW + 2 * DAY).der, "clocks"),
        (bytes(MAX_CERTIFICATE_BYTES), "is none"),
        (bytes(MAX_CERTIFICATE_BYTES + 1), "the limit"),
        (b"", "is none"),
    ],
    ids=lambda value: value if isinstance(value, str) else "certificate",  # its bytes are random
)
def test_a_certificate_that_is_not_as_it_should_be_is_refused(der: bytes, why: str) -> None:
    with pytest.raises(PacketError, match=why):
        check(der, ME.peer_id)


def test_no_changed_byte_of_what_a_certificate_says_is_believed() -> None:
    der = make(ME).der
    said = x509.load_der_x509_certificate(der).tbs_certificate_bytes
    begin = der.index(said)
    for at in range(begin, begin + len(said)):
        for flip in (0x01, 0x20, 0xFF):
            changed = der[:at] + bytes([der[at] ^ flip]) + der[at + 1 :]
            with pytest.raises(PacketError):
                check(changed, ME.peer_id)


def test_a_peer_is_trusted_with_its_newest_certificate_alone() -> None:
    trust, old, new = Trust(), make(ME), make(ME)
    trust.take(ME.peer_id, old.der)
    assert trust.who(old.pem) == ME.peer_id
    trust.take(ME.peer_id, new.der)
    assert trust.who(old.pem) is None
    assert trust.who(new.pem) == ME.peer_id
    assert trust.roots == new.pem
    trust.drop(ME.peer_id)
    assert trust.who(new.pem) is None
    assert trust.roots == b""


def test_the_trusted_are_bounded_and_the_first_goes_first() -> None:
    trust = Trust()
    peers = [Identity.new() for _ in range(MAX_TRUSTED + 1)]
    made = [make(peer) for peer in peers]
    for peer, one in zip(peers, made, strict=True):
        trust.take(peer.peer_id, one.der)
    assert trust.who(made[0].pem) is None
    assert [trust.who(one.pem) for one in made[1:]] == [peer.peer_id for peer in peers[1:]]


def test_direct_places_are_the_hosts_of_the_addresses_without_relays() -> None:
    addresses = (
        "/ip4/203.0.113.7/tcp/4001",
        "/ip4/203.0.113.7/udp/4001/quic-v1",
        "/ip6/2001:db8::1/tcp/4001",
        "/dns/node.example/tcp/4001",
        f"/ip4/198.51.100.1/tcp/4001/p2p/{OTHER.peer_id}/p2p-circuit",
    )
    assert hosts_of(addresses) == ("203.0.113.7", "[2001:db8::1]", "node.example")
    assert places_of(addresses[:3], 50) == ("203.0.113.7:50", "[2001:db8::1]:50")
