"""The target column of tables: class numbers, or numbers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tardigrad.data.tables.column_kinds import category_texts, missing, number, parse, plain_number
from tardigrad.data.tables.preparation import TOO_FAR, PreparedTarget
from tardigrad.data.tables.reading_tables import Column, TableFile
from tardigrad.errors import ConfigError
from tardigrad.learning.heads.labels import check_labels


@dataclass(frozen=True)
class OwnedTable:
    """One file's table, and the client that each row belongs to."""

    table: TableFile
    features: tuple[str, ...]
    """The names of the feature columns."""
    label: str
    """The name of the target column."""
    clients: list[str]
    """The client of each row."""

    def refuse(self, wrong: np.ndarray | Sequence[bool], name: str, what: str) -> None:
        """Raise a ConfigError for the first row that is wrong, if there is one."""
        self.table.refuse(wrong, name, what, self.clients)


def find_classes(
    tables: Sequence[OwnedTable], test_tables: Sequence[OwnedTable], words: bool = False
) -> tuple[np.ndarray, list[str]]:
    """Return all labels as class numbers, those of the test tables last, and the names of the classes.

    The classes are the distinct labels of the training tables, sorted by value, or alphabetically if one of
    them is a word. `words`: take them as words, whatever they are.
    """
    every = [*tables, *test_tables]
    labels = [_words(table) if words else _whole_numbers_or_words(table) for table in every]
    if any(isinstance(column, list) for column in labels):  # at least one table has words
        labels = [[str(value) for value in column] for column in labels]
    classes = np.unique(np.concatenate([np.asarray(column) for column in labels[: len(tables)]]))
    numbers = []
    for table, column in zip(every, labels):
        found = np.minimum(np.searchsorted(classes, np.asarray(column)), len(classes) - 1)
        table.refuse(classes[found] != np.asarray(column), table.label, "a label that nobody trains on")
        numbers.append(found)
    return np.concatenate(numbers), [str(value) for value in classes.tolist()]


def class_numbers(table: OwnedTable, classes: Sequence[str]) -> np.ndarray:
    """Return the labels of a table as numbers of given classes."""
    order = {name: position for position, name in enumerate(classes)}
    found = [
        order.get(text, order.get(_plain(text), -1)) for text in _texts(table.table.columns[table.label])
    ]
    shown = ", ".join(classes[:10]) + (", ..." if len(classes) > 10 else "")
    table.refuse([position < 0 for position in found], table.label, f"not one of the classes {shown}")
    return np.array(found, dtype=np.int64)


def target_numbers(table: OwnedTable, decimal: str) -> np.ndarray:
    """Return a target that is a number as float64."""
    if np.ndim(table.table.columns[table.label]) != 1:
        raise ConfigError(f"{table.table.file}: the target {table.label!r} must have one number each")
    values = parse(table.table, table.label, "number", decimal, table.clients)
    table.refuse(np.isnan(values), table.label, "no target (missing, or NaN)")
    return values


def scaled_targets(tables: Sequence[OwnedTable], numbers: np.ndarray, target: PreparedTarget) -> np.ndarray:
    """Return the targets of all rows of these tables as a model is trained on them, as float32."""
    with np.errstate(over="ignore"):  # infinite ones are refused
        scaled = ((numbers - target.mean) / target.scale).astype(np.float32)
    first = 0
    for table in tables:
        last = first + len(table.clients)
        table.refuse(~np.isfinite(scaled[first:last]), table.label, TOO_FAR)
        first = last
    return scaled


def _texts(column: Column) -> list[str]:
    return column if isinstance(column, list) else [str(value) for value in column.tolist()]


def _plain(text: str) -> str:
    value = number(text)
    return text.strip() if value is None or not np.isfinite(value) else plain_number(value)


def _words(table: OwnedTable) -> Column:
    labels = category_texts(table.table.columns[table.label])
    table.refuse([not text for text in labels], table.label, "no label")
    return labels


def _whole_numbers_or_words(table: OwnedTable) -> Column:
    """Return the labels of a table as whole numbers if all of them are, else as words."""
    labels = table.table.columns[table.label]
    if isinstance(labels, list):
        table.refuse([not value.strip() for value in labels], table.label, "no label")
        try:
            if any("_" in value for value in labels):
                raise ValueError("Python reads 1_0 as 10")
            return np.array([int(value) for value in labels])
        except ValueError:
            values = [number(value) for value in labels]
        if any(value is None for value in values):
            return labels
        labels = np.array(values, dtype=np.float64)
    if labels.ndim != 1:
        raise ConfigError(
            f"{table.table.file}: the labels {table.label!r} have the shape {labels.shape}, not one each"
        )
    table.refuse(missing(labels), table.label, "no label (missing, or NaN)")
    with np.errstate(invalid="ignore"):
        whole = labels.astype(np.int64)
    for row in np.flatnonzero(whole != labels)[:1].tolist():  # the first that is not a class
        check_labels(f"{table.table.where(row)}, column {table.label!r}", labels, None)
    table.refuse(whole != labels, table.label, "not a whole number")
    return whole
