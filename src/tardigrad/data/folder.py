"""Where data sets lie on disk: the folder of TARDIGRAD_DATA (or --data-dir), else ~/.cache/tardigrad.

Files are fetched only when they are asked for, and are whole and checked, or not there at all.
"""

from __future__ import annotations

import functools
import gzip
import hashlib
import http.client
import os
import shutil
import tarfile
import urllib.error
import urllib.request
import zipfile
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from tardigrad.errors import ConfigError

VARIABLE = "TARDIGRAD_DATA"
TIMEOUT_SECONDS = 30.0
BLOCK = 1 << 20


@dataclass(frozen=True)
class Published:
    """A file that its publisher offers for download."""

    url: str
    file: str
    """Where it belongs, relative to the data folder."""
    md5: str


def data_folder() -> Path:
    """The folder that data sets are looked for in."""
    return Path(os.environ.get(VARIABLE) or "~/.cache/tardigrad").expanduser()


def require(*choices: str, publisher: str, get: str | None = None) -> Path:
    """The first of these paths (relative to the folder) that exists; one sentence if none does.

    `get` is the data set's name where `tardigrad data get` can fetch it.
    """
    folder = data_folder()
    for choice in choices:
        if (folder / choice).exists():
            return folder / choice
    fetch = f", and `tardigrad data get {get}` or data.download = true fetches it" if get else ""
    raise ConfigError(
        f"data: put {' or '.join(choices)} into {folder} (set --data-dir or {VARIABLE} for another folder); "
        f"it is published at {publisher}{fetch}"
    )


def check_sha256(file: Path, expected: str) -> None:
    """A ConfigError if this is not the published file."""
    _check(file, "sha256", expected)


def check_md5(file: Path, expected: str) -> None:
    """A ConfigError if this is not the published file."""
    _check(file, "md5", expected)


def check_size(file: Path, expected: int) -> None:
    """A ConfigError if the file is shorter or longer than it must be."""
    size = file.stat().st_size
    if size != expected:
        raise ConfigError(
            f"{file}: truncated or not the published file: it has {size} bytes where {expected} are right; "
            "delete it and get it again"
        )


def download(published: Published) -> Path:
    """Fetch a file into the data folder, with a progress bar; nothing is left behind if that fails."""
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

    file = data_folder() / published.file
    if file.exists():
        return file
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeRemainingColumn())
    request = urllib.request.Request(published.url, headers={"User-Agent": "tardigrad"})
    try:
        with (
            urllib.request.urlopen(request, timeout=TIMEOUT_SECONDS) as response,
            whole(file) as partial,
            partial.open("wb") as out,
            Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar,
        ):
            length = response.headers.get("Content-Length")
            task = bar.add_task(file.name, total=int(length) if length else None)
            received, digest = 0, hashlib.md5(usedforsecurity=False)
            while block := response.read(BLOCK):
                out.write(block)
                digest.update(block)
                received += len(block)
                bar.update(task, completed=received)
            if length and received != int(length):
                raise ConfigError(
                    f"{published.url}: the connection ended after {received} of {length} bytes; try again"
                )
            if digest.hexdigest() != published.md5:
                raise ConfigError(
                    f"{published.url}: not the published file (its MD5 is {digest.hexdigest()}, "
                    f"{published.md5} would be right); nothing was kept"
                )
    except (OSError, http.client.HTTPException) as error:
        reason = error.reason if isinstance(error, urllib.error.URLError) else error
        raise ConfigError(
            f"{published.url}: could not be fetched into {file.parent} ({reason}); "
            f"get it by other means and put it there as {file.name}"
        ) from None
    return file


def unpack(archive: Path, members: Iterable[str], folder: Path) -> None:
    """Take these members, and nothing else, out of a .tar.gz or .zip file: each into `folder` by its own
    name."""
    try:
        if archive.suffix == ".zip":
            with zipfile.ZipFile(archive) as packed:
                for member in members:
                    with packed.open(member) as content:
                        _keep(content, folder / Path(member).name)
        else:
            with tarfile.open(archive, "r:gz") as tarred:
                for member in members:
                    inner = tarred.extractfile(member)
                    if inner is None:
                        raise KeyError(member)
                    _keep(inner, folder / Path(member).name)
    except KeyError as missing:
        raise ConfigError(f"{archive}: not the published archive: {missing.args[0]}") from None
    except (tarfile.TarError, zipfile.BadZipFile, gzip.BadGzipFile, zlib.error, EOFError) as error:
        raise ConfigError(
            f"{archive}: truncated or not an archive ({error}); delete it and get it again"
        ) from None
    except OSError as error:
        raise ConfigError(f"{archive}: could not be unpacked into {folder} ({error})") from None


@contextmanager
def whole(file: Path) -> Iterator[Path]:
    """Where to write what becomes `file` when all of it is written, and vanishes if anything goes wrong."""
    file.parent.mkdir(parents=True, exist_ok=True)
    partial = file.with_name(f"{file.name}.{os.getpid()}.partial")
    try:
        yield partial
        partial.replace(file)
    finally:
        partial.unlink(missing_ok=True)


def _keep(content: IO[bytes], file: Path) -> None:
    with whole(file) as partial, partial.open("wb") as out:
        shutil.copyfileobj(content, out, BLOCK)


def _check(file: Path, algorithm: str, expected: str) -> None:
    state = file.stat()
    found = _digest(file, algorithm, state.st_size, state.st_mtime_ns)
    if found != expected:
        raise ConfigError(
            f"{file}: not the published file (its {algorithm.upper()} is {found[:16]}..., "
            f"{expected[:16]}... would be right); delete it and get it again"
        )


@functools.cache
def _digest(file: Path, algorithm: str, size: int, modified: int) -> str:
    """Of a file as it was when it had this size and time: once in a process."""
    with file.open("rb") as content:
        return hashlib.file_digest(content, algorithm).hexdigest()
