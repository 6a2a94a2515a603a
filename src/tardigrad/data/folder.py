"""Where data sets lie on disk: the folder of TARDIGRAD_DATA (or --data-dir), else ~/.cache/tardigrad."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

from tardigrad.errors import ConfigError

VARIABLE = "TARDIGRAD_DATA"


def data_folder() -> Path:
    """The folder that data sets are looked for in."""
    return Path(os.environ.get(VARIABLE) or "~/.cache/tardigrad").expanduser()


def require(*choices: str, publisher: str) -> Path:
    """The first of these paths (relative to the folder) that exists; one sentence if none does."""
    folder = data_folder()
    for choice in choices:
        if (folder / choice).exists():
            return folder / choice
    raise ConfigError(
        f"data: put {' or '.join(choices)} into {folder} (set --data-dir or {VARIABLE} for another folder); "
        f"it is published at {publisher}"
    )


def check_sha256(file: Path, expected: str) -> None:
    """A ConfigError if this is not the published file."""
    sha = hashlib.sha256()
    with file.open("rb") as content:
        while block := content.read(1 << 20):
            sha.update(block)
    if sha.hexdigest() != expected:
        raise ConfigError(
            f"{file}: not the published file (its SHA-256 is {sha.hexdigest()[:16]}...); get it again"
        )
