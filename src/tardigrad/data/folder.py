"""The folder with the data sets: TARDIGRAD_DATA (or --data-dir), else ~/.cache/tardigrad.

Files are downloaded only on request. A file appears in the folder only after it is complete and its checksum
is right.
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
    """Its path below the data folder."""
    md5: str
    """Its MD5 checksum, in hexadecimal."""


def data_folder() -> Path:
    """Return the folder with the data sets."""
    return Path(os.environ.get(VARIABLE) or "~/.cache/tardigrad").expanduser()


def require(*choices: str, publisher: str, get: str | None = None) -> Path:
    """Return the first of these paths below the data folder that exists.

    If none exists, a ConfigError says which file to put where and who publishes it. `get` is the name of the
    data set if `tardigrad data get` can download it.
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


def check_md5(file: Path, expected: str) -> None:
    """Raise a ConfigError unless the file has this MD5 checksum."""
    state = file.stat()
    found = _md5(file, state.st_size, state.st_mtime_ns)
    if found != expected:
        raise ConfigError(
            f"{file}: not the published file (its MD5 is {found[:16]}..., "
            f"{expected[:16]}... would be right); delete it and get it again"
        )


def check_size(file: Path, expected: int) -> None:
    """Raise a ConfigError unless the file has this number of bytes."""
    size = file.stat().st_size
    if size != expected:
        raise ConfigError(
            f"{file}: truncated or not the published file: it has {size} bytes where {expected} are right; "
            "delete it and get it again"
        )


def download(published: Published) -> Path:
    """Download a file into the data folder, unless it is there, and return its path.

    A progress bar is shown on a terminal. If the download fails, no partial file remains.
    """
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
    """Extract only these members of a .tar.gz or .zip file into `folder`, each under its base name."""
    try:
        if archive.suffix == ".zip":
            with zipfile.ZipFile(archive) as packed:
                for member in members:
                    with packed.open(member) as content:
                        _save(content, folder / Path(member).name)
        else:
            with tarfile.open(archive, "r:gz") as tarred:
                for member in members:
                    inner = tarred.extractfile(member)
                    if inner is None:
                        raise KeyError(member)
                    _save(inner, folder / Path(member).name)
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
    """Yield a temporary path to write to; it is renamed to `file` on success and deleted on failure."""
    file.parent.mkdir(parents=True, exist_ok=True)
    partial = file.with_name(f"{file.name}.{os.getpid()}.partial")
    try:
        yield partial
        partial.replace(file)
    finally:
        partial.unlink(missing_ok=True)


def _save(content: IO[bytes], file: Path) -> None:
    with whole(file) as partial, partial.open("wb") as out:
        shutil.copyfileobj(content, out, BLOCK)


@functools.cache
def _md5(file: Path, size: int, modified: int) -> str:
    """Return the MD5 checksum of a file, computed again only if its size or time of change differs."""
    with file.open("rb") as content:
        return hashlib.file_digest(content, "md5").hexdigest()
