"""Protobuf to values and back, for everything that is signed or named by a digest.

Rule: bytes in, a value or PacketError out. A decoder bounds every length, count and number before
it believes it, and checks the signature of the peer that is named inside. A signed message has
exactly one form in bytes, so its digest can be taken of the bytes as received even where it
travelled inside another message.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import TypeVar

from blake3 import blake3
from google.protobuf.message import DecodeError, Message

from demoloco.bounds import (
    MAX_ADDRESSES,
    MAX_CONFIG_BYTES,
    MAX_ENTRIES,
    MAX_K,
    MAX_LAYOUT_BYTES,
    MAX_PACKET_BYTES,
    MAX_PART_BYTES,
    MAX_PARTS,
    MAX_RANK,
    MAX_SAMPLES,
    MAX_SAMPLES_TOTAL,
    MAX_SEQUENCE,
    MAX_SOFTWARE_CHARACTERS,
    MAX_WEIGHT_ERROR,
    NONCE_BYTES,
    SIGNATURE_BYTES,
    SPEC_BYTES,
    VERSION,
    check_version,
    exactly,
    peer_from_raw,
    peer_to_raw,
    rate_of,
    text_of,
    to_address,
    to_digest,
    to_host_port,
    to_phase,
    to_round,
    within,
)
from demoloco.errors import PacketError
from demoloco.types import (
    BlobRef,
    Digest,
    Draft,
    Entry,
    Genesis,
    Head,
    Manifest,
    Member,
    Offer,
    PacketHeader,
    PeerId,
    Snapshot,
)
from demoloco_proto.v1 import packet_pb2, round_pb2

Sign = Callable[[bytes], bytes]
Verify = Callable[[PeerId, bytes, bytes], bool]

KINDS = ("packet", "manifest", "member")

_M = TypeVar("_M", bound=Message)


def digest_of(data: bytes) -> Digest:
    """The name of these bytes."""
    return Digest(blake3(data).digest())


# Signed envelopes


def seal(kind: str, sign: Sign, body: bytes) -> bytes:
    """The one form in bytes of `body`, signed as a message of this kind."""
    return _envelope(body, sign(_domain(kind) + body))


def unseal(sealed: bytes) -> tuple[bytes, bytes]:
    """Body and signature, not yet checked against each other."""
    signed = parse(packet_pb2.Signed, sealed)
    exactly("a signature", signed.signature, SIGNATURE_BYTES)
    if _envelope(signed.body, signed.signature) != sealed:
        raise PacketError("a signed message is not in canonical form")
    return signed.body, signed.signature


def _envelope(body: bytes, signature: bytes) -> bytes:
    return packet_pb2.Signed(body=body, signature=signature).SerializeToString()


def _domain(kind: str) -> bytes:
    if kind not in KINDS:
        raise ValueError(f"{kind!r} is not one of {KINDS}")
    return f"demoloco/{kind}/v1\0".encode()


def _check_signature(
    kind: str, signer: PeerId, body: bytes, signature: bytes, verify: Verify
) -> None:
    if not verify(signer, _domain(kind) + body, signature):
        raise PacketError(f"a {kind} is not signed by the peer that it names")


# Packets


def seal_packet(sign: Sign, header: PacketHeader, coefficients: bytes) -> bytes:
    """The packet as it travels; its digest is `digest_of` the result."""
    message = packet_pb2.Packet(
        header=packet_pb2.PacketHeader(
            version=VERSION,
            run=header.run,
            round=header.round,
            parent=header.parent,
            contributor=peer_to_raw(header.contributor),
            samples=header.samples,
            spec=header.spec,
            k=header.k,
        ),
        coefficients=coefficients,
    )
    return seal("packet", sign, message.SerializeToString())


def open_packet(sealed: bytes, verify: Verify) -> tuple[PacketHeader, bytes]:
    """Header and coefficients, not looked at, of a packet that its contributor signed."""
    if len(sealed) > MAX_PACKET_BYTES:
        raise PacketError(f"a packet has {len(sealed)} bytes; the limit is {MAX_PACKET_BYTES}")
    body, signature = unseal(sealed)
    message = parse(packet_pb2.Packet, body)
    told = message.header
    check_version(told.version)
    header = PacketHeader(
        run=to_digest("run", told.run),
        round=to_round(told.round, low=1),
        parent=to_digest("parent", told.parent),
        contributor=peer_from_raw(told.contributor),
        samples=within("samples", told.samples, 1, MAX_SAMPLES),
        spec=exactly("spec", told.spec, SPEC_BYTES),
        k=within("k", told.k, 1, MAX_K),
    )
    _check_signature("packet", header.contributor, body, signature, verify)
    return header, message.coefficients


# Manifests


def encode_manifest(draft: Draft) -> bytes:
    """The body that the proposer seals."""
    message = round_pb2.Manifest(
        version=VERSION,
        run=draft.run,
        round=draft.round,
        parent=draft.parent,
        state=draft.state,
        proposer=peer_to_raw(draft.proposer),
        rank=draft.rank,
        samples_total=draft.samples_total,
    )
    for entry in draft.entries:
        message.entries.add(
            packet=entry.packet,
            contributor=peer_to_raw(entry.contributor),
            samples=entry.samples,
            weight=entry.weight,
            size=entry.size,
        )
    return message.SerializeToString()


def decode_manifest(sealed: bytes, verify: Verify) -> Manifest:
    """A manifest that its proposer signed and that does not contradict itself."""
    body, signature = unseal(sealed)
    told = parse(round_pb2.Manifest, body)
    check_version(told.version)
    within("number of entries", len(told.entries), 1, MAX_ENTRIES)
    manifest = Manifest(
        run=to_digest("run", told.run),
        round=to_round(told.round, low=1),
        parent=to_digest("parent", told.parent),
        state=to_digest("state", told.state),
        proposer=peer_from_raw(told.proposer),
        rank=within("rank", told.rank, 0, MAX_RANK),
        samples_total=within("samples_total", told.samples_total, 1, MAX_SAMPLES_TOTAL),
        entries=tuple(_entry(entry) for entry in told.entries),
        digest=digest_of(sealed),
    )
    _check_entries(manifest)
    _check_signature("manifest", manifest.proposer, body, signature, verify)
    return manifest


def _entry(told: round_pb2.Entry) -> Entry:
    if not (math.isfinite(told.weight) and told.weight > 0):
        raise PacketError(f"the weight of an entry is {told.weight}")
    return Entry(
        packet=to_digest("packet", told.packet),
        contributor=peer_from_raw(told.contributor),
        samples=within("samples", told.samples, 1, MAX_SAMPLES),
        weight=told.weight,
        size=within("size", told.size, 1, MAX_PACKET_BYTES),
    )


def _check_entries(manifest: Manifest) -> None:
    entries = manifest.entries
    if len({entry.contributor for entry in entries}) != len(entries):
        raise PacketError("a contributor has two entries in a manifest")
    if len({entry.packet for entry in entries}) != len(entries):
        raise PacketError("a packet has two entries in a manifest")
    if sum(entry.samples for entry in entries) > manifest.samples_total:
        raise PacketError("a manifest has more samples than its whole chain")
    total = math.fsum(entry.weight for entry in entries)
    if abs(total - 1) > MAX_WEIGHT_ERROR:  # less would take from the models what nobody gets
        raise PacketError(f"the weights of a manifest add up to {total:.6g}")


# Members


def encode_member(member: Member) -> bytes:
    """The body that the member itself seals."""
    message = round_pb2.Member(
        version=VERSION,
        peer=peer_to_raw(member.peer),
        run=member.run,
        addresses=member.addresses,
        phase=member.phase.value,
        sequence=member.sequence,
        samples_per_second=member.samples_per_second,
        software=member.version,
        direct=member.direct,
        up=member.up,
        down=member.down,
    )
    if member.head is not None:
        message.head.CopyFrom(head_message(member.head))
    return message.SerializeToString()


def decode_member(sealed: bytes, verify: Verify) -> Member:
    """A member's own signed words."""
    body, signature = unseal(sealed)
    told = parse(round_pb2.Member, body)
    check_version(told.version)
    within("number of addresses", len(told.addresses), 0, MAX_ADDRESSES)
    within("number of direct addresses", len(told.direct), 0, MAX_ADDRESSES)
    member = Member(
        peer=peer_from_raw(told.peer),
        run=to_digest("run", told.run),
        addresses=tuple(to_address(address) for address in told.addresses),
        head=to_head(told.head) if told.HasField("head") else None,
        phase=to_phase(told.phase),
        sequence=within("sequence", told.sequence, 0, MAX_SEQUENCE),
        samples_per_second=rate_of("samples_per_second", told.samples_per_second),
        version=text_of("software", told.software, MAX_SOFTWARE_CHARACTERS),
        direct=tuple(to_host_port(place) for place in told.direct),
        up=rate_of("up", told.up),
        down=rate_of("down", told.down),
    )
    _check_signature("member", member.peer, body, signature, verify)
    return member


