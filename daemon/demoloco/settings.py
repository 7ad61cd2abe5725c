"""Where settings come from, and how a run's configuration travels.

Precedence, highest first: flag, environment, file, what suits the method if one was asked for, the
task's own defaults, the default of the class. A name that nothing knows is refused wherever it
stands: a misspelt setting that is ignored would train another run than the one that was meant.

    flag         --set inner_steps=20 --set task.depth=12
    environment  DEMOLOCO_INNER_STEPS=20 DEMOLOCO_TASK__DEPTH=12 DEMOLOCO_CONFIG=run.toml
    file         [run] and [node] hold the fields; [task], or [run.task_args], the task's own
"""

from __future__ import annotations

import difflib
import json
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple, get_type_hints

import platformdirs

from demoloco.bounds import MAX_CONFIG_BYTES
from demoloco.config import METHOD_DEFAULTS, NodeConfig, RunConfig, Scalar, shown
from demoloco.errors import ConfigError

MAX_FILE_BYTES = 1024 * 1024
REMOVED = ("grace_seconds", "grace_share", "succession_seconds")
"""Waits that earlier versions kept in a run's configuration. Such a run goes on without them: how
long a node waits is its own affair, and changes nothing of what all agree on."""

PREFIX = "DEMOLOCO_"
TASK_PREFIX = "TASK__"
CONFIG_VARIABLE = "DEMOLOCO_CONFIG"

RUN_TYPES: Mapping[str, Any] = get_type_hints(RunConfig)
NODE_TYPES: Mapping[str, Any] = get_type_hints(NodeConfig)
_TYPES = {**RUN_TYPES, **NODE_TYPES}
_SETTABLE = [name for name in _TYPES if name != "task_args"]


class Settings(NamedTuple):
    """What the user asked for. Fields that nobody set are absent, so that a task can have its say.

    `origins` says for each name (`task.<arg>` for the task's own) where its value comes from.
    """

    run: dict[str, Any]
    node: dict[str, Any]
    origins: dict[str, str]

    def run_config(self, task_defaults: Mapping[str, Any] | None = None) -> RunConfig:
        """The run as asked for; `task_defaults` are the task's own words for fields not asked for.

        Raises: ConfigError for a value out of bounds, or a default that is no RunConfig field.
        """
        values: dict[str, Any] = {}
        for name, value in (task_defaults or {}).items():
            if name not in RUN_TYPES or name in ("task", "task_args"):
                raise ConfigError(
                    f"the task's defaults: {_unknown(name, RUN_TYPES)}; mend the task"
                )
            values[name] = _typed(name, value, "the task's defaults")
        if "method" in self.run:  # asked for, so it comes before what the task likes with another
            values |= METHOD_DEFAULTS.get(self.run["method"], {})
        return RunConfig.of(**values | self.run)

    def node_config(self) -> NodeConfig:
        """This node's own settings.

        Raises: ConfigError for a value out of bounds.
        """
        return NodeConfig(**self.node)


def default_home() -> Path:
    """Where a node keeps what it keeps, if nobody says otherwise."""
    return platformdirs.user_state_path("demoloco") / "default"


def load(
    flags: Mapping[str, Any], environ: Mapping[str, str], file: Path | None = None
) -> Settings:
    """Gather all settings, by the precedence above.

    `flags`: names as in the classes, or `task.<arg>`, to typed values; None where the flag was not
    given. `dict(map(parse_set, sets))` has that shape. DEMOLOCO_CONFIG is read if `file` is None.
    Raises: ConfigError for an unknown name, a value of a wrong type or an unreadable file.
    """
    settings = Settings(run={}, node={}, origins={})
    _put(settings, "home", default_home(), "default")
    named = environ.get(CONFIG_VARIABLE)
    path = file or (Path(named).expanduser() if named else None)
    if path is not None:
        _take_file(settings, path)
    _take_environment(settings, environ)
    for name, value in flags.items():
        if value is not None:
            _put(settings, name, value, "flag")
    return settings


def parse_set(text: str) -> tuple[str, Any]:
    """Read one `key=value` of the command line; `task.<arg>=…` is typed as TOML, else it is text.

    Raises: ConfigError for anything else, with the nearest right name.
    """
    name, equals, value = text.partition("=")
    if not equals:
        raise ConfigError(f"--set {text}: write it as name=value, for example --set inner_steps=20")
    name = name.strip()
    if name.startswith("task."):
        return name, _scalar_from_text(value)
    if name not in _SETTABLE:
        raise ConfigError(f"--set {text}: {_unknown(name, _SETTABLE)}")
    return name, _from_text(name, value.strip(), "--set")


