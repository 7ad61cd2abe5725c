"""A run's configuration travels as canonical bytes, and a peer's bytes are hostile."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from demoloco.bounds import MAX_CONFIG_BYTES
from demoloco.config import RunConfig
from demoloco.errors import ConfigError
from demoloco.settings import (
    differences,
    removed_from_bytes,
    run_config_bytes,
    run_config_from_bytes,
)

names = st.from_regex(r"[a-z_][a-z0-9_]{0,20}", fullmatch=True)
scalars = (
    st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
    | st.integers(-(2**63) + 1, 2**63 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.booleans()
)
configs = st.builds(
    RunConfig,
    task_args=st.dictionaries(names, scalars, max_size=5),
    alpha=st.floats(0.001, 2) | st.just(1),
    learning_rate=st.floats(1e-12, 100),
    seed=st.integers(0, 2**63 - 1),
    k=st.sampled_from(RunConfig().ladder),
)


@given(configs)
def test_a_configuration_survives_the_journey(config: RunConfig) -> None:
    data = run_config_bytes(config)
    read = run_config_from_bytes(data)
    assert read == config
    assert differences(read, config) == []
    assert run_config_bytes(read) == data


def test_equal_configurations_have_equal_bytes() -> None:
    one = RunConfig(alpha=1, task_args={"a": 1, "b": 2})
    other = RunConfig(alpha=1.0, task_args={"b": 2, "a": 1})
    assert run_config_bytes(one) == run_config_bytes(other)


def test_the_bytes_of_a_configuration_never_change() -> None:
    config = RunConfig(quorum=0.75, task_args={"rate": 0.1, "depth": 4, "text": "größer"})
    assert run_config_bytes(config).decode() == (
        '{"alpha":1.0,"batch_size":16,"beta":0.95,"bits":2,"clip_norm":1.0,"decay_rounds":1000,'
        '"evaluate_every":5,"final_lr_share":0.1,'
        '"inner_steps":50,"k":64,"ladder":[8,16,32,64,128,256,512],"learning_rate":0.001,'
        '"max_contributors":64,"mean_over":"all","method":"decoupled","name":"demoloco",'
        '"outer_momentum":0.0,"overlap":1,"quorum":0.75,"ramp_rounds":4,"round_seconds":0.0,'
        '"seed":0,'
        '"snapshot_every":10,"task":"lm","task_args":{"depth":4,'
        '"rate":0.1,"text":"gr\\u00f6\\u00dfer"},'
        '"warmup_rounds":2,"weight_decay":0.1}'
    )


def test_a_field_that_an_older_version_did_not_have_takes_its_default() -> None:
    assert run_config_from_bytes(b'{"k":32}') == RunConfig(k=32)


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "not JSON"),
        (b"\xff", "not JSON"),
        (b"[" * 60_000, "not JSON"),
        (b'{"k":' + b"1" * 5000 + b"}", "not JSON"),
        (b"[]", "not a JSON object"),
        (b'{"k":64,"k":32}', "stands twice"),
        (b'{"overlay":1}', "'overlay', which this version does not know; .*newer"),
        (b'{"home":"/x"}', "home"),
        (b'{"k":"64"}', "k must be a whole number"),
        (b'{"k":64.0}', "k must be a whole number"),
        (b'{"k":null}', "k must be a whole number"),
        (b'{"k":63}', "not on the ladder"),
        (b'{"alpha":NaN}', "alpha"),
        (b'{"alpha":1e999}', "alpha"),
        (b'{"alpha":' + b"1" * 400 + b"}", "alpha must be a number"),
        (b'{"name":"\\ud800"}', "printable"),
        (b'{"task_args":[]}', "task_args must be a table"),
        (b'{"task_args":{"a":[1]}}', "task_args must be a table"),
        (b'{"task_args":{"a":NaN}}', "finite"),
        (b'{"ladder":[[8]]}', "ladder must be whole numbers"),
        (b" " * MAX_CONFIG_BYTES + b"{}", "longer than"),
    ],
)
def test_what_is_no_configuration_is_refused_in_words(data: bytes, words: str) -> None:
    with pytest.raises(ConfigError, match=words) as caught:
        run_config_from_bytes(data)
    assert len(str(caught.value)) < 400


def test_a_run_of_an_earlier_version_goes_on_without_its_waits() -> None:
    data = b'{"grace_seconds":1.0,"grace_share":0.2,"k":32,"succession_seconds":5.0}'
    assert run_config_from_bytes(data) == RunConfig(k=32)
    assert removed_from_bytes(data) == ["grace_seconds", "grace_share", "succession_seconds"]
    assert removed_from_bytes(run_config_bytes(RunConfig())) == []
    with pytest.raises(ConfigError, match="started by a newer one"):
        run_config_from_bytes(b'{"grace_minutes":1.0,"grace_seconds":1.0}')


@given(
    st.binary(max_size=200)
    | st.recursive(
        st.none() | scalars, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner)
    ).map(lambda value: json.dumps(value).encode())
)
def test_any_bytes_are_a_configuration_or_a_refusal(data: bytes) -> None:
    try:
        config = run_config_from_bytes(data)
    except ConfigError:
        return
    assert run_config_from_bytes(run_config_bytes(config)) == config


def test_a_configuration_that_is_too_long_is_not_sent() -> None:
    config = RunConfig(task_args={f"a{n}": "x" * 4096 for n in range(20)})
    with pytest.raises(ConfigError, match="shorten the task's settings"):
        run_config_bytes(config)


def test_differences_are_said_in_words() -> None:
    ours = RunConfig(k=64, task_args={"depth": 4, "flip": True})
    theirs = replace(ours, k=32, task_args={"depth": 12, "width": 8, "flip": 1})
    assert differences(ours, theirs) == [
        "k is 64 here and 32 in the run",
        "task.depth is 4 here and 12 in the run",
        "task.flip is True here and 1 in the run",
        "task.width is not set here and 8 in the run",
    ]


def test_a_whole_number_and_the_same_number_with_a_point_do_not_differ() -> None:
    assert differences(RunConfig(alpha=1), RunConfig(alpha=1.0)) == []
