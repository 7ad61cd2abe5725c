"""Finding a task by name, and every mistake that one can make at it."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from demoloco.config import Scalar
from demoloco.errors import ConfigError
from demoloco.task.lm import LanguageModel
from demoloco.task.load import load_task


@pytest.fixture(autouse=True)
def _own_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    known = set(sys.modules)
    yield
    for name in set(sys.modules) - known:
        del sys.modules[name]


def test_a_built_in_task_takes_its_arguments() -> None:
    task = load_task("lm", {"depth": 2, "width": 64})
    assert isinstance(task, LanguageModel)
    assert (task.depth, task.width) == (2, 64)


def test_a_file_in_the_current_directory_is_found() -> None:
    source = Path(__file__).with_name("line.py").read_text()
    Path("line_of_mine.py").write_text(source)
    task = load_task("line_of_mine:Line", {"slope": 3.0})
    assert task.slope == 3.0  # type: ignore[attr-defined]


def test_a_function_may_make_the_task() -> None:
    Path("making.py").write_text("from demoloco.task.lm import LanguageModel as make\n")
    assert isinstance(load_task("making:make", {}), LanguageModel)


MINE = """
class Mine:
    def __init__(self, path, size=3): pass
    def model(self): pass
    def loss(self): pass
number = 3
"""


@pytest.mark.parametrize(
    ("name", "args", "text"),
    [
        ("lmm", {}, "did you mean 'lm'.*\nfix: use lm, or your own"),
        ("lm", {"dept": 3}, "did you mean 'depth'.*\nfix: it takes depth=4, width=128"),
        (":Mine", {}, "form module:attr\nfix: for example"),
        ("absent:Mine", {}, "no module 'absent'.*\nfix: .*directory that holds absent.py"),
        ("mine:Mime", {}, "no 'Mime'; did you mean 'Mine'"),
        ("mine:number", {}, "mine:number is a int\nfix: name a class"),
        ("mine:Mine", {}, "needs path\nfix: --set task.path=…"),
        ("mine:Mine", {"path": "x"}, "no method batches and evaluate;.*\nfix: add batches"),
        ("needy:Mine", {}, "imports not_there_at_all, .*\nfix: pip install not_there_at_all"),
        ("broken:Mine", {}, "broken.py, line 2: .*\nfix: correct it"),
    ],
)
def test_a_mistake_is_named_with_its_fix(name: str, args: dict[str, Scalar], text: str) -> None:
    Path("mine.py").write_text(MINE)
    Path("needy.py").write_text("import not_there_at_all\n")
    Path("broken.py").write_text("x = 1\nclass Mine(:\n")
    with pytest.raises(ConfigError, match=f"(?s){text}"):
        load_task(name, args)


def test_what_a_users_module_raises_passes_through() -> None:
    Path("raising.py").write_text("raise KeyError('mine')\n")
    with pytest.raises(KeyError, match="mine"):
        load_task("raising:Mine", {})