def run_config_bytes(config: RunConfig) -> bytes:
    """Canonical JSON: equal configurations have equal bytes."""
    text = json.dumps(
        _agreed(config), sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False
    )
    if len(text) > MAX_CONFIG_BYTES:
        raise ConfigError(
            f"the run's configuration takes {len(text)} bytes and may take {MAX_CONFIG_BYTES}; "
            "shorten the task's settings"
        )
    return text.encode()


def run_config_from_bytes(data: bytes) -> RunConfig:
    """Read a run's configuration, which may be a peer's. What is REMOVED is left out.

    Raises: ConfigError for bytes that are none, or that a newer version wrote.
    """
    where = "the run's configuration"
    values = _read_agreed(data, where)
    unknown = sorted({*values} - {*RUN_TYPES} - {*REMOVED})
    if unknown:
        raise ConfigError(
            f"{where} has {shown(', '.join(unknown))}, which this version does not know; "
            "it was started by a newer one: pip install -U demoloco-node"
        )
    known = {name: value for name, value in values.items() if name in RUN_TYPES}
    return RunConfig(**{name: _typed(name, value, where) for name, value in known.items()})


def removed_from_bytes(data: bytes) -> list[str]:
    """What this configuration has of REMOVED; likewise."""
    values = _read_agreed(data, "the run's configuration")
    return [name for name in REMOVED if name in values]


def _read_agreed(data: bytes, where: str) -> dict[str, Any]:
    if len(data) > MAX_CONFIG_BYTES:
        raise ConfigError(f"{where} is longer than {MAX_CONFIG_BYTES} bytes; ask its creator")
    try:
        values = json.loads(data, object_pairs_hook=_object_without_repeats)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{where} is not JSON: {str(error)[:120]}") from error
    if not isinstance(values, dict):
        raise ConfigError(f"{where} is not a JSON object")
    return values


def differences(ours: RunConfig, theirs: RunConfig) -> list[str]:
    """Say in words, one field a line, where this node's configuration is not the run's."""
    here, there = _flat(ours), _flat(theirs)
    return [
        f"{name} is {_worded(here, name)} here and {_worded(there, name)} in the run"
        for name in dict.fromkeys([*here, *there])
        if _worded(here, name) != _worded(there, name)
    ]


# -- the places -----------------------------------------------------------------------------------
def _take_file(settings: Settings, path: Path) -> None:
    tables = _read_toml(path)
    arguments = tables.pop("task", {})
    run = tables.get("run", {})
    if isinstance(run, dict) and "task_args" in run:
        _take_task(settings, run.pop("task_args"), f"{path} [run.task_args]")
    _take_task(settings, arguments, f"{path} [task]")
    for table, values in tables.items():
        where = f"{path} [{table}]"
        types = {"run": RUN_TYPES, "node": NODE_TYPES}.get(table)
        if types is None:
            raise ConfigError(f"{path}: {_unknown(table, ('run', 'node', 'task'), 'table')}")
        for name, value in _table(values, where).items():
            if name not in types:
                raise ConfigError(f"{where}: {_unknown(name, types)}")
            _put(settings, name, value, where)


def _take_task(settings: Settings, values: Any, where: str) -> None:
    for arg, value in _table(values, where).items():
        _put(settings, f"task.{arg}", value, where)


def _table(values: Any, where: str) -> dict[str, Any]:
    if not isinstance(values, dict):
        raise ConfigError(f"{where} must be a table: name = value, a line for each")
    return values


def _read_toml(path: Path) -> dict[str, Any]:
    try:
        with path.open("rb") as stream:
            content = stream.read(MAX_FILE_BYTES + 1)
        if len(content) > MAX_FILE_BYTES:
            raise ConfigError(f"{path}: larger than {MAX_FILE_BYTES} bytes; is it the right file?")
        return tomllib.loads(content.decode())
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}; name a readable TOML file") from error
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{path}: not TOML: {error}") from error


def _take_environment(settings: Settings, environ: Mapping[str, str]) -> None:
    known = [CONFIG_VARIABLE, *(PREFIX + name.upper() for name in _SETTABLE)]
    for variable in sorted(environ):
        if not variable.startswith(PREFIX) or variable == CONFIG_VARIABLE:
            continue
        where = f"environment {variable}"
        name = variable.removeprefix(PREFIX)
        text = environ[variable]
        if name.startswith(TASK_PREFIX):
            arg = name.removeprefix(TASK_PREFIX).lower()
            _put(settings, f"task.{arg}", _scalar_from_text(text), where)
        elif variable not in known:
            raise ConfigError(f"environment: {_unknown(variable, known)}")
        else:
            _put(settings, name.lower(), _from_text(name.lower(), text.strip(), where), where)


