"""Receiving an export: its files are checked and written into a new folder, all of them or none."""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path

from tardigrad.core.files import sync_folder
from tardigrad.errors import ConfigError, RunError
from tardigrad.service.protocol.export_files import FILES, MODEL
from tardigrad.service.protocol.v1 import admin_pb2 as admin_v1

LARGEST_TEXT = 2**24
"""Bytes of the largest file that is not the model."""


async def receive_export(parts: AsyncIterator[admin_v1.ExportPart], out: Path) -> admin_v1.ExportHeader:
    """Write an export into the folder `out`, which must not exist, and return its header. If anything is
    wrong, nothing is left."""
    if os.path.lexists(out):
        raise ConfigError(f"--out {out}: exists already; give a new folder")
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        partial = Path(tempfile.mkdtemp(prefix=f".{out.name}.", dir=out.parent))
    except OSError as error:
        raise ConfigError(f"--out {out}: cannot be made ({error.strerror})") from None
    try:
        first = await anext(parts, None)
        if first is None or first.WhichOneof("part") != "header":
            raise RunError("the server's export has no header")
        header = first.header
        _check_header(header, shutil.disk_usage(partial).free)
        await _write(parts, header, partial)
        sync_folder(partial)
        partial.chmod(0o755)
        partial.rename(out)
        sync_folder(out.parent)
        return header
    except TimeoutError:
        raise
    except OSError as error:
        raise RunError(f"--out {out}: cannot be written ({error.strerror})") from None
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _check_header(header: admin_v1.ExportHeader, free: int) -> None:
    """Raise a RunError unless the files have known names, in their order, and sizes that fit."""
    names = [file.name for file in header.files]
    if names != [name for name in FILES if name in names] or MODEL not in names:
        raise RunError(f"the server's export has other files than {', '.join(FILES)}")
    for file in header.files:
        if file.name != MODEL and file.size > LARGEST_TEXT:
            raise RunError(f"the server's export says that its {file.name} has {file.size} bytes")
    total = sum(file.size for file in header.files)
    if total > free:
        raise RunError(f"the export has {total} bytes, but only {free} are free here; make room")


async def _write(
    parts: AsyncIterator[admin_v1.ExportPart], header: admin_v1.ExportHeader, folder: Path
) -> None:
    """Write the files, which must have exactly the sizes and digests of the header."""
    chunk = b""
    for described in header.files:
        left, sha = described.size, hashlib.sha256()
        with (folder / described.name).open("xb") as file:
            while left:
                if not chunk:
                    part = await anext(parts, None)
                    if part is None or not part.chunk:
                        raise RunError(f"the export ended in the middle of {described.name}; ask again")
                    chunk = part.chunk
                piece, chunk = chunk[:left], chunk[left:]
                file.write(piece)
                sha.update(piece)
                left -= len(piece)
            file.flush()
            os.fsync(file.fileno())
        if sha.digest() != described.digest:
            raise RunError(f"the {described.name} that came differs from its digest; ask again")
    if chunk or await anext(parts, None) is not None:
        raise RunError("the export is longer than its header says")
