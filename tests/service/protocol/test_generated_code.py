"""The generated code of the protocol runs with the oldest packages that the project names."""

import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
NEEDED = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
FILES = sorted((ROOT / "src/tardigrad/service/protocol/v1").glob("*_pb2*.py"))


def oldest(package):
    (found,) = [one.partition(">=")[2] for one in NEEDED if one.startswith(f"{package}>=")]
    return [int(part) for part in found.split(".")]


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_generated_code_is_as_old_as_the_oldest_packages(file):
    text = file.read_text()
    if file.name.endswith("_grpc.py"):
        package, found = "grpcio", re.search(r"GRPC_GENERATED_VERSION = '([\d.]+)'", text)
    else:
        package, found = "protobuf", re.search(r"# Protobuf Python Version: ([\d.]+)", text)
    assert found is not None
    assert [int(part) for part in found[1].split(".")][:2] == oldest(package)[:2]


def test_all_of_the_protocol_is_checked():
    assert len(FILES) == 6
