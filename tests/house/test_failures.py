"""docs/failures.md names tests that are there, for each fault."""

from __future__ import annotations

import re
from pathlib import Path

from tests.house.source import ROOT

PAGE = ROOT / "docs/failures.md"
TEST = re.compile(r"`([\w/]+/test_\w+\.py)`")


def rows() -> list[list[str]]:
    """The cells of each row of the tables, without their heads."""
    lines = PAGE.read_text().splitlines()
    cells = [line.strip("| ").split(" | ") for line in lines if line.startswith("| ")]
    return [row for row in cells if row[0] != "fault" and not set(row[0]) <= {"-"}]


def test_each_fault_has_a_remedy_a_line_and_a_test() -> None:
    assert len(rows()) > 40
    assert [row[0] for row in rows() if len(row) != 4 or not all(row)] == []
    assert [row[0] for row in rows() if not TEST.search(row[3])] == []


def test_the_tests_that_are_named_are_there() -> None:
    named = {Path(name) for name in TEST.findall(PAGE.read_text())}
    assert sorted(str(name) for name in named if not (ROOT / "tests" / name).is_file()) == []
