"""Read text files line by line, plain or compressed, with errors that name the file and the line."""

from __future__ import annotations

import bz2
import gzip
import json
import lzma
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any, cast

from tardigrad.errors import ConfigError


def open_bytes(file: Path) -> IO[bytes]:
    """Open a file for reading, and decompress it if its name ends in .xz, .gz or .bz2."""
    match file.suffix:
        case ".xz":
            return lzma.open(file)
        case ".gz":
            return cast(IO[bytes], gzip.open(file))
        case ".bz2":
            return bz2.open(file)
        case _:
            return file.open("rb")


def read_lines(file: Path) -> Iterator[tuple[int, str]]:
    """Yield the number (from 1) and the text of every line.

    A file that is truncated or not UTF-8 raises a ConfigError.
    """
    number = 0
    try:
        with open_bytes(file) as content:
            for number, line in enumerate(content, start=1):
                yield number, line.decode("utf-8").rstrip("\r\n")
    except UnicodeDecodeError:
        raise ConfigError(f"{file}, line {number}: not UTF-8 text; save the file as UTF-8") from None
    except (OSError, EOFError, lzma.LZMAError, zlib.error) as error:
        raise ConfigError(
            f"{file}: cannot be read beyond line {number} ({error}); the file is damaged, get it again"
        ) from None


def read_table(file: Path, *columns: str) -> Iterator[tuple[int, list[str]]]:
    """Yield the line number and the fields of every row of a tab-separated file with these columns.

    A first line that repeats the column names is skipped.

    >>> for line, (user, text) in read_table(file, "user", "text"): ...  # doctest: +SKIP
    """
    for number, line in read_lines(file):
        row = line.split("\t")
        if len(row) != len(columns):
            raise ConfigError(
                f"{file}, line {number}: {len(row)} tab-separated fields; there must be {len(columns)}: "
                f"{', '.join(columns)}"
            )
        if number > 1 or [field.strip().lower() for field in row] != list(columns):
            yield number, row


def parse_json(text: str | bytes, where: str) -> Any:
    """Parse JSON; a ConfigError that begins with `where` says what is wrong."""
    try:
        return json.loads(text)
    except ValueError as error:
        raise ConfigError(f"{where}: not valid JSON ({error}); the file is damaged or another one") from None
