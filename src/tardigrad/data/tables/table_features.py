"""The features of tables: columns as they are, or prepared."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from tardigrad.data.tables.column_kinds import ColumnKind, missing, number, parse, read_numbers
from tardigrad.data.tables.column_statistics import ClientStatistics
from tardigrad.data.tables.preparation import NO_VALUE, Preparation
from tardigrad.data.tables.reading_tables import TableFile
from tardigrad.data.tables.targets import OwnedTable
from tardigrad.errors import ConfigError

Parsed = dict[str, np.ndarray]
"""The columns of one table: numbers and dates as float64, categories as texts."""


def plain_features(tables: Sequence[OwnedTable], decimal: str) -> Tensor:
    """Return the features of all rows as they are; they must be numbers, and none may be missing."""
    arrays: list[np.ndarray] = []
    for table in tables:
        values = [_numbers(table, name, decimal) for name in table.features]
        if len(values) > 1 and any(value.ndim > 1 for value in values):
            raise ConfigError(
                f"data.features: {table.table.file} has several arrays of features; name one of them"
            )
        arrays.append(values[0] if values[0].ndim > 1 else np.stack(values, axis=1))
        if arrays[-1].shape[1:] != arrays[0].shape[1:]:
            raise ConfigError(
                f"{table.table.file}: features of the shape {arrays[-1].shape[1:]}, but "
                f"{tables[0].table.file} has {arrays[0].shape[1:]}"
            )
    return torch.from_numpy(np.concatenate(arrays))


def _numbers(table: OwnedTable, name: str, decimal: str) -> np.ndarray:
    """Return a column of features as float32, or unchanged if its type has at most two bytes."""
    column = table.table.columns[name]
    table.refuse(missing(column), name, NO_VALUE)
    if isinstance(column, list):
        try:
            numbers = read_numbers(column, decimal, np.float32)  # infinite ones are refused below
        except ValueError:
            advice = "not a number; data.prepare = 'standard' takes categories and dates"
            table.refuse([number(text, decimal) is None for text in column], name, advice)
            raise
    elif column.dtype.kind in "biu" and column.dtype.itemsize <= 2:
        numbers = column.astype(np.uint8) if column.dtype.kind == "b" else column
    else:
        if column.dtype.kind not in "biuf":
            table.refuse(np.ones(len(column), dtype=bool), name, "not a number")
        with np.errstate(over="ignore"):
            numbers = column.astype(np.float32)
    finite = np.asarray(np.isfinite(numbers).reshape(len(numbers), -1).all(axis=1))
    table.refuse(~finite, name, "not a finite number")
    return numbers


def parse_columns(
    tables: Sequence[OwnedTable], kinds: Mapping[str, ColumnKind], decimal: str
) -> list[Parsed]:
    """Return the parsed columns of each table; raise a ConfigError for a value of another kind."""
    for table in tables:
        if any(np.ndim(table.table.columns[name]) > 1 for name in kinds):
            raise ConfigError(f"data.prepare: {table.table.file} has arrays of features, not columns")
    return [
        {name: parse(table.table, name, kind, decimal, table.clients) for name, kind in kinds.items()}
        for table in tables
    ]


def statistics_of_clients(
    parsed: Sequence[Parsed], parts: Sequence[np.ndarray], more: Mapping[str, np.ndarray]
) -> Iterator[ClientStatistics]:
    """Yield the statistics of each client.

    `parts`: the rows of each client, counted through all tables. `more`: further columns of all rows.
    """
    columns = {name: np.concatenate([table[name] for table in parsed]) for name in parsed[0]} | dict(more)
    for part in parts:
        yield ClientStatistics.of({name: values[part] for name, values in columns.items()})


def prepared_features(
    tables: Sequence[OwnedTable], parsed: Sequence[Parsed], preparation: Preparation
) -> Tensor:
    """Return the features of all rows after the preparation."""
    return torch.from_numpy(
        np.concatenate([preparation.apply(columns, table.refuse) for columns, table in zip(parsed, tables)])
    )


def apply_to_table(preparation: Preparation, table: TableFile, decimal: str = ".") -> np.ndarray:
    """Return the features of one table after the preparation, such as that of a run.

    >>> preparation = read_preparation(Path("runs/a/preparation.json"))  # doctest: +SKIP
    >>> apply_to_table(preparation, read_columns(Path("new.csv")))  # doctest: +SKIP
    """
    names = tuple(preparation.kinds)
    absent = [name for name in names if name not in table.columns]
    if absent:
        raise ConfigError(f"{table.file}: has no column {', '.join(map(repr, absent))}")
    columns = {name: parse(table, name, kind, decimal) for name, kind in preparation.kinds.items()}
    return preparation.apply(columns, table.refuse)
