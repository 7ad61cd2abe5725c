"""Find a task by its name: a built-in one, or a user's own as module:attr.

Every mistake that a user can make here ends as a ConfigError whose text names the mistake and,
after `fix:`, what to do. Errors inside a user's own code pass through as they are.
"""

from __future__ import annotations

import difflib
import importlib
import inspect
import os
import sys
from collections.abc import Callable, Iterable, Mapping
from typing import Any, cast

from demoloco.config import Scalar
from demoloco.errors import ConfigError
from demoloco.task.port import Task

BUILT_IN = {"lm": "demoloco.task.lm:LanguageModel"}
METHODS = ("model", "batches", "loss", "evaluate")


def load_task(name: str, args: Mapping[str, Scalar]) -> Task:
    """Make the task called `name` with the run's arguments.

    Raises: ConfigError if there is no such task, or it does not take these arguments, or it is not
    a task.
    """
    make = _find(name)
    _check_arguments(name, make, args)
    task = make(**args)
    missing = [method for method in METHODS if not callable(getattr(task, method, None))]
    if missing:
        raise ConfigError(
            f"{name} has no method {_listed(missing)}; a task has {_listed(METHODS)}"
            f"\nfix: add {_listed(missing)} to {type(task).__name__}"
        )
    return cast(Task, task)


def _find(name: str) -> Callable[..., Any]:
    if ":" in name:
        _prefer_current_directory()
    elif name not in BUILT_IN:
        raise ConfigError(
            f"there is no built-in task {name!r}{_nearest(name, BUILT_IN)}"
            f"\nfix: use {_listed(sorted(BUILT_IN), 'or')}, or your own as module:attr"
        )
    module, _, attribute = BUILT_IN.get(name, name).partition(":")
    if not module or not attribute:
        raise ConfigError(
            f"the task {name!r} is not of the form module:attr\nfix: for example my_task:MyTask"
        )
    found = getattr(_import(module), attribute, None)
    if found is None:
        public = [name for name in vars(sys.modules[module]) if not name.startswith("_")]
        raise ConfigError(
            f"{module} has no {attribute!r}{_nearest(attribute, public)}"
            f"\nfix: name a class or a function that {sys.modules[module].__file__} defines"
        )
    if not callable(found):
        raise ConfigError(
            f"{name} is a {type(found).__name__}\nfix: name a class, or a function that makes one"
        )
    return cast(Callable[..., Any], found)


def _import(module: str) -> Any:
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name and (module == error.name or module.startswith(error.name + ".")):
            raise ConfigError(
                f"there is no module {module!r} in {os.getcwd()} or among the installed packages"
                f"\nfix: start the node in the directory that holds {module.split('.')[0]}.py,"
                " or install the package"
            ) from error
        raise ConfigError(
            f"the task's module {module} imports {error.name}, which is not installed"
            f"\nfix: pip install {error.name}"
        ) from error
    except SyntaxError as error:
        raise ConfigError(
            f"{error.filename}, line {error.lineno}: {error.msg}"
            f"\nfix: correct it; `python {error.filename}` must run"
        ) from error


def _prefer_current_directory() -> None:
    """As for `python script.py`: the user's own files come first."""
    here = os.getcwd()
    if here not in sys.path:
        sys.path.insert(0, here)


def _check_arguments(name: str, make: Callable[..., Any], args: Mapping[str, Scalar]) -> None:
    parameters = [
        p for p in inspect.signature(make).parameters.values() if p.kind is not p.VAR_POSITIONAL
    ]
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
        return
    known = {parameter.name: parameter for parameter in parameters}
    for argument in args:
        if argument not in known:
            raise ConfigError(
                f"the task {name} has no argument {argument!r}{_nearest(argument, known)}"
                f"\nfix: it takes {_listed([_shown(p) for p in parameters]) or 'no arguments'}"
            )
    lacking = [p.name for p in parameters if p.default is p.empty and p.name not in args]
    if lacking:
        settings = " ".join(f"--set task.{argument}=…" for argument in lacking)
        raise ConfigError(f"the task {name} needs {_listed(lacking)}\nfix: {settings}")


def _shown(parameter: inspect.Parameter) -> str:
    return (
        parameter.name
        if parameter.default is parameter.empty
        else f"{parameter.name}={parameter.default!r}"
    )


def _nearest(name: str, known: Iterable[str]) -> str:
    near = difflib.get_close_matches(name, list(known), n=1)
    return f"; did you mean {near[0]!r}?" if near else ""


def _listed(names: Iterable[str], word: str = "and") -> str:
    *first, last = list(names) or [""]
    return f"{', '.join(first)} {word} {last}" if first else last
