"""What is signed or named by a digest: the same value out, or a PacketError, nothing else."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from google.protobuf.message import Message
from hypothesis import given, settings
from hypothesis import strategies as st

from demoloco import bounds, wire
from demoloco.errors import PacketError
from demoloco.swarm.identity import verify
from demoloco.types import BlobRef, Draft, Entry, Member, PeerId, Round
from demoloco_proto.v1 import packet_pb2, round_pb2
from tests.wire.values import (
    DRAFT,
    GENESIS,
    HEAD,
    HEADER,
    ME,
    MEMBER,
    OFFER,
    OTHER,
    PART,
    SNAPSHOT,
    entry,
    identity,
    name,
)

GOLDEN = Path(__file__).parents[1] / "golden" / "wire_v1.json"


def sealed_draft(draft: Draft) -> bytes:
    return wire.seal("manifest", ME.sign, wire.encode_manifest(draft))


def sealed_member(member: Member) -> bytes:
    return wire.seal("member", ME.sign, wire.encode_member(member))


MANIFEST = sealed_draft(DRAFT)
RECORD = sealed_member(MEMBER)
PACKET = wire.seal_packet(ME.sign, HEADER, b"coefficients")


def refuse_manifest(draft: Draft, why: str) -> None:
    with pytest.raises(PacketError, match=why):
        wire.decode_manifest(sealed_draft(draft), verify)


def refuse_member(member: Member, why: str) -> None:
    with pytest.raises(PacketError, match=why):
        wire.decode_member(sealed_member(member), verify)


def refuse_packet(why: str, **change: Any) -> None:
    with pytest.raises(PacketError, match=why):
        wire.open_packet(wire.seal_packet(ME.sign, replace(HEADER, **change), b""), verify)


def edited(sealed: bytes, kind: type[Message], edit: Callable[[Any], None], seal: str) -> bytes:
    """The same message with its body changed and signed again."""
    body = kind.FromString(wire.unseal(sealed)[0])
    edit(body)
    return wire.seal(seal, ME.sign, body.SerializeToString())


# Round trips


def test_a_manifest_comes_back_with_the_digest_of_its_bytes() -> None:
    manifest = wire.decode_manifest(MANIFEST, verify)
    assert manifest.digest == wire.digest_of(MANIFEST)
    assert {f: getattr(manifest, f) for f in Draft.__dataclass_fields__} == {
        f: getattr(DRAFT, f) for f in Draft.__dataclass_fields__
    }


def test_a_member_comes_back() -> None:
    assert wire.decode_member(RECORD, verify) == MEMBER
    joining = replace(MEMBER, head=None, addresses=())
    assert wire.decode_member(sealed_member(joining), verify) == joining


def test_a_packet_comes_back() -> None:
    assert wire.open_packet(PACKET, verify) == (HEADER, b"coefficients")


def test_a_genesis_comes_back_and_names_the_run() -> None:
    data = wire.encode_genesis(GENESIS)
    assert wire.decode_genesis(data) == GENESIS
    assert wire.run_of(GENESIS) == wire.digest_of(data)


def test_a_snapshot_and_an_offer_come_back() -> None:
    assert wire.decode_snapshot(wire.encode_snapshot(SNAPSHOT)) == SNAPSHOT
    assert wire.to_offer(wire.offer_message(OFFER)) == OFFER


def test_version_1_has_these_bytes() -> None:
    made = {
        "manifest": MANIFEST.hex(),
        "member": RECORD.hex(),
        "packet": PACKET.hex(),
        "genesis": wire.encode_genesis(GENESIS).hex(),
        "snapshot": wire.encode_snapshot(SNAPSHOT).hex(),
        "offer": wire.offer_message(OFFER).SerializeToString().hex(),
    }
    if os.environ.get("REWRITE"):
        GOLDEN.write_text(json.dumps(made, indent=1) + "\n")
    assert made == json.loads(GOLDEN.read_text())


# Signatures


def test_a_message_that_another_peer_signed_is_refused() -> None:
    for kind, decode, sealed in (
        ("manifest", wire.decode_manifest, MANIFEST),
        ("member", wire.decode_member, RECORD),
        ("packet", wire.open_packet, PACKET),
    ):
        body, _ = wire.unseal(sealed)
        with pytest.raises(PacketError, match="not signed by the peer that it names"):
            decode(wire.seal(kind, OTHER.sign, body), verify)


def test_a_signature_for_one_kind_is_none_for_another() -> None:
    body, _ = wire.unseal(MANIFEST)
    with pytest.raises(PacketError, match="not signed"):
        wire.decode_manifest(wire.seal("member", ME.sign, body), verify)


def test_a_changed_byte_is_noticed() -> None:
    body, signature = wire.unseal(MANIFEST)
    changed = wire.encode_manifest(replace(DRAFT, rank=1))
    assert len(changed) != 0
    message = packet_pb2.Signed(body=changed, signature=signature)
    with pytest.raises(PacketError, match="not signed"):
        wire.decode_manifest(message.SerializeToString(), verify)
    assert body != changed


def test_a_signed_message_has_one_form_only() -> None:
    for padded in (MANIFEST + b"\x18\x01", MANIFEST + MANIFEST):
        with pytest.raises(PacketError, match="canonical"):
            wire.decode_manifest(padded, verify)


def test_a_signature_has_64_bytes() -> None:
    short = packet_pb2.Signed(body=b"x", signature=bytes(63)).SerializeToString()
    with pytest.raises(PacketError, match="63 bytes, not 64"):
        wire.unseal(short)


def test_an_unknown_kind_is_our_own_mistake() -> None:
    with pytest.raises(ValueError, match="not one of"):
        wire.seal("letter", ME.sign, b"")


# Bounds, one over


def test_a_manifest_is_held_to_its_bounds() -> None:
    refuse_manifest(replace(DRAFT, round=Round(0)), "round is 0")
    refuse_manifest(replace(DRAFT, round=Round(bounds.MAX_ROUND + 1)), "round is")
    refuse_manifest(replace(DRAFT, rank=bounds.MAX_RANK + 1), "rank is")
    refuse_manifest(replace(DRAFT, samples_total=0), "samples_total is 0")
    over = bounds.MAX_SAMPLES_TOTAL + 1
    refuse_manifest(replace(DRAFT, samples_total=over), "samples_total is")
    for field in ("run", "parent", "state"):
        refuse_manifest(replace(DRAFT, **{field: bytes(31)}), f"{field} has 31 bytes, not 32")
    refuse_manifest(replace(DRAFT, entries=()), "number of entries is 0")


def test_a_manifest_has_at_most_so_many_entries() -> None:
    def full(count: int) -> Draft:
        entries = tuple(
            replace(entry(identity(1 + n % 255).peer_id, f"p{n}"), weight=1 / count)
            for n in range(count)
        )
        return replace(DRAFT, entries=entries, samples_total=1 << 40)

    assert len(wire.decode_manifest(sealed_draft(full(255)), verify).entries) == 255
    refuse_manifest(full(bounds.MAX_ENTRIES + 1), "number of entries is 257")


def test_an_entry_is_held_to_its_bounds() -> None:
    def with_entry(**change: Any) -> Draft:
        return replace(DRAFT, entries=(replace(DRAFT.entries[0], weight=1.0, **change),))

    wire.decode_manifest(sealed_draft(with_entry()), verify)
    refuse_manifest(with_entry(samples=0), "samples is 0")
    refuse_manifest(with_entry(samples=bounds.MAX_SAMPLES + 1), "samples is")
    refuse_manifest(with_entry(size=0), "size is 0")
    refuse_manifest(with_entry(size=bounds.MAX_PACKET_BYTES + 1), "size is")
    refuse_manifest(with_entry(packet=b""), "packet has 0 bytes")


@pytest.mark.parametrize("weight", [0.0, -1.0, float("nan"), float("inf")])
def test_a_weight_is_finite_and_positive(weight: float) -> None:
    first: Entry = replace(DRAFT.entries[0], weight=weight)
    refuse_manifest(replace(DRAFT, entries=(first, DRAFT.entries[1])), "the weight of an entry")


def test_the_weights_add_up_to_one() -> None:
    a, b = DRAFT.entries
    off = bounds.MAX_WEIGHT_ERROR
    near = replace(DRAFT, entries=(a, replace(b, weight=0.5 + off * 0.9)))
    assert wire.decode_manifest(sealed_draft(near), verify).entries[1].weight > 0.5
    for wrong in (0.5 + off * 1.1, 0.5 - off * 1.1, 0.01):
        refuse_manifest(replace(DRAFT, entries=(a, replace(b, weight=wrong))), "add up to")


def test_nobody_and_nothing_is_in_a_manifest_twice() -> None:
    a, b = DRAFT.entries
    twice = replace(b, contributor=a.contributor)
    refuse_manifest(replace(DRAFT, entries=(a, twice)), "a contributor has two entries")
    refuse_manifest(
        replace(DRAFT, entries=(a, replace(b, packet=a.packet))), "a packet has two entries"
    )


def test_a_round_has_no_more_samples_than_its_chain() -> None:
    refuse_manifest(replace(DRAFT, samples_total=1599), "more samples than its whole chain")
    wire.decode_manifest(sealed_draft(replace(DRAFT, samples_total=1600)), verify)


def test_a_member_is_held_to_its_bounds() -> None:
    address = "/ip4/192.0.2.1/tcp/"
    many = tuple(f"{address}{port}" for port in range(bounds.MAX_ADDRESSES + 1))
    refuse_member(replace(MEMBER, addresses=many), "number of addresses is 17")
    long = "/" + "x" * bounds.MAX_ADDRESS_CHARACTERS
    refuse_member(replace(MEMBER, addresses=(long,)), "an address has 257 characters")
    refuse_member(replace(MEMBER, addresses=("ip4",)), "does not start with a slash")
    refuse_member(replace(MEMBER, addresses=("/a\nb",)), "cannot be printed")
    refuse_member(replace(MEMBER, version="é"), "cannot be printed")
    refuse_member(replace(MEMBER, version="v" * 65), "software has 65 characters")
    refuse_member(replace(MEMBER, sequence=bounds.MAX_SEQUENCE + 1), "sequence is")
    refuse_member(replace(MEMBER, head=replace(HEAD, digest=b"")), "head has 0 bytes")
    for rate in (-1.0, float("nan"), float("inf"), bounds.MAX_RATE * 2):
        refuse_member(replace(MEMBER, samples_per_second=rate), "samples_per_second is")
        refuse_member(replace(MEMBER, up=rate), "up is")
        refuse_member(replace(MEMBER, down=rate), "down is")
    for place in ("192.0.2.1", ":7", "192.0.2.1:0", "192.0.2.1:65536", "192.0.2.1:x", "é:7"):
        refuse_member(replace(MEMBER, direct=(place,)), "direct address")


def test_a_member_tells_of_its_link_and_where_its_direct_road_listens() -> None:
    member = replace(MEMBER, direct=("192.0.2.1:7", "[2001:db8::1]:7"), up=2.5e5, down=1e6)
    assert wire.decode_member(sealed_member(member), verify) == member


def test_an_unknown_phase_is_refused() -> None:
    def sleep(body: round_pb2.Member) -> None:
        body.phase = "asleep"

    with pytest.raises(PacketError, match="a phase is 'asleep'"):
        wire.decode_member(edited(RECORD, round_pb2.Member, sleep, "member"), verify)


def test_a_peer_id_is_that_of_an_ed25519_key() -> None:
    def rsa(body: round_pb2.Member) -> None:
        body.peer = b"\x12\x20" + bytes(32)

    with pytest.raises(PacketError, match="not that of an Ed25519 key"):
        wire.decode_member(edited(RECORD, round_pb2.Member, rsa, "member"), verify)
    with pytest.raises(ValueError, match="not the peer id"):
        bounds.peer_to_raw(PeerId("QmYyQSo1c1Ym7orWxLYvCrM2EmxFTANf8wXmmE7DWjhx5N"))


def test_text_that_is_not_utf8_is_refused() -> None:
    body, _ = wire.unseal(RECORD)
    broken = body.replace(b"0.1.0", b"0.1\xff\xff")
    with pytest.raises(PacketError, match="not a Member"):
        wire.decode_member(wire.seal("member", ME.sign, broken), verify)


def test_a_packet_is_held_to_its_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    refuse_packet("round is 0", round=Round(0))
    refuse_packet("samples is 0", samples=0)
    refuse_packet("samples is", samples=bounds.MAX_SAMPLES + 1)
    refuse_packet("k is 0", k=0)
    refuse_packet("k is 4097", k=bounds.MAX_K + 1)
    refuse_packet("spec has 7 bytes, not 8", spec=bytes(7))
    refuse_packet("run has 33 bytes", run=bytes(33))
    monkeypatch.setattr(wire, "MAX_PACKET_BYTES", len(PACKET) - 1)
    with pytest.raises(PacketError, match="the limit is"):
        wire.open_packet(PACKET, verify)


@pytest.mark.parametrize(
    ("sealed", "kind", "decode"),
    [
        (MANIFEST, round_pb2.Manifest, wire.decode_manifest),
        (RECORD, round_pb2.Member, wire.decode_member),
    ],
)
def test_another_version_is_refused(sealed: bytes, kind: type[Message], decode: Any) -> None:
    def advance(body: Any) -> None:
        body.version = 2

    seal = "manifest" if decode is wire.decode_manifest else "member"
    with pytest.raises(PacketError, match="version 2; this node speaks 1"):
        decode(edited(sealed, kind, advance, seal), verify)


def test_a_genesis_is_held_to_its_bounds() -> None:
    def refuse(why: str, **change: Any) -> None:
        with pytest.raises(PacketError, match=why):
            wire.decode_genesis(wire.encode_genesis(replace(GENESIS, **change)))

    refuse("length of config is 65537", config=bytes(bounds.MAX_CONFIG_BYTES + 1))
    refuse("length of config is 0", config=b"")
    refuse("length of layout is 4194305", layout=bytes(bounds.MAX_LAYOUT_BYTES + 1))
    refuse("nonce has 15 bytes", nonce=bytes(15))
    refuse("number of parts is 0", snapshot=())
    refuse("size of a part", snapshot=(BlobRef(digest=name("p"), size=bounds.MAX_PART_BYTES + 1),))
    refuse("size of a part is 0", snapshot=(BlobRef(digest=name("p"), size=0),))
    refuse("number of parts is 16385", snapshot=(PART,) * (bounds.MAX_PARTS + 1))
    with pytest.raises(PacketError, match="canonical"):
        wire.decode_genesis(wire.encode_genesis(GENESIS) + b"\x08\x01")


# Fuzz


DECODERS: tuple[Callable[[bytes], object], ...] = (
    lambda data: wire.decode_manifest(data, verify),
    lambda data: wire.decode_member(data, verify),
    lambda data: wire.open_packet(data, verify),
    wire.decode_genesis,
    wire.decode_snapshot,
)
VALID = (MANIFEST, RECORD, PACKET, wire.encode_genesis(GENESIS), wire.encode_snapshot(SNAPSHOT))


def value_or_packet_error(decode: Callable[[bytes], object], data: bytes) -> bool:
    try:
        return decode(data) is not None
    except PacketError:
        return False


@settings(max_examples=300, deadline=None)
@given(data=st.binary(max_size=400), which=st.integers(0, 4))
def test_any_bytes_are_a_value_or_a_packet_error(data: bytes, which: int) -> None:
    assert value_or_packet_error(DECODERS[which], data) in (True, False)


@settings(max_examples=300, deadline=None)
@given(
    which=st.integers(0, 4),
    at=st.integers(0, 2000),
    byte=st.integers(0, 255),
    signed=st.booleans(),
)
def test_a_valid_message_with_one_byte_changed_is_a_value_or_a_packet_error(
    which: int, at: int, byte: int, signed: bool
) -> None:
    data = bytearray(VALID[which])
    if signed and which < 3:  # sign the change: the checks behind the signature
        kind = ("manifest", "member", "packet")[which]
        body = bytearray(wire.unseal(bytes(data))[0])
        body[at % len(body)] = byte
        data = bytearray(wire.seal(kind, ME.sign, bytes(body)))
    else:
        data[at % len(data)] = byte
    unchanged = bytes(data) == VALID[which]
    accepted = value_or_packet_error(DECODERS[which], bytes(data))
    assert accepted or not unchanged
