"""Receiving an export: only known names, declared sizes and digests, and all of the folder or nothing."""

import asyncio
import hashlib

import pytest

from tardigrad.errors import ConfigError, RunError
from tardigrad.service.client.received_export import LARGEST_TEXT, receive_export
from tardigrad.service.protocol.v1 import admin_pb2 as admin_v1

FILES = {"model.safetensors": b"model" * 10, "config.toml": b"seed = 1\n", "export.json": b"{}"}


def header(files, **changes):
    described = [
        admin_v1.ExportedFile(name=name, size=len(content), digest=hashlib.sha256(content).digest())
        for name, content in files.items()
    ]
    for name, value in changes.items():
        setattr(described[0], name, value)
    return admin_v1.ExportPart(header=admin_v1.ExportHeader(version=3, files=described))


def received(out, first, content, size=7):
    async def parts():
        if first is not None:
            yield first
        for begin in range(0, len(content), size):
            yield admin_v1.ExportPart(chunk=content[begin : begin + size])

    return asyncio.run(receive_export(parts(), out))


def test_files_are_written_into_a_new_folder(tmp_path):
    assert received(tmp_path / "a" / "out", header(FILES), b"".join(FILES.values())).version == 3
    found = {file.name: file.read_bytes() for file in (tmp_path / "a" / "out").iterdir()}
    assert found == FILES
    with pytest.raises(ConfigError, match="exists already"):
        received(tmp_path / "a" / "out", header(FILES), b"".join(FILES.values()))


@pytest.mark.parametrize(
    ("first", "content", "sentence"),
    [
        (None, b"", "has no header"),
        (admin_v1.ExportPart(chunk=b"x"), b"", "has no header"),
        (header({"../evil": b"x"}), b"x", "has other files"),
        (header({"config.toml": b"x"}), b"x", "has other files"),
        (header({"config.toml": b"x", "model.safetensors": b"y"}), b"xy", "has other files"),
        (header(FILES | {"extra": b"x"}), b"", "has other files"),
        (header(FILES, size=2**60), b"", "are free here"),
        (header(FILES, digest=b"x"), b"".join(FILES.values()), "differs from its digest"),
        (header(FILES), b"".join(FILES.values())[:-1], "ended in the middle of export.json"),
        (header(FILES), b"".join(FILES.values()) + b"x", "longer than its header says"),
    ],
)
def test_export_that_is_not_as_declared_leaves_nothing(tmp_path, first, content, sentence):
    with pytest.raises(RunError, match=sentence):
        received(tmp_path / "out", first, content)
    assert list(tmp_path.iterdir()) == []


def test_text_that_claims_to_be_large_is_refused_before_it_comes(tmp_path):
    first = header(FILES)
    first.header.files[1].size = LARGEST_TEXT + 1
    with pytest.raises(RunError, match=r"says that its config\.toml has"):
        received(tmp_path / "out", first, b"")
    assert list(tmp_path.iterdir()) == []