# Genesis, snapshots, offers: not signed


def encode_genesis(genesis: Genesis) -> bytes:
    """The bytes whose digest is the run's id."""
    message = round_pb2.Genesis(
        version=VERSION,
        config=genesis.config,
        layout=genesis.layout,
        creator=peer_to_raw(genesis.creator),
        snapshot=[blob_message(blob) for blob in genesis.snapshot],
        nonce=genesis.nonce,
    )
    return message.SerializeToString()


def decode_genesis(data: bytes) -> Genesis:
    """A run's birth; `run_of` the result is the digest of `data`."""
    told = parse(round_pb2.Genesis, data)
    check_version(told.version)
    within("length of config", len(told.config), 1, MAX_CONFIG_BYTES)
    within("length of layout", len(told.layout), 1, MAX_LAYOUT_BYTES)
    genesis = Genesis(
        config=told.config,
        layout=told.layout,
        creator=peer_from_raw(told.creator),
        snapshot=to_blobs(told.snapshot),
        nonce=exactly("nonce", told.nonce, NONCE_BYTES),
    )
    if encode_genesis(genesis) != data:
        raise PacketError("a genesis is not in canonical form")
    return genesis


def run_of(genesis: Genesis) -> Digest:
    """The run's id."""
    return digest_of(encode_genesis(genesis))


