"""A configuration that exists is a possible one."""

from __future__ import annotations

import ast
import inspect
import itertools
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest

from demoloco import bounds, config
from demoloco.codec import layout, quantise
from demoloco.config import NodeConfig, RunConfig
from demoloco.errors import ConfigError

PEER = "/ip4/203.0.113.7/tcp/24470/p2p/12D3KooWQzPy7F"


def node(**values: Any) -> NodeConfig:
    return NodeConfig(home=Path("/home"), **values)


def with_room(name: str, value: float) -> dict[str, Any]:
    """The value, and what other fields must be for it to be possible."""
    room: dict[str, dict[str, Any]] = {
        "k": {"ladder": (int(value),)},
        "warmup_rounds": {"decay_rounds": 10**9, "warmup_rounds": min(int(value), 10**9 - 1)},
        "decay_rounds": {"warmup_rounds": 0},
    }
    return {name: value} | room.get(name, {})


def test_every_number_has_bounds() -> None:
    numbers = {one.name for one in fields(RunConfig) if one.type in ("int", "float")}
    assert numbers == set(config.RUN_BOUNDS) | {"bits", "overlap"}
    numbers = {one.name for one in fields(NodeConfig) if one.type in ("int", "float")}
    assert numbers == set(config.NODE_BOUNDS)


def test_what_a_run_may_set_is_what_the_codec_and_the_wire_can_carry() -> None:
    assert config.RUN_CHOICES["bits"] == quantise.BITS
    assert config.CHUNK_COEFFICIENTS == layout.CHUNK == bounds.MAX_K
    assert config.RUN_BOUNDS["max_contributors"][1] == bounds.MAX_ENTRIES


@pytest.mark.parametrize(("name", "bounds"), config.RUN_BOUNDS.items())
def test_a_run_value_at_its_bounds_is_taken_and_one_beyond_is_refused(
    name: str, bounds: tuple[float, float]
) -> None:
    low, high = bounds
    RunConfig(**with_room(name, low))
    RunConfig(**with_room(name, high))
    step = 1 if isinstance(getattr(RunConfig(), name), int) else 1e-9 + high * 1e-6
    for beyond in (low - step, high + step):
        values: dict[str, Any] = {name: beyond}
        with pytest.raises(ConfigError, match=rf"{name} = .*must be .* to .*default"):
            RunConfig(**values)


@pytest.mark.parametrize(("name", "bounds"), config.NODE_BOUNDS.items())
def test_a_node_value_at_its_bounds_is_taken_and_one_beyond_is_refused(
    name: str, bounds: tuple[float, float]
) -> None:
    low, high = bounds
    node(**{name: low})
    node(**{name: high})
    for beyond in (low - 1, high + 1):
        with pytest.raises(ConfigError, match=rf"{name} = .*must be .* to .*default"):
            node(**{name: beyond})


