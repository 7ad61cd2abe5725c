"""Certificates of the direct road: a TLS key of one start, vouched for by the peer's identity.

Rule: a certificate names one peer and carries that peer's signature over the certificate's own
key, so it can be checked by anybody who knows the name, wherever it was found. It signs nothing
else: whoever is trusted with one cannot make more.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
)
from cryptography.x509.oid import NameOID

from demoloco.errors import PacketError
from demoloco.swarm.identity import Identity, verify
from demoloco.types import PeerId

MAX_CERTIFICATE_BYTES = 1024
PREFIX = b"demoloco direct road v1:"
VOUCHER = x509.ObjectIdentifier("2.25.298071237464587366019411223344556677889")
"""The extension that holds the identity's signature; an arc that needs no registration."""
AGE = timedelta(days=7)
"""How far a peer's clock may be behind."""
VALID = timedelta(days=3650)
"""The key is on no disk and ends with its process; nothing is renewed meanwhile."""
MALFORMED = (
    ValueError,
    TypeError,
    InvalidSignature,
    UnsupportedAlgorithm,
    x509.InvalidVersion,
    x509.DuplicateExtension,
    x509.UnsupportedGeneralNameType,
)


@dataclass(frozen=True, slots=True)
class Certificate:
    """A node's own certificate and its key."""

    der: bytes
    pem: bytes
    key_pem: bytes


def make(
    identity: Identity, *, begins: datetime | None = None, ends: datetime | None = None
) -> Certificate:
    """A new key and a certificate for it, in this identity's name."""
    now = datetime.now(UTC)
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, identity.peer_id)])
    voucher = identity.sign(PREFIX + _spki(key.public_key()))
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(begins or now - AGE)
        .not_valid_after(ends or now + VALID)
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(identity.peer_id)]), False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), True)
        .add_extension(x509.UnrecognizedExtension(VOUCHER, voucher), False)
        .sign(key, hashes.SHA256())
    )
    return Certificate(
        der=certificate.public_bytes(Encoding.DER),
        pem=certificate.public_bytes(Encoding.PEM),
        key_pem=key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()),
    )


def check(der: bytes, peer: PeerId) -> bytes:
    """The certificate as PEM, if it is this peer's and may be used now.

    Raises: PacketError.
    """
    if len(der) > MAX_CERTIFICATE_BYTES:
        raise PacketError(
            f"a certificate of {len(der)} bytes; the limit is {MAX_CERTIFICATE_BYTES}"
        )
    try:
        with warnings.catch_warnings(action="ignore"):  # what is odd is refused
            certificate = x509.load_der_x509_certificate(der)
            key, signature = _parts(certificate, peer)
    except MALFORMED as error:
        raise PacketError(f"a certificate that is none: {error}") from error
    if not verify(peer, PREFIX + _spki(key), signature):
        raise PacketError("a certificate that its peer's identity did not sign")
    return certificate.public_bytes(Encoding.PEM)


def _parts(certificate: x509.Certificate, peer: PeerId) -> tuple[ec.EllipticCurvePublicKey, bytes]:
    """Its key, and the signature by which the identity vouches for it."""
    if certificate.serial_number <= 0:
        raise PacketError("a certificate without a serial number")
    _check_names(certificate, peer)
    key = certificate.public_key()
    if not isinstance(key, ec.EllipticCurvePublicKey) or key.curve.name != "secp256r1":
        raise PacketError("a certificate whose key is not of P-256")
    certificate.verify_directly_issued_by(certificate)
    try:
        voucher = certificate.extensions.get_extension_for_oid(VOUCHER).value
    except x509.ExtensionNotFound:
        raise PacketError("a certificate that no identity vouches for") from None
    return key, voucher.value if isinstance(voucher, x509.UnrecognizedExtension) else b""


def _check_names(certificate: x509.Certificate, peer: PeerId) -> None:
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, peer)])
    if certificate.subject != name or certificate.issuer != name:
        raise PacketError("a certificate in another peer's name")
    if not certificate.not_valid_before_utc <= datetime.now(UTC) <= certificate.not_valid_after_utc:
        raise PacketError("a certificate that is not valid now; compare the clocks of both nodes")
    extensions = certificate.extensions
    try:
        alternative = extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        constraints = extensions.get_extension_for_class(x509.BasicConstraints).value
    except x509.ExtensionNotFound:
        raise PacketError("a certificate without a name or constraints") from None
    if list(alternative) != [x509.DNSName(peer)]:
        raise PacketError("a certificate in another host's name")
    if constraints.ca:
        raise PacketError("a certificate that may sign others")


def _spki(key: ec.EllipticCurvePublicKey) -> bytes:
    return key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
