"""Read a table from a file: CSV with any separator, Parquet, Arrow or npz."""

from __future__ import annotations

import csv
import zipfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike

from tardigrad.core.extras import pip_install
from tardigrad.data.lines import read_lines
from tardigrad.errors import ConfigError

if TYPE_CHECKING:
    import pyarrow

Column = np.ndarray | list[str]
"""A column of a table: numbers, or texts. A missing number is NaN, a missing text is empty."""

SEPARATORS = (",", ";", "\t", "|")
"""Separators that are recognised; any other must be named."""
SUFFIXES = ".csv, .tsv (or these with .gz, .xz), .parquet, .arrow, .feather or .npz"


@dataclass(frozen=True)
class TableFile:
    """The columns of one file."""

    file: Path
    columns: dict[str, Column]
    where: Callable[[int], str]
    """Returns the file and line of a row, for error messages."""
    separator: str | None = None
    """The separator of a CSV file."""

    def __len__(self) -> int:
        return len(next(iter(self.columns.values())))

    def refuse(self, wrong: ArrayLike, name: str, what: str, clients: Sequence[str] | None = None) -> None:
        """Raise a ConfigError for the first row that is wrong, if there is one; it names the row's client."""
        rows = np.flatnonzero(wrong)
        if len(rows):
            client = "" if clients is None else clients[rows[0]]
            whose = f" (client {client!r})" if client else ""
            more = f" (and {len(rows) - 1} more rows)" if len(rows) > 1 else ""
            raise ConfigError(f"{self.where(int(rows[0]))}, column {name!r}: {what}{whose}{more}")


def read_columns(file: Path, separator: str | None = None) -> TableFile:
    """Return the columns of a table.

    `separator`: of a CSV file; by default, the one of , ; tab | that divides its heading into most names.
    """
    for suffixes, read in (
        ((".csv", ".tsv"), _read_csv),
        ((".parquet", ".arrow", ".feather"), _read_arrow),
        ((".npz",), _read_npz),
    ):
        if any(suffix in file.suffixes[-2:] for suffix in suffixes):
            if not file.is_file():
                raise ConfigError(f"{file}: there is no such file")
            table = read(file, separator)
            if len({len(column) for column in table.columns.values()}) > 1:
                sizes = ", ".join(f"{name} has {len(column)}" for name, column in table.columns.items())
                raise ConfigError(f"{file}: arrays of different lengths: {sizes}")
            return table
    raise ConfigError(f"{file}: not a table; it must be {SUFFIXES}")


def _read_csv(file: Path, separator: str | None) -> TableFile:
    lines = (line + "\n" for _, line in read_lines(file))
    first = list(islice(lines, 1))
    if separator is None:
        separator = "\t" if ".tsv" in file.suffixes else _find_separator(first)
    reader = csv.reader(chain(first, lines), delimiter=separator, strict=True)
    rows, numbers = [], []
    try:
        heading = [name.strip().removeprefix("\ufeff") for name in next(reader, [])]
        for row in reader:
            if row and len(row) != len(heading):
                raise ConfigError(
                    f"{file}, line {reader.line_num}: {len(row)} fields, but the heading has {len(heading)}"
                )
            if row:
                rows.append(row)
                numbers.append(reader.line_num)
    except csv.Error as error:
        raise ConfigError(f"{file}, line {reader.line_num}: not a CSV file ({error})") from None
    if len(set(heading)) != len(heading) or not rows:
        raise ConfigError(f"{file}: must have a heading, each name once, and at least one row")
    columns: dict[str, Column] = {name: list(column) for name, column in zip(heading, zip(*rows))}
    return TableFile(file, columns, lambda row: f"{file}, line {numbers[row]}", separator)


def _find_separator(heading: list[str]) -> str:
    """Return the separator that divides the heading into most names; the first of `SEPARATORS` in a tie."""

    def names(separator: str) -> int:
        try:
            return len(next(csv.reader(heading, delimiter=separator), []))
        except csv.Error:
            return 0

    return max(SEPARATORS, key=names)


