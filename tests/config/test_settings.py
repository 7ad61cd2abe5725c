"""Settings come from flags, environment, file and task, in that order, and nothing is ignored."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from demoloco.config import RunConfig
from demoloco.errors import ConfigError
from demoloco.settings import default_home, load, parse_set


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "run.toml"
    path.write_text(
        """
        [run]
        name = "ours"
        inner_steps = 30
        alpha = 1
        ladder = [32, 64]
        [task]
        depth = 3
        width = 64
        [node]
        home = "~/elsewhere"
        peers = ["/ip4/203.0.113.7/tcp/1/p2p/12D3KooW"]
        checkpoint_share = 0.1
        """
    )
    return path


def written(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "bad.toml"
    path.write_text(text)
    return path


def test_without_any_word_only_the_home_is_set() -> None:
    run, node, origins = load({}, {})
    assert run == {}
    assert node == {"home": default_home()}
    assert origins == {"home": "default"}


def test_a_file_sets_typed_values(file: Path) -> None:
    settings = load({}, {}, file)
    run = settings.run_config()
    assert (run.name, run.inner_steps, run.ladder) == ("ours", 30, (32, 64))
    assert run.task_args == {"depth": 3, "width": 64}
    assert isinstance(run.alpha, float)
    node = settings.node_config()
    assert node.home == Path.home() / "elsewhere"
    assert node.checkpoint_share == 0.1


def test_flag_beats_environment_beats_file_beats_task_beats_default(file: Path) -> None:
    flags = {"inner_steps": 10}
    environ = {"DEMOLOCO_INNER_STEPS": "20", "DEMOLOCO_BATCH_SIZE": "4"}
    task = {"inner_steps": 40, "batch_size": 8, "name": "task's", "beta": 0.5}
    settings = load(flags, environ, file)
    run = settings.run_config(task)
    assert run.inner_steps == 10
    assert run.batch_size == 4
    assert run.name == "ours"
    assert run.beta == 0.5
    assert run.quorum == RunConfig().quorum
    assert load({}, environ, file).run_config(task).inner_steps == 20
    assert load({}, {}, file).run_config(task).inner_steps == 30
    assert load({}, {}).run_config(task).inner_steps == 40
    assert load({}, {}).run_config().inner_steps == 50


def test_a_method_that_was_asked_for_brings_what_suits_it() -> None:
    asked = load(dict([parse_set("method=diloco")]), {})
    assert asked.run_config() == RunConfig.of(method="diloco")
    assert asked.run_config({"k": 64, "bits": 2, "inner_steps": 9}) == RunConfig.of(
        method="diloco", inner_steps=9
    )
    closer = load(dict(map(parse_set, ["method=diloco", "alpha=1", "bits=4"])), {}).run_config()
    assert (closer.alpha, closer.bits, closer.k) == (1.0, 4, 4096)


def test_a_task_may_prefer_a_method_and_change_what_suits_it() -> None:
    run = load({}, {}).run_config({"method": "diloco", "alpha": 0.5})
    assert run == RunConfig.of(method="diloco", alpha=0.5)


def test_each_place_may_set_other_settings_of_the_task(file: Path) -> None:
    settings = load({"task.depth": 12}, {"DEMOLOCO_TASK__HEADS": "2"}, file)
    assert settings.run["task_args"] == {"depth": 12, "width": 64, "heads": 2}
    assert settings.origins["task.depth"] == "flag"
    assert settings.origins["task.heads"] == "environment DEMOLOCO_TASK__HEADS"
    assert settings.origins["task.width"] == f"{file} [task]"


def test_a_flag_that_was_not_given_sets_nothing() -> None:
    settings = load({"inner_steps": None, "home": None}, {})
    assert settings.run == {}
    assert settings.origins["home"] == "default"


def test_the_environment_may_name_the_file(file: Path) -> None:
    assert load({}, {"DEMOLOCO_CONFIG": str(file)}).run["inner_steps"] == 30


def test_a_file_named_by_a_flag_is_read_instead_of_the_environments(
    file: Path, tmp_path: Path
) -> None:
    other = written(tmp_path, "[run]\nseed = 7\n")
    assert load({}, {"DEMOLOCO_CONFIG": str(other)}, file).run["inner_steps"] == 30


def test_demoloco_home_moves_the_home(tmp_path: Path) -> None:
    settings = load({}, {"DEMOLOCO_HOME": str(tmp_path)})
    assert settings.node_config().home == tmp_path


def test_task_args_may_stand_in_the_run_table(tmp_path: Path) -> None:
    path = written(tmp_path, "[run]\ntask = 'lm'\n[run.task_args]\ndepth = 2\n")
    assert load({}, {}, path).run == {"task": "lm", "task_args": {"depth": 2}}


@pytest.mark.parametrize(
    ("text", "name", "value"),
    [
        ("inner_steps=20", "inner_steps", 20),
        (" k = 32 ", "k", 32),
        ("alpha=1", "alpha", 1.0),
        ("learning_rate=3e-4", "learning_rate", 3e-4),
        ("ladder=8,16, 64", "ladder", (8, 16, 64)),
        ("name=a=b", "name", "a=b"),
        ("task=lm", "task", "lm"),
        ("peers=", "peers", ()),
        (
            "listen=/ip4/0.0.0.0/tcp/1,/ip6/::/tcp/1",
            "listen",
            ("/ip4/0.0.0.0/tcp/1", "/ip6/::/tcp/1"),
        ),
        ("home=/var/lib/demoloco", "home", Path("/var/lib/demoloco")),
        ("task.depth=12", "task.depth", 12),
        ("task.rate=0.5", "task.rate", 0.5),
        ("task.flip=true", "task.flip", True),
        ("task.path=data/a.txt", "task.path", "data/a.txt"),
        ("task.path='12'", "task.path", "12"),
        ("task.day=2026-01-01", "task.day", "2026-01-01"),
        ("task.list=[1, 2]", "task.list", "[1, 2]"),
        ("task.two=1\nother=2", "task.two", "1\nother=2"),
        ("task.empty=", "task.empty", ""),
    ],
)
def test_a_set_is_read_in_the_type_of_its_field(text: str, name: str, value: object) -> None:
    key, read = parse_set(text)
    assert key == name
    assert read == value
    assert type(read) is type(value)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("inner_steps", "write it as name=value"),
        ("inner_step=20", "unknown setting 'inner_step'; did you mean inner_steps?"),
        ("task_args=1", "unknown setting 'task_args'"),
        ("grace_seconds=1", "'grace_seconds' is no setting any longer: waits are measured"),
        ("inner_steps=2.5", "inner_steps must be a whole number, not '2.5'"),
        ("alpha=much", "alpha must be a number, not 'much'"),
        ("ladder=8,x", "ladder must be whole numbers"),
        ("ladder=8,-1", "ladder must be whole numbers"),
        ("home=", "home must be a path"),
    ],
)
def test_a_wrong_set_is_refused_in_words(text: str, words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_set(text)
    assert words in str(caught.value)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[run]\ninner_step = 1", "[run]: unknown setting 'inner_step'; did you mean inner_steps?"),
        ("[run]\nhome = '/x'", "[run]: unknown setting 'home'"),
        ("[nodes]\nhome = '/x'", "unknown table 'nodes'; did you mean node?"),
        ("inner_steps = 1", "unknown table 'inner_steps'; there are node, run, task"),
        ("run = 1", "[run] must be a table"),
        ("[run]\ntask_args = 1", "[run.task_args] must be a table"),
        ("[run]\nk = '64'", "[run]: k must be a whole number, not '64'"),
        ("[run]\nk = true", "[run]: k must be a whole number, not True"),
        ("[run]\nladder = ['a']", "[run]: ladder must be whole numbers"),
        ("[run]\nalpha = 'x'", "[run]: alpha must be a number"),
        ("[node]\npeers = 'one'", "[node]: peers must be a list of texts"),
        ("[task]\ndepth = [1]", "[task]: task.depth must be text, a number, true or false"),
        ("[run", "not TOML"),
        ("a = " + "[" * 100_000, "not TOML"),
    ],
)
def test_a_wrong_file_is_refused_in_words(tmp_path: Path, text: str, words: str) -> None:
    path = written(tmp_path, text)
    with pytest.raises(ConfigError) as caught:
        load({}, {}, path)
    assert str(caught.value).startswith(str(path))
    assert words in str(caught.value)


def test_a_missing_or_monstrous_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"absent\.toml: No such file"):
        load({}, {}, tmp_path / "absent.toml")
    with pytest.raises(ConfigError, match="larger than"):
        load({}, {}, written(tmp_path, "#" * (1024 * 1024 + 1)))


@pytest.mark.parametrize(
    ("environ", "words"),
    [
        ({"DEMOLOCO_INNERSTEPS": "1"}, "did you mean DEMOLOCO_INNER_STEPS?"),
        ({"DEMOLOCO_GRACE_SHARE": "1"}, "'DEMOLOCO_GRACE_SHARE' is no setting any longer"),
        ({"DEMOLOCO_TASK_DEPTH": "1"}, "unknown setting 'DEMOLOCO_TASK_DEPTH'"),
        ({"DEMOLOCO_K": "x"}, "environment DEMOLOCO_K: k must be a whole number, not 'x'"),
        ({"DEMOLOCO_HOME": ""}, "environment DEMOLOCO_HOME: home must be a path"),
    ],
)
def test_a_wrong_variable_is_refused_in_words(environ: dict[str, str], words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load({}, environ)
    assert words in str(caught.value)


def test_other_programs_variables_are_let_be() -> None:
    assert load({}, {"PATH": "/bin", "DEMOLOCOX": "1"}).run == {}


def test_an_unknown_flag_is_refused() -> None:
    with pytest.raises(ConfigError, match="flag: unknown setting 'inner_step'"):
        load({"inner_step": 1}, {})


@pytest.mark.parametrize(
    ("defaults", "words"),
    [
        ({"inner_step": 1}, "the task's defaults: unknown setting 'inner_step'"),
        ({"task": "other"}, "unknown setting 'task'"),
        ({"home": "/x"}, "unknown setting 'home'"),
        ({"k": "64"}, "the task's defaults: k must be a whole number"),
    ],
)
def test_a_tasks_wrong_default_is_refused(defaults: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load({}, {}).run_config(defaults)
    assert words in str(caught.value)