def encode_snapshot(snapshot: Snapshot) -> bytes:
    """A snapshot's table of blobs."""
    blobs = [blob_message(blob) for blob in snapshot.blobs]
    message = round_pb2.SnapshotReply(head=head_message(snapshot.head), blobs=blobs)
    return message.SerializeToString()


def decode_snapshot(data: bytes) -> Snapshot:
    """A table of blobs, of plausible number and sizes."""
    told = parse(round_pb2.SnapshotReply, data)
    return Snapshot(head=to_head(told.head), blobs=to_blobs(told.blobs))


def offer_message(offer: Offer) -> round_pb2.Offer:
    return round_pb2.Offer(
        packet=offer.packet,
        contributor=peer_to_raw(offer.contributor),
        round=offer.round,
        parent=offer.parent,
        samples=offer.samples,
        size=offer.size,
    )


def to_offer(told: round_pb2.Offer) -> Offer:
    return Offer(
        packet=to_digest("packet", told.packet),
        contributor=peer_from_raw(told.contributor),
        round=to_round(told.round, low=1),
        parent=to_digest("parent", told.parent),
        samples=within("samples", told.samples, 1, MAX_SAMPLES),
        size=within("size", told.size, 1, MAX_PACKET_BYTES),
    )


# Checks that other messages between peers need too


def parse(kind: type[_M], data: bytes) -> _M:
    """Raises: PacketError if the bytes are not a message of this kind."""
    try:
        return kind.FromString(data)
    except DecodeError as error:
        raise PacketError(f"not a {kind.__name__}: {error}") from error


def head_message(head: Head) -> round_pb2.Head:
    return round_pb2.Head(
        digest=head.digest, round=head.round, samples_total=head.samples_total, rank=head.rank
    )


def to_head(told: round_pb2.Head) -> Head:
    return Head(
        digest=to_digest("head", told.digest),
        round=to_round(told.round),
        samples_total=within("samples_total", told.samples_total, 0, MAX_SAMPLES_TOTAL),
        rank=within("rank", told.rank, 0, MAX_RANK),
    )


def blob_message(blob: BlobRef) -> round_pb2.BlobRef:
    return round_pb2.BlobRef(digest=blob.digest, size=blob.size)


def to_blobs(told: Iterable[round_pb2.BlobRef]) -> tuple[BlobRef, ...]:
    blobs = tuple(
        BlobRef(
            digest=to_digest("blob", blob.digest),
            size=within("size of a part", blob.size, 1, MAX_PART_BYTES),
        )
        for blob in told
    )
    within("number of parts", len(blobs), 1, MAX_PARTS)
    return blobs