def _read_arrow(file: Path, _: str | None) -> TableFile:
    try:
        import pyarrow
    except ImportError:
        raise ConfigError(f"{file}: needs pyarrow: {pip_install('data')}") from None
    try:
        table = _arrow_table(file)
    except (pyarrow.ArrowException, OSError) as error:
        said = " ".join(str(error).split())
        kind = "Parquet" if ".parquet" in file.suffixes else "Arrow"
        raise ConfigError(f"{file}: not a whole {kind} file ({said})") from None
    columns: dict[str, Column] = {}
    for name in table.column_names:
        try:
            columns[name] = _arrow_column(table.column(name))
        except (pyarrow.ArrowException, ValueError, OverflowError, KeyError) as error:
            raise ConfigError(f"{file}, column {name!r}: cannot be read ({error})") from None
    if len(columns) != len(table.column_names) or not columns or not len(table):
        raise ConfigError(f"{file}: must have columns, each name once, and at least one row")
    return TableFile(file, columns, lambda row: f"{file}, row {row + 1}")


def _arrow_table(file: Path) -> pyarrow.Table:
    from pyarrow import ArrowInvalid, feather, ipc, parquet

    if ".parquet" in file.suffixes:
        return parquet.read_table(file)
    try:
        return feather.read_table(file)  # the Arrow file format is Feather, version 2
    except ArrowInvalid:
        with file.open("rb") as content:
            return ipc.open_stream(content).read_all()


def _arrow_column(column: pyarrow.ChunkedArray) -> Column:
    from pyarrow import float64, timestamp, types

    if types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    kind = column.type
    if types.is_decimal(kind):
        column = column.cast(float64())
    elif types.is_timestamp(kind):
        column = column.cast(timestamp("us", kind.tz), safe=False)
    if types.is_integer(kind) or types.is_floating(kind) or types.is_boolean(kind) or types.is_decimal(kind):
        return np.asarray((column.cast(float64(), safe=False) if column.null_count else column).to_numpy())
    return ["" if value is None else _text(value) for value in column.to_pylist()]


def _text(value: object) -> str:
    """Return a value as text; bytes are text for programs that do not say so in the file."""
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)


def _read_npz(file: Path, _: str | None) -> TableFile:
    try:
        with np.load(file, allow_pickle=False) as arrays:
            if any(array.ndim == 0 for array in arrays.values()):
                raise ValueError("a single number is not a column")
            columns: dict[str, Column] = {name: _npz_column(array) for name, array in arrays.items()}
    except (OSError, ValueError, EOFError, zipfile.BadZipFile) as error:
        raise ConfigError(f"{file}: not a whole npz file of plain arrays ({error})") from None
    return TableFile(file, columns, lambda row: f"{file}, row {row + 1}")


def _npz_column(array: np.ndarray) -> Column:
    if array.dtype.kind == "M":
        return ["" if np.isnat(value) else str(value) for value in array]
    return [_text(value) for value in array.tolist()] if array.dtype.kind in "US" else array


def table_files(root: Path) -> Iterator[tuple[Path, str | None]]:
    """Yield the files of a path and the client that each belongs to: None if the path is a single file; else
    the name of the file, or of its folder."""
    if root.is_file():
        yield root, None
        return
    if not root.is_dir():
        raise ConfigError(f"data.path: {root} is neither a file nor a folder")
    entries = [entry for entry in sorted(root.iterdir()) if not entry.name.startswith(".")]
    if not entries:
        raise ConfigError(f"data.path: the folder {root} is empty")
    for entry in entries:
        if entry.is_file():
            yield entry, entry.name.removesuffix(".xz").removesuffix(".gz").rpartition(".")[0]
        else:
            yield from ((file, entry.name) for file in sorted(entry.iterdir()))
