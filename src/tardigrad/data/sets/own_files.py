"""Your own data in files: a table with a client column, or a folder with a part for each client."""

from __future__ import annotations

import csv
import zipfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from numpy.typing import ArrayLike
from pydantic import PositiveInt
from torch import Tensor

from tardigrad.data.by_user import Users, UserSource, federate
from tardigrad.data.clients import Federation
from tardigrad.data.folder import data_folder
from tardigrad.data.lines import read_lines
from tardigrad.data.partition import Natural
from tardigrad.errors import ConfigError
from tardigrad.learning.heads import Head
from tardigrad.learning.heads.labels import check_labels
from tardigrad.learning.transform import Transform

Column = np.ndarray | list[str]
"""A column of a table: numbers, or words."""


class Files(UserSource):
    """Your own data: a table (CSV, TSV, Parquet, npz) with a column that names the client of each row, or a
    folder with a table, or a folder of tables, for each client.

    Features are columns of numbers, or one array of any shape in an npz file; the model gets them as
    float32, unscaled. Labels are whole numbers or words. The distinct labels, sorted by value or
    alphabetically, are the classes, numbered from 0.
    """

    kind: Literal["files"] = "files"
    path: str
    """The table or folder: a path from the current folder, or one below the data folder."""
    client: str = "client"
    """The column that names the client of each row. In a folder, the names of its entries do."""
    label: str | None = None
    """The column of labels (default: label, or y in npz files)."""
    features: tuple[str, ...] = ()
    """The columns of features (default: all others)."""
    test_path: str | None = None
    """A table or folder like `path` with the test set, in place of a share of the examples."""
    test_examples: PositiveInt | None = None
    """Maximum size of the test set; a larger one is reduced to a random sample, drawn once (default: all)."""

    def federation(self, seed: int) -> Federation:
        return self.federation_for(None, seed)

    def federation_for(self, head: Head | None, seed: int) -> Federation:
        tables = list(self._tables(self.path))
        test_tables = [] if self.test_path is None else list(self._tables(self.test_path, "test"))
        features = _join_features(tables + test_tables)
        if head is not None and head.task == "regression":
            numbers, classes = _targets([*tables, *test_tables]), 1
        else:
            numbers, classes = _class_numbers(tables, test_tables)
        names: dict[str, int] = {}
        of = [names.setdefault(client, len(names)) for table in tables for client in table.clients]
        tested = len(numbers) - len(of)
        test_user = len(names)  # one user, who does not train, has all rows of the test file
        users = Users(np.array(of + [test_user] * tested), [*names, "test"])
        test = users.of == test_user if tested else users.aside(self.test, seed)
        clients, central = federate((features, torch.from_numpy(numbers)), users, test, self, seed)
        return Federation(clients, central, tuple(features.shape[1:]), classes, transform=Floats())

    def _tables(self, path: str, client: str | None = None) -> Iterator[_Table]:
        """Yield every table of a path; if `client` is given, all rows belong to it."""
        root = Path(path).expanduser()
        if not root.exists():
            root = data_folder() / path
        if not root.exists():
            raise ConfigError(f"data.path: there is neither {path} nor {root}")
        if root.is_file():
            yield self._table(root, client)
            return
        entries = [entry for entry in sorted(root.iterdir()) if not entry.name.startswith(".")]
        if not entries:
            raise ConfigError(f"data.path: the folder {root} is empty")
        for entry in entries:
            if entry.is_file():
                name = entry.name.removesuffix(".xz").removesuffix(".gz").rpartition(".")[0]
                yield self._table(entry, client or name)
            else:
                for file in sorted(entry.iterdir()):
                    yield self._table(file, client or entry.name)

    def _table(self, file: Path, client: str | None) -> _Table:
        """Read a table; its rows belong to `client`, or to the clients that its client column names."""
        columns, where = _read(file)
        label = self.label or ("y" if file.suffix == ".npz" else "label")
        chosen = self.features or tuple(name for name in columns if name not in (label, self.client))
        for key, name in (("label", label), *(("features", name) for name in chosen)):
            if name not in columns:
                raise ConfigError(
                    f"data.{key}: {file} has no column {name!r}; its columns are {', '.join(columns)}"
                )
        if not chosen:
            raise ConfigError(f"data.features: {file} has no columns beside {label!r} and {self.client!r}")
        rows = len(columns[label])
        if client is not None or (self.client not in columns and not isinstance(self.partition, Natural)):
            clients = [client or "all"] * rows
        elif self.client in columns:
            clients = [str(value) for value in columns[self.client]]
            _refuse(where, [not name.strip() for name in clients], self.client, "nobody's name")
        else:
            raise ConfigError(
                f"data.client: {file} has no column {self.client!r}; its columns are {', '.join(columns)}. "
                "Name the one that says whose a row is, or set data.partition to 'iid' or 'dirichlet'"
            )
        values = [_numbers(where, name, columns[name]) for name in chosen]
        if len(values) > 1 and any(value.ndim > 1 for value in values):
            raise ConfigError(f"data.features: {file} has several arrays of features; name one of them")
        array = values[0] if values[0].ndim > 1 else np.stack(values, axis=1)
        return _Table(file, chosen, array, columns[label], clients, where, label)


