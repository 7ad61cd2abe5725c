"""What version 1 of the packet means, and what the outer step makes of it, for all time.

The bodies in packet_v1.json were made once; every later version of the code reads them alike, on
every machine. REWRITE=1 makes them anew: only with a new format version.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pytest
from blake3 import blake3

from demoloco.codec.packet import PacketSpec, Sparse, decode, encode
from demoloco.outer.agreed import advance, digest_parts, fingerprint
from tests.core import twins

FILE = Path(__file__).with_name("packet_v1.json")
GROUPS, LADDER, ROUNDS = (34, 3), (8, 16), 10
CHUNKS = sum(GROUPS)
BITS = (1, 2, 4, 8)


def spec_for(bits: int) -> PacketSpec:
    return PacketSpec(GROUPS, bits, LADDER)


def digest_of(sparse: Sparse) -> str:
    index, value = sparse.index.astype("<i4"), sparse.value.astype("<f4")
    return blake3(index.tobytes() + value.tobytes()).hexdigest()


def ten_states(bodies: dict[str, str]) -> list[str]:
    """Fingerprints of ten rounds, from a state that needs no rounding to be written down."""
    packets = [decode(bytes.fromhex(bodies[str(bits)]), spec_for(bits)) for bits in BITS]
    state = (np.arange(CHUNKS * 4096) % 2003 - 1001).astype(np.float32) / 512
    state = state.reshape(CHUNKS, 4096)
    names = []
    for number in range(1, ROUNDS + 1):
        weights = [1 / (number + place) for place in range(len(packets))]
        advance(state, packets, weights, 0.7, state)
        names.append(fingerprint(part.digest for part in digest_parts(state)).hex())
    return names


def written() -> dict[str, object]:
    bodies = {}
    for bits in BITS:
        sparse = twins.largest(twins.momenta(CHUNKS, seed=bits), LADDER[1])
        bodies[str(bits)] = encode(sparse, spec_for(bits))[0].hex()
    return {
        "bodies": bodies,
        "coefficients": {
            str(bits): digest_of(decode(bytes.fromhex(bodies[str(bits)]), spec_for(bits)))
            for bits in BITS
        },
        "specs": {str(bits): spec_for(bits).digest.hex() for bits in BITS},
        "states": ten_states(bodies),
    }


@pytest.fixture(scope="module")
def golden() -> dict[str, object]:
    if os.environ.get("REWRITE") == "1":
        FILE.write_text(json.dumps(written(), indent=1) + "\n")
    loaded: dict[str, object] = json.loads(FILE.read_text())
    return loaded


@pytest.mark.parametrize("bits", BITS)
def test_a_packet_of_version_1_means_what_it_always_meant(
    golden: dict[str, dict[str, str]], bits: int
) -> None:
    body = bytes.fromhex(golden["bodies"][str(bits)])
    assert digest_of(decode(body, spec_for(bits))) == golden["coefficients"][str(bits)]


@pytest.mark.parametrize("bits", BITS)
def test_the_spec_of_version_1_has_the_name_it_always_had(
    golden: dict[str, dict[str, str]], bits: int
) -> None:
    assert spec_for(bits).digest.hex() == golden["specs"][str(bits)]


def test_ten_rounds_make_the_states_they_always_made(golden: dict[str, dict[str, str]]) -> None:
    assert ten_states(golden["bodies"]) == golden["states"]
