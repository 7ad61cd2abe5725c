"""The checked-in protobuf code says what the .proto files say, and loads wherever we allow."""

from __future__ import annotations

import importlib
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
from google.protobuf.descriptor_pb2 import FileDescriptorProto, FileDescriptorSet

ROOT = Path(__file__).parents[2] / "proto"
PROTOS = sorted(path.relative_to(ROOT) for path in ROOT.rglob("*.proto"))
SERVICES = [path for path in PROTOS if re.search(r"^service ", (ROOT / path).read_text(), re.M)]


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> dict[str, FileDescriptorProto]:
    """What protoc makes of the .proto files now, by their names."""
    out = tmp_path_factory.mktemp("proto") / "set"
    protoc = [sys.executable, "-m", "grpc_tools.protoc", f"-I{ROOT}"]
    command = [*protoc, f"--descriptor_set_out={out}", *map(str, PROTOS)]
    subprocess.run(command, cwd=ROOT, check=True, timeout=60)
    return {file.name: plain(file) for file in FileDescriptorSet.FromString(out.read_bytes()).file}


def plain(file: FileDescriptorProto) -> FileDescriptorProto:
    """Without the JSON names, which one compiler writes down and another leaves to be derived."""
    for message in file.message_type:
        nested = [message]
        while nested:
            one = nested.pop()
            nested.extend(one.nested_type)
            for field in one.field:
                field.ClearField("json_name")
    return file


def generated(path: Path, suffix: str) -> ModuleType:
    return importlib.import_module(".".join(path.with_suffix("").parts) + suffix)


def test_there_are_protos() -> None:
    names = ["control.proto", "exchange.proto", "packet.proto", "round.proto"]
    assert [path.name for path in PROTOS] == names


@pytest.mark.parametrize("path", PROTOS, ids=str)
def test_the_generated_code_is_up_to_date(
    path: Path, compiled: dict[str, FileDescriptorProto]
) -> None:
    module = generated(path, "_pb2")
    checked_in = FileDescriptorProto.FromString(module.DESCRIPTOR.serialized_pb)
    assert plain(checked_in) == compiled[str(path)], "run: make proto"


@pytest.mark.parametrize("path", PROTOS, ids=str)
def test_the_stubs_know_every_message_and_field(path: Path) -> None:
    stub = (ROOT / path.parent / f"{path.stem}_pb2.pyi").read_text()
    for name, message in generated(path, "_pb2").DESCRIPTOR.message_types_by_name.items():
        assert f"class {name}(" in stub, "run: make proto"
        for field in message.fields:
            assert f"{field.name.upper()}_FIELD_NUMBER: builtins.int" in stub, "run: make proto"


@pytest.mark.parametrize("path", SERVICES, ids=str)
def test_the_grpc_code_has_every_call(path: Path) -> None:
    made = (ROOT / path.parent / f"{path.stem}_pb2_grpc.py").read_text()
    for service in generated(path, "_pb2").DESCRIPTOR.services_by_name.values():
        servicer = getattr(generated(path, "_pb2_grpc"), f"{service.name}Servicer")
        for method in service.methods:
            assert callable(getattr(servicer, method.name)), "run: make proto"
            assert f"/{service.full_name}/{method.name}" in made, "run: make proto"


@pytest.mark.parametrize("path", PROTOS, ids=str)
def test_the_code_was_generated_for_the_oldest_protobuf_that_we_allow(path: Path) -> None:
    made = (ROOT / path.parent / f"{path.stem}_pb2.py").read_text()
    assert "# Protobuf Python Version: 5.29.0\n" in made


@pytest.mark.parametrize("path", SERVICES, ids=str)
def test_the_code_was_generated_for_the_oldest_grpc_that_we_allow(path: Path) -> None:
    assert generated(path, "_pb2_grpc").GRPC_GENERATED_VERSION == "1.71.2"


@pytest.mark.parametrize("path", PROTOS, ids=str)
def test_names_cannot_clash_with_other_packages(path: Path) -> None:
    assert generated(path, "_pb2").DESCRIPTOR.package == "demoloco_proto.v1"
