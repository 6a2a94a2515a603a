"""Files that survive a crash: written to a partial file, synced, and renamed into place."""

from __future__ import annotations

import os
from io import FileIO
from pathlib import Path


def write_text(path: Path, text: str) -> None:
    """Write a text file atomically: a reader finds the old file or the new one, complete."""
    partial = partial_of(path)
    partial.write_text(text, encoding="utf-8")
    replace(partial, path)


def partial_of(path: Path) -> Path:
    """Return the path of the file that is written first and then renamed to `path`.

    >>> partial_of(Path("run/summary.json")).name
    'summary.json.partial'
    """
    return path.with_name(path.name + ".partial")


def replace(partial: Path, path: Path) -> None:
    """Rename a finished file to `path` so that it survives a crash."""
    with partial.open("rb") as file:
        os.fsync(file.fileno())
    partial.replace(path)
    sync_folder(path.parent)


def write_over(file: FileIO, *contents: bytes | memoryview) -> None:
    """Write bytes over those of an unbuffered file, durably. For an old file that is several times as fast as
    for a new one: the system has to find no place for it, neither on the disk nor in memory."""
    for content in contents:
        view = memoryview(content)
        while view:
            view = view[file.write(view) or 0 :]
    if os.fstat(file.fileno()).st_size > file.tell():  # the old contents were longer
        file.truncate()
    os.fdatasync(file.fileno())


def sync_folder(folder: Path) -> None:
    """Make the names of new files in a folder survive a power failure."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
