"""Trace files: CSV files of what was measured, a row for each trip, window or client."""

from __future__ import annotations

import csv
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from tardigrad.errors import ConfigError

Row = TypeVar("Row")


class TraceRow:
    """A row of a trace file, whose fields are asked for by the name of their column."""

    def __init__(self, fields: dict[str, str | None]) -> None:
        self._fields = fields

    def number(self, column: str) -> float:
        """Return a number. Raise a ValueError that names the column if the field is missing or something
        else."""
        text = self._text(column)
        try:
            return float(text)
        except ValueError:
            raise ValueError(f"{column} is {text[:100]!r}; give a number") from None

    def client(self) -> int:
        """Return the number of the row's client."""
        text = self._text("client")
        try:
            return int(text)
        except ValueError:
            raise ValueError(
                f"client is {text[:100]!r}; give its number: clients are counted from 0, in the order in "
                "which the data names them"
            ) from None

    def _text(self, column: str) -> str:
        text = self._fields[column]
        if text is None:
            raise ValueError(f"the row is too short: it has no {column}; give every column of the first line")
        return text


def read_rows(
    file: Path, key: str, columns: tuple[str, ...], rows_are: str, parse: Callable[[TraceRow], Row]
) -> list[Row]:
    """Return what `parse` makes of every row of a trace file.

    A ConfigError names the setting `key` and the file, and the line if a row is malformed, which is where
    `parse` raises a ValueError. `rows_are`: what the file must have at least one of, such as "trips".
    """
    if not file.is_file():
        raise ConfigError(f"{key}: there is no file {file}; give a CSV with the columns {','.join(columns)}")
    found: list[Row] = []
    with file.open(newline="", encoding="utf-8-sig", errors="replace") as lines:
        rows = csv.DictReader(lines)
        try:
            if not set(columns) <= set(rows.fieldnames or ()):
                raise ConfigError(
                    f"{key}: {file} has the columns {', '.join(rows.fieldnames or ['none'])[:200]}; "
                    f"it must have {', '.join(columns[:-1])} and {columns[-1]} in its first line"
                )
            found.extend(parse(TraceRow(row)) for row in rows)
        except (ValueError, csv.Error) as error:
            raise ConfigError(f"{key}: {file}, line {rows.line_num}: {error}") from None
    if not found:
        raise ConfigError(f"{key}: {file} has no {rows_are}")
    return found