class Floats(Transform):
    """Converts numbers of any type to float32."""

    def evaluate(self, features: Tensor) -> Tensor:
        return features.float()


@dataclass(frozen=True)
class _Table:
    """One file's examples, before labels become class numbers."""

    file: Path
    names: tuple[str, ...]
    """The names of the feature columns."""
    features: np.ndarray
    labels: Column
    clients: list[str]
    """The client of each row."""
    where: Callable[[int], str]
    """Returns the file and line of a row, for error messages."""
    label: str
    """The name of the label column."""


def _join_features(tables: Sequence[_Table]) -> Tensor:
    """Join the features of all tables, which must have the same columns and shapes."""
    first = tables[0]
    for table in tables[1:]:
        if table.names != first.names or table.features.shape[1:] != first.features.shape[1:]:
            raise ConfigError(
                f"{table.file}: features {', '.join(table.names)} of shape {table.features.shape[1:]}, but "
                f"{first.file} has {', '.join(first.names)} of shape {first.features.shape[1:]}"
            )
    return torch.from_numpy(np.concatenate([table.features for table in tables]))


def _class_numbers(tables: Sequence[_Table], test_tables: Sequence[_Table]) -> tuple[np.ndarray, int]:
    """Return all labels as class numbers, those of the test tables last, and the number of classes."""
    every = [*tables, *test_tables]
    labels = [_whole_numbers_or_words(table) for table in every]
    if any(isinstance(column, list) for column in labels):  # at least one table has words
        labels = [[str(value) for value in column] for column in labels]
    classes = np.unique(np.concatenate([np.asarray(column) for column in labels[: len(tables)]]))
    numbers = []
    for table, column in zip(every, labels):
        number = np.minimum(np.searchsorted(classes, np.asarray(column)), len(classes) - 1)
        _refuse(
            table.where, classes[number] != np.asarray(column), table.label, "a label that nobody trains on"
        )
        numbers.append(number)
    return np.concatenate(numbers), len(classes)


def _targets(tables: Sequence[_Table]) -> np.ndarray:
    """Return all labels as numbers to predict."""
    found = [_numbers(table.where, table.label, table.labels).astype(np.float32) for table in tables]
    return np.concatenate(found)


def _whole_numbers_or_words(table: _Table) -> Column:
    """Return the labels of a table as whole numbers if all of them are, else as words."""
    labels = table.labels
    if isinstance(labels, list):
        _refuse(table.where, [not value.strip() for value in labels], table.label, "no label")
        try:
            return np.array([int(value) for value in labels])
        except ValueError:
            if all(map(_is_number, labels)):
                check_labels(f"{table.file}, column {table.label!r}", np.array(labels, dtype=float), None)
            return labels
    if labels.ndim != 1:
        raise ConfigError(
            f"{table.file}: the labels {table.label!r} have the shape {labels.shape}, not one each"
        )
    check_labels(f"{table.file}, column {table.label!r}", labels, None)
    with np.errstate(invalid="ignore"):
        whole = labels.astype(np.int64)
    _refuse(table.where, whole != labels, table.label, "not a whole number")
    return whole


def _numbers(where: Callable[[int], str], name: str, column: Column) -> np.ndarray:
    """Return a column of features as float32, or unchanged if its type has at most two bytes."""
    if isinstance(column, list):
        try:
            with np.errstate(over="ignore"):  # numbers that are too large become infinite; refused below
                numbers = np.array(column, dtype=np.float32)
        except ValueError:
            _refuse(where, [not _is_number(value) for value in column], name, "not a number")
            raise
    elif column.dtype.kind in "biu" and column.dtype.itemsize <= 2:
        numbers = column.astype(np.uint8) if column.dtype.kind == "b" else column
    else:
        with np.errstate(over="ignore"):
            numbers = column.astype(np.float32)
    finite = np.isfinite(numbers).reshape(len(numbers), -1).all(axis=1)
    _refuse(where, ~finite, name, "not a finite number")
    return numbers


