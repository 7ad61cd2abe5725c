"""Our own source files, as the tests of the house see them."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGES = {
    "demoloco": ROOT / "daemon/demoloco",
    "demoloco_client": ROOT / "client/demoloco_client",
    "demoloco_proto": ROOT / "proto/demoloco_proto",
}


@cache
def modules() -> tuple[Path, ...]:
    """All modules that people write."""
    found = (path for package in PACKAGES.values() for path in package.rglob("*.py"))
    return tuple(sorted(path for path in found if "_pb2" not in path.name))


def short(path: Path) -> str:
    return str(path.relative_to(ROOT))


@cache
def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(), filename=str(path))
