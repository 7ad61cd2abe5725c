"""Files and functions stay small enough to be read at one sitting."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from tests.house.source import modules, short, tree

MAX_FILE_LINES = 400
MAX_FUNCTION_LINES = 40
MAX_PARAMETERS = 6

Function = ast.FunctionDef | ast.AsyncFunctionDef


def functions(path: Path) -> Iterator[Function]:
    return (node for node in ast.walk(tree(path)) if isinstance(node, Function))


def parameters(function: Function) -> list[str]:
    args = function.args
    named = [arg.arg for arg in (*args.posonlyargs, *args.args, *args.kwonlyargs)]
    named += [arg.arg for arg in (args.vararg, args.kwarg) if arg is not None]
    return [name for name in named if name not in ("self", "cls")]


def is_command(function: Function) -> bool:
    """A command of a command line: its parameters are its options."""
    return any(
        re.search(r"\.(command|callback)\b", ast.unparse(decorator))
        for decorator in function.decorator_list
    )


def all_functions() -> Iterator[tuple[str, Function]]:
    """Every function with the place where it stands."""
    for path in modules():
        for function in functions(path):
            yield f"{short(path)}:{function.lineno} {function.name}", function


def test_there_is_something_to_measure() -> None:
    assert len(modules()) > 20


def test_files_are_short() -> None:
    lines = {short(path): len(path.read_text().splitlines()) for path in modules()}
    assert {path: count for path, count in lines.items() if count > MAX_FILE_LINES} == {}


def test_functions_are_short() -> None:
    lines = {
        place: (function.end_lineno or function.lineno) - function.lineno + 1
        for place, function in all_functions()
    }
    assert {place: count for place, count in lines.items() if count > MAX_FUNCTION_LINES} == {}


def test_functions_have_few_parameters() -> None:
    counts = {
        place: len(parameters(function))
        for place, function in all_functions()
        if not is_command(function)
    }
    assert {place: count for place, count in counts.items() if count > MAX_PARAMETERS} == {}


def test_a_module_opens_with_its_purpose_and_an_init_is_empty() -> None:
    wrong = []
    for path in modules():
        only_text = all(isinstance(node, ast.Expr) for node in tree(path).body)
        if not (only_text if path.name == "__init__.py" else ast.get_docstring(tree(path))):
            wrong.append(short(path))
    assert wrong == []


def test_names_say_what_a_thing_is() -> None:
    classes = [
        f"{short(path)} {node.name}"
        for path in modules()
        for node in ast.walk(tree(path))
        if isinstance(node, ast.ClassDef)
    ]
    assert [name for name in classes if re.search(r"(Manager|Helper|Util|Utils)$", name)] == []
    vague = {"util", "utils", "helper", "helpers", "common", "misc"}
    assert [short(path) for path in modules() if path.stem in vague] == []
