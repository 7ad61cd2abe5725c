"""The wheel holds all that a node needs at run time, and nothing else."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tests.house.source import PACKAGES, ROOT


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    out = tmp_path_factory.mktemp("dist")
    build = [sys.executable, "-m", "hatchling", "build", "--target", "wheel"]
    command = [*build, "--directory", str(out)]
    subprocess.run(command, cwd=ROOT, check=True, timeout=100, stdout=subprocess.DEVNULL)
    (path,) = out.glob("*.whl")
    return zipfile.ZipFile(path)


def test_all_files_of_the_packages_are_in(wheel: zipfile.ZipFile) -> None:
    held = set(wheel.namelist())
    for name, folder in PACKAGES.items():
        files = [path for path in folder.rglob("*") if path.is_file() and path.suffix != ".pyc"]
        wanted = {f"{name}/{path.relative_to(folder)}" for path in files}
        assert {f"{name}/py.typed"} <= wanted <= held


def test_nothing_else_is_in(wheel: zipfile.ZipFile) -> None:
    tops = {Path(name).parts[0] for name in wheel.namelist()}
    metadata = {top for top in tops if top.endswith(".dist-info")}
    assert tops - metadata == set(PACKAGES)


def test_both_programs_and_all_licences_are_in(wheel: zipfile.ZipFile) -> None:
    (entry_points,) = (name for name in wheel.namelist() if name.endswith("entry_points.txt"))
    programs = wheel.read(entry_points).decode()
    assert "demoloco = demoloco_client.cli:main" in programs
    assert "demoloco-node = demoloco.main:main" in programs
    licences = {name.partition("/licenses/")[2] for name in wheel.namelist()}
    assert {"LICENSE", "daemon/demoloco/data/LICENSE"} <= licences