def _put(settings: Settings, name: str, value: Any, where: str) -> None:
    if name.startswith("task."):
        if not isinstance(value, Scalar):
            raise ConfigError(f"{where}: {name} must be text, a number, true or false")
        settings.run.setdefault("task_args", {})[name.removeprefix("task.")] = value
    elif name not in _SETTABLE:
        raise ConfigError(f"{where}: {_unknown(name, _SETTABLE)}")
    elif name in RUN_TYPES:
        settings.run[name] = _typed(name, value, where)
    else:
        settings.node[name] = _typed(name, value, where)
    settings.origins[name] = where


# -- values ---------------------------------------------------------------------------------------
_TRUTH = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}
_INTEGERS = tuple[int, ...]
_TEXTS = tuple[str, ...]
_KINDS: Mapping[Any, str] = {
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    str: "text",
    Path: "a path",
    _INTEGERS: "whole numbers",
    _TEXTS: "a list of texts",
    dict[str, Scalar]: "a table of texts, numbers, true or false",
}


def _from_text(name: str, text: str, where: str) -> Any:
    """A field's value as an operator wrote it; several are separated by commas."""
    kind = _TYPES[name]
    try:
        if kind in (int, float):
            return kind(text)
        if kind is bool:
            return _TRUTH[text.lower()]
    except (ValueError, KeyError):
        raise _wrong_kind(name, text, where) from None
    if kind is Path:
        return _typed(name, text, where)
    if kind not in (_INTEGERS, _TEXTS):
        return text
    parts = [part.strip() for part in text.split(",") if part.strip()]
    if kind == _TEXTS:
        return tuple(parts)
    if not all(part.isdecimal() for part in parts):
        raise _wrong_kind(name, text, where)
    return tuple(int(part) for part in parts)


def _typed(name: str, value: Any, where: str) -> Any:
    """A field's value as TOML, JSON or Python gave it, in the type that the field declares."""
    kind = _TYPES[name]
    several = isinstance(value, list | tuple)
    if kind is float and _is_number(value):
        try:
            return float(value)
        except OverflowError:
            raise _wrong_kind(name, "a larger one", where) from None
    if kind is Path and isinstance(value, str | Path) and str(value):
        return Path(value).expanduser()
    if kind == _INTEGERS and several and all(type(part) is int for part in value):
        return tuple(value)
    if kind == _TEXTS and several and all(isinstance(part, str) for part in value):
        return tuple(value)
    if kind == dict[str, Scalar] and isinstance(value, dict):
        if all(isinstance(scalar, Scalar) for scalar in value.values()):
            return dict(value)
    elif kind in (int, bool, str) and type(value) is kind:
        return value
    raise _wrong_kind(name, value, where)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _wrong_kind(name: str, value: Any, where: str) -> ConfigError:
    return ConfigError(f"{where}: {name} must be {_KINDS[_TYPES[name]]}, not {shown(value)}")


def _scalar_from_text(text: str) -> Scalar:
    """What TOML makes of the text, if that is one scalar; the text itself if not."""
    try:
        values = tomllib.loads(f"value = {text}")
    except (ValueError, RecursionError):
        return text
    value = values.get("value")
    return value if len(values) == 1 and isinstance(value, Scalar) else text


# -- words ----------------------------------------------------------------------------------------
def _unknown(name: str, known: Iterable[str], what: str = "setting") -> str:
    if name.lower().removeprefix(PREFIX.lower()) in REMOVED:
        return f"{shown(name)} is no setting any longer: waits are measured; leave it out"
    known = sorted(set(known))
    nearest = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
    hint = f"did you mean {nearest[0]}?" if nearest else f"there are {', '.join(known)}"
    return f"unknown {what} {shown(name)}; {hint}"


def _flat(config: RunConfig) -> dict[str, Any]:
    """All fields, the task's own settings as `task.<arg>`."""
    values = _agreed(config)
    args = values.pop("task_args")
    return values | {f"task.{arg}": args[arg] for arg in sorted(args)}


def _worded(values: Mapping[str, Any], name: str) -> str:
    return shown(values[name]) if name in values else "not set"


def _agreed(config: RunConfig) -> dict[str, Any]:
    """All fields; 1 and 1.0 are the same number where a field is a float, so they become alike."""
    values = {name: getattr(config, name) for name in RUN_TYPES}
    return {
        name: float(value) if RUN_TYPES[name] is float else value for name, value in values.items()
    }


def _object_without_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """A JSON object; a name that stands twice could be read in two ways."""
    values = dict(pairs)
    if len(values) != len(pairs):
        raise ValueError("a name stands twice")
    return values