def _is_number(value: str) -> bool:
    try:
        float(value)
    except ValueError:
        return False
    return True


def _refuse(where: Callable[[int], str], wrong: ArrayLike, name: str, what: str) -> None:
    """Raise a ConfigError for the first row that is wrong, if there is one."""
    rows = np.flatnonzero(wrong)
    if len(rows):
        more = f" (and {len(rows) - 1} more rows)" if len(rows) > 1 else ""
        raise ConfigError(f"{where(int(rows[0]))}, column {name!r}: {what}{more}")


def _read(file: Path) -> tuple[dict[str, Column], Callable[[int], str]]:
    """Return the columns of a table, and a function that gives the location of a row."""
    for suffix, read in (
        (".csv", _read_csv),
        (".tsv", _read_csv),
        (".parquet", _read_parquet),
        (".npz", _read_npz),
    ):
        if suffix in file.suffixes[-2:]:
            columns, where = read(file)
            if len({len(column) for column in columns.values()}) > 1:
                sizes = ", ".join(f"{name} has {len(column)}" for name, column in columns.items())
                raise ConfigError(f"{file}: arrays of different lengths: {sizes}")
            return columns, where
    raise ConfigError(
        f"{file}: not a table; it must be .csv, .tsv (or these with .gz, .xz), .parquet or .npz"
    )


def _read_csv(file: Path) -> tuple[dict[str, Column], Callable[[int], str]]:
    reader = csv.reader(
        (line + "\n" for _, line in read_lines(file)),
        delimiter="\t" if ".tsv" in file.suffixes else ",",
        strict=True,
    )
    rows, lines = [], []
    try:
        heading = [name.strip().removeprefix("\ufeff") for name in next(reader, [])]
        for row in reader:
            if row and len(row) != len(heading):
                raise ConfigError(
                    f"{file}, line {reader.line_num}: {len(row)} fields, but the heading has {len(heading)}"
                )
            if row:
                rows.append(row)
                lines.append(reader.line_num)
    except csv.Error as error:
        raise ConfigError(f"{file}, line {reader.line_num}: not a CSV file ({error})") from None
    if len(set(heading)) != len(heading) or not rows:
        raise ConfigError(f"{file}: must have a heading, each name once, and at least one row")
    columns: dict[str, Column] = {name: list(column) for name, column in zip(heading, zip(*rows))}
    return columns, lambda row: f"{file}, line {lines[row]}"


def _read_parquet(file: Path) -> tuple[dict[str, Column], Callable[[int], str]]:
    try:
        import pyarrow
        from pyarrow import parquet, types
    except ImportError:
        raise ConfigError(f"{file}: needs pyarrow: pip install 'tardigrad[data]'") from None

    def where(row: int) -> str:
        return f"{file}, row {row + 1}"

    try:
        table = parquet.read_table(file)
    except (pyarrow.ArrowException, OSError) as error:
        raise ConfigError(f"{file}: not a whole Parquet file ({error})") from None
    columns: dict[str, Column] = {}
    for name in table.column_names:
        column = table.column(name)
        if column.null_count:
            _refuse(where, column.is_null().to_numpy(), name, "no value")
        if types.is_integer(column.type) or types.is_floating(column.type) or types.is_boolean(column.type):
            columns[name] = column.to_numpy()
        else:
            columns[name] = [str(value) for value in column.to_pylist()]
    return columns, where


def _read_npz(file: Path) -> tuple[dict[str, Column], Callable[[int], str]]:
    try:
        with np.load(file, allow_pickle=False) as arrays:
            if any(array.ndim == 0 for array in arrays.values()):
                raise ValueError("a single number is not a column")
            columns: dict[str, Column] = {
                name: array.tolist() if array.dtype.kind in "US" else array for name, array in arrays.items()
            }
    except (OSError, ValueError, EOFError, zipfile.BadZipFile) as error:
        raise ConfigError(f"{file}: not a whole npz file of plain arrays ({error})") from None
    return columns, lambda row: f"{file}, row {row + 1}"
