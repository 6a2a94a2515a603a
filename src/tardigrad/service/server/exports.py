"""Exports: the current model of a run and the files that describe it, for an operator's machine."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from io import BytesIO
from pathlib import Path
from typing import BinaryIO

from safetensors.torch import save_file
from torch import Tensor

from tardigrad.core.events import RunPosition
from tardigrad.core.plain_json import plain_json
from tardigrad.service.protocol.export_files import CONFIG, EXPORT, MODEL, PRIVACY
from tardigrad.service.protocol.v1 import admin_pb2 as admin_v1
from tardigrad.service.protocol.wire import CHUNK

PARTIAL = "export.safetensors.partial"


@dataclass
class ExportFile:
    """One file of an export, open for reading."""

    name: str
    content: BinaryIO
    size: int
    digest: bytes

    def description(self) -> admin_v1.ExportedFile:
        """Return what the header says of this file."""
        return admin_v1.ExportedFile(name=self.name, size=self.size, digest=self.digest)


class ModelExport:
    """The files of an export. `close` releases them."""

    def __init__(self, files: list[ExportFile]) -> None:
        self.files = files

    @property
    def model_digest(self) -> bytes:
        """The SHA-256 of the model's file."""
        return self.files[0].digest

    def chunks(self) -> Iterator[bytes]:
        """Yield the bytes of all files, one after the other."""
        for file in self.files:
            file.content.seek(0)
            while chunk := file.content.read(CHUNK):
                yield chunk

    def close(self) -> None:
        """Close all files."""
        for file in self.files:
            file.content.close()


def make_export(
    folder: Path,
    model: Mapping[str, Tensor],
    facts: Mapping[str, str | int | float],
    where: RunPosition,
    wall: float,
) -> ModelExport:
    """Return the export of a model, which is written to the run's disk and not to memory. `facts`: what
    identifies it. Only one call at a time may be made for a folder."""
    files = [_model_file(folder, model)]
    for name in (CONFIG, PRIVACY):
        with suppress(FileNotFoundError):
            files.append(_in_memory(name, (folder / name).read_bytes()))
    description = {
        **facts,
        "trips": where.trips,
        "time": where.time,
        "exported": datetime.fromtimestamp(wall, UTC).isoformat(timespec="milliseconds"),
        "sha256": {file.name: file.digest.hex() for file in files},
    }
    files.append(_in_memory(EXPORT, (plain_json(description, indent=2) + "\n").encode()))
    return ModelExport(files)


def _model_file(folder: Path, model: Mapping[str, Tensor]) -> ExportFile:
    """Write the model as a finished run does; the file has no name once this has returned."""
    partial = folder / PARTIAL
    try:
        save_file(dict(model), partial)
        content = partial.open("rb")
    finally:
        partial.unlink(missing_ok=True)
    digest = hashlib.file_digest(content, "sha256").digest()
    return ExportFile(MODEL, content, content.tell(), digest)


def _in_memory(name: str, content: bytes) -> ExportFile:
    return ExportFile(name, BytesIO(content), len(content), hashlib.sha256(content).digest())
