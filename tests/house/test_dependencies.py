"""What is imported is declared, what is declared is imported, and the pins fit the ranges."""

from __future__ import annotations

import ast
import sys
import tomllib
from collections.abc import Iterator
from functools import cache
from importlib.metadata import packages_distributions

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from tests.house.source import PACKAGES, ROOT, modules, tree

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
GENERATED_NEEDS = {"grpcio", "protobuf"}  # imported by generated code too


@cache
def declared() -> dict[str, Requirement]:
    found = (Requirement(line) for line in PROJECT["dependencies"])
    return {canonicalize_name(one.name): one for one in found}


def imported_packages() -> Iterator[str]:
    for path in modules():
        for node in ast.walk(tree(path)):
            if isinstance(node, ast.Import):
                yield from (alias.name.partition(".")[0] for alias in node.names)
            elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
                yield node.module.partition(".")[0]


@cache
def imported() -> frozenset[str]:
    """The distributions that our source imports from, however deep in a function."""
    outside = set(imported_packages()) - set(sys.stdlib_module_names) - set(PACKAGES)
    distributions = packages_distributions()
    named = {name: distributions.get(name, [name]) for name in outside - {"google"}}
    return frozenset(canonicalize_name(names[0]) for names in named.values())


@cache
def pins() -> dict[str, Version]:
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pairs = (line.split("==") for line in lines if line and not line.startswith("#"))
    return {canonicalize_name(name): Version(version) for name, version in pairs}


def requirements() -> list[Requirement]:
    extras = PROJECT["optional-dependencies"].values()
    return [*declared().values(), *(Requirement(line) for extra in extras for line in extra)]


def test_all_that_is_imported_is_declared() -> None:
    assert imported() - declared().keys() == set()


def test_all_that_is_declared_is_imported() -> None:
    assert declared().keys() - imported() - GENERATED_NEEDS == set()


@pytest.mark.parametrize("requirement", requirements(), ids=str)
def test_the_pin_lies_within_the_range(requirement: Requirement) -> None:
    pin = pins()[canonicalize_name(requirement.name)]
    assert requirement.specifier.contains(pin), "run: make lock"


def test_no_pin_names_one_build_of_a_release() -> None:
    assert [name for name, version in pins().items() if version.local] == []
