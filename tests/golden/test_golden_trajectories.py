"""Where each method leads, round by round: exact numbers, made once and kept.

Every number but the losses is a digest of bits, of a packet those of its coefficients. That is
possible on every machine because the transform is left out (`dct` changes nothing, and is as
orthonormal as the DCT): what remains is float32 arithmetic, one element at a time, on numbers that
start as small multiples of 2⁻¹⁰. The losses are those of the real transform, whose products each
library adds up in an order of its own; they agree to a thousandth, for that is some 1e-6 of a
coefficient, and at worst exchanges two coefficients of nearly one size.

REWRITE=1 makes the file anew: only where a method is meant to lead elsewhere.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from blake3 import blake3

from demoloco.codec.packet import PacketSpec, decode
from demoloco.config import RUN_CHOICES, RunConfig
from demoloco.outer import own as parts
from demoloco.outer.agreed import digest_parts, fingerprint
from demoloco.outer.methods import method
from demoloco.outer.steps import OuterStep
from tests.core.swarm_of_models import Swarm, drift
from tests.golden.test_golden_packet import digest_of

FILE = Path(__file__).with_name("trajectories.json")
METHODS = [str(name) for name in RUN_CHOICES["method"]]
VARIANTS: dict[str, dict[str, Any]] = {
    **{name: {"method": name} for name in METHODS},
    "paper, mean over senders": {"method": "paper", "mean_over": "senders"},
    "decoupled, outer momentum": {"method": "decoupled", "alpha": 0.5, "outer_momentum": 0.75},
}
CHUNKS = 3
WEIGHTS = ((0.5, 0.5), (0.75, 0.25), (1.0, None), (0.25, 0.75), (0.5, 0.5))
"""Of the two nodes, round by round; in the third the second node is left out."""


def numbers(seed: int) -> torch.Tensor:
    """Multiples of 2⁻¹⁰ in ±1, (chunks, 64, 64); the same everywhere, without a generator."""
    line = np.arange(CHUNKS * 4096, dtype=np.int64)
    mixed = (line * line * 31 + line * (7919 + 2 * seed) + 104_729 * seed) % 2039 - 1019
    return torch.from_numpy((mixed / 1024).astype(np.float32)).view(CHUNKS, 64, 64)


def name_of(array: np.ndarray) -> str:
    return blake3(np.ascontiguousarray(array, np.dtype("<f4")).tobytes()).hexdigest()[:32]


def trajectory(config: RunConfig) -> list[dict[str, Any]]:
    """Two nodes, five rounds, whose inner steps are given numbers."""
    way, step = method(config), OuterStep.of(config)
    spec = PacketSpec((CHUNKS,), config.bits, config.ladder)
    start = numbers(0)
    state = np.zeros((step.planes * CHUNKS, 4096), np.float32)
    state[:CHUNKS] = start.view(-1, 4096).numpy()
    models: list[torch.Tensor] = [start, start]
    memories: list[torch.Tensor | None] = [None, None]
    told: list[dict[str, Any]] = []
    for number, weights in enumerate(WEIGHTS, 1):
        bodies = []
        for place in range(2):
            trained = models[place] + numbers(2 * number + place) / 64
            made = way.contribute(trained, state[:CHUNKS], memories[place], spec, config.k)
            models[place], memories[place] = made.own, made.memory
            bodies.append(made.body)
        packets = [decode(body, spec) for body in bodies]
        inside = [place for place in range(2) if weights[place] is not None]
        after = np.empty_like(state)
        step.advance(state, [packets[p] for p in inside], [weights[p] for p in inside], after)
        for place in range(2):
            mine = [packets[place]] if place in inside else []
            models[place], memories[place] = way.correct(
                models[place], state[:CHUNKS], after[:CHUNKS], mine, [], memories[place]
            )
        state = after
        told.append(
            {
                "packets": [digest_of(packet)[:32] for packet in packets],
                "state": fingerprint(part.digest for part in digest_parts(state)).hex()[:32],
                "own": [name_of(model.numpy()) for model in models],
                "memory": [None if m is None else name_of(m.numpy()) for m in memories],
            }
        )
    return told


def losses(config: RunConfig) -> list[float]:
    """Of a node's own model and of the agreed state, after some rounds of three quadratics."""
    swarm = Swarm.start(
        method(config),
        3,
        k=config.k,
        bits=config.bits,
        alpha=config.alpha,
        momentum=config.outer_momentum,
        mean_over=config.mean_over,
    )
    targets = [drift(place, 0, size=1.0) for place in range(3)]
    common = sum(targets) / 3
    for _ in range(12):
        for node, target in zip(swarm.nodes, targets, strict=True):
            for _ in range(5):
                node.train(0.02 * (target - node.own))
        swarm.contribute()
        swarm.commit(dict.fromkeys(range(3), 1 / 3))
    agreed = parts.model_of(swarm.states[-1], common)
    return [float((model - common).square().mean()) for model in (swarm.nodes[0].own, agreed)]


def config_of(variant: str) -> RunConfig:
    return RunConfig.of(**VARIANTS[variant])


@pytest.fixture
def without_transform(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parts, "idct_", lambda coefficients: coefficients)
    monkeypatch.setattr(parts, "minus_dct_", lambda chunks, base: base - chunks)


@pytest.fixture(scope="module")
def golden() -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads(FILE.read_text()) if FILE.exists() else {}
    return loaded


def kept(golden: dict[str, Any], kind: str, variant: str, value: Any) -> Any:
    """What is written of this, once it was made anew if that is wanted."""
    if os.environ.get("REWRITE") == "1":
        golden.setdefault(variant, {})[kind] = value
        FILE.write_text(json.dumps(golden, indent=1, sort_keys=True) + "\n")
    return golden[variant][kind]


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.usefixtures("without_transform")
def test_every_round_makes_the_bits_it_always_made(golden: dict[str, Any], variant: str) -> None:
    made = trajectory(config_of(variant))
    for number, (here, there) in enumerate(
        zip(made, kept(golden, "rounds", variant, made), strict=True), 1
    ):
        assert here == there, f"round {number}"


@pytest.mark.parametrize("variant", VARIANTS)
def test_training_comes_to_the_losses_it_always_came_to(
    golden: dict[str, Any], variant: str
) -> None:
    made = losses(config_of(variant))
    there = [
        float.fromhex(text) for text in kept(golden, "losses", variant, [*map(float.hex, made)])
    ]
    assert made == pytest.approx(there, rel=1e-3)


def test_all_methods_are_kept(golden: dict[str, Any]) -> None:
    assert set(golden) == set(VARIANTS) >= set(METHODS)