@pytest.mark.parametrize("name", ["alpha", "learning_rate", "quorum", "round_seconds"])
@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_a_number_that_is_not_finite_is_refused(name: str, value: float) -> None:
    with pytest.raises(ConfigError, match=name):
        RunConfig(**{name: value})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"method": "dense"}, "method = 'dense' .*decoupled, synced, paper, diloco"),
        ({"method": "diloco"}, "k = 64, ladder = .8, 16.*every coefficient.*leave both out"),
        ({"method": "diloco", "ladder": (8, 4096), "k": 4096}, "ladder = 4096; leave both out"),
        ({"method": "paper", "outer_momentum": 0.9}, "0.9 does not go with method paper.*beta"),
        ({"mean_over": "some"}, "mean_over = 'some' .*all, senders"),
        ({"mean_over": "senders"}, "goes with method paper only; leave it out"),
        ({"bits": 3}, "bits = 3 .*1, 2, 4, 8"),
        ({"k": 63}, "k = 63 is not on the ladder; choose one of 8,16,32,64"),
        ({"ladder": ()}, "ladder"),
        ({"ladder": (64, 64)}, "rising"),
        ({"ladder": (64, 32)}, "rising"),
        ({"ladder": (0, 64)}, "each 1 to 4096"),
        ({"ladder": (64, 4097)}, "each 1 to 4096"),
        ({"ladder": tuple(range(60, 77))}, "1 to 16 rising"),
        ({"name": ""}, "name"),
        ({"name": "x" * 65}, "1 to 64"),
        ({"name": "a\nb"}, "printable"),
        ({"name": "\ud800"}, "printable"),
        ({"task": "lm:"}, "module:attr"),
        ({"task": "../lm"}, "module:attr"),
        ({"task": "x" * 257}, "module:attr"),
        ({"task_args": {"not a name": 1}}, "Python name"),
        ({"task_args": {"größe": 1}}, "ASCII"),
        ({"task_args": {"x" * 65: 1}}, "64"),
        ({"task_args": {"depth": float("nan")}}, r"task\.depth .*finite"),
        ({"task_args": {"depth": 2**63}}, "64 bits"),
        ({"task_args": {"path": "\udcff"}}, "Unicode"),
        ({"task_args": {"path": "x" * 4097}}, "4096"),
        ({"task_args": {f"a{n}": n for n in range(257)}}, "too many"),
        ({"warmup_rounds": 1000}, "decay_rounds = 1000 must be more than warmup_rounds = 1000"),
    ],
)
def test_an_impossible_run_is_refused_in_words(values: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        RunConfig(**values)


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"peers": ("127.0.0.1:31337",)}, r"/ip4/127\.0\.0\.1/tcp/31337/p2p/<peer id>"),
        ({"peers": ("somewhere",)}, "not a multiaddr; one looks like"),
        ({"peers": ("/ip4/203.0.113.7/tcp/24470",)}, "which node it is.*demoloco status"),
        ({"peers": (PEER + "/",)}, "must end in /p2p/"),
        ({"listen": ()}, "listen is empty"),
        ({"listen": ("0.0.0.0:24470",)}, r"listen: .*one looks like /ip4/0\.0\.0\.0/tcp/24470$"),
        ({"announce": ("example.org",)}, "announce"),
        ({"device": "gpu"}, "choose auto, cpu, cuda"),
        ({"device": "cuda:x"}, "cuda:<number>"),
        ({"max_upload": "fast"}, "max_upload = 'fast' is not a rate; write one such as 2mbit"),
        ({"max_upload": "2mb"}, "is not a rate"),  # bits or bytes?
        ({"max_download": "100kbit"}, "128 kbit/s to 1000 Gbit/s; leave it out for no limit"),
        ({"log_level": "INFO"}, "debug, info, warning"),
        ({"log_format": "logfmt"}, "text, json"),
        ({"exchange": "quic"}, "exchange = 'quic' .*auto, libp2p, grpc.*default, auto"),
        ({"direct_port": 65_536}, "direct_port = 65536 .*0 to 65535"),
    ],
)
def test_an_impossible_node_is_refused_in_words(values: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        node(**values)


def test_a_relayed_peer_and_a_numbered_gpu_are_possible() -> None:
    relayed = f"{PEER}/p2p-circuit/p2p/12D3KooWother"
    made = node(peers=(PEER, relayed), device="cuda:1")
    assert made.peers == (PEER, relayed)
    assert made.device == "cuda:1"


def test_a_method_alone_makes_a_run() -> None:
    for method in config.RUN_CHOICES["method"]:
        made = RunConfig.of(method=method)
        assert made.method == method
        assert RunConfig.of(method=method, seed=7) == replace(made, seed=7)
    assert RunConfig.of() == RunConfig()
    assert RunConfig.of(method="diloco", bits=4).bits == 4
    dense = RunConfig.of(method="diloco")
    assert (dense.k, dense.ladder, dense.bits) == (4096, (4096,), 8)
    assert (dense.alpha, dense.outer_momentum) == (0.7, 0.9)


def test_a_refusal_does_not_repeat_a_long_value() -> None:
    with pytest.raises(ConfigError) as caught:
        RunConfig(method="x" * 60_000)
    assert len(str(caught.value)) < 300


def test_every_setting_is_explained() -> None:
    for kind in (RunConfig, NodeConfig):
        body = ast.parse(inspect.getsource(kind)).body[0]
        assert isinstance(body, ast.ClassDef)
        for field, text in itertools.pairwise(body.body):
            if isinstance(field, ast.AnnAssign):
                assert isinstance(text, ast.Expr), ast.unparse(field)


@pytest.mark.parametrize(
    ("text", "rate"),
    [
        ("", 0.0),
        ("2mbit", 250_000),
        ("500kbit", 62_500),
        ("1.5MB/s", 1_500_000),
        ("2.5 Mbit/s", 312_500),
        ("20kB", 20_000),
        ("1gbit", 125_000_000),
    ],
)
def test_a_limit_is_read_as_people_write_it(text: str, rate: float) -> None:
    assert config.bytes_a_second(text, "max_upload") == rate
    assert node(max_upload=text, max_download=text).max_upload == text
