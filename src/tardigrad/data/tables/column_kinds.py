"""The kinds of a table's columns: numbers, categories and dates; how they are found and parsed."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import Literal

import numpy as np

from tardigrad.data.tables.reading_tables import Column, TableFile

ColumnKind = Literal["number", "category", "date"]

MISSING = frozenset({"", "na", "n/a", "nan", "null"})
"""Texts that stand for a missing value, in lower case and without spaces around them."""
EPOCH = datetime(1970, 1, 1)


def missing(column: Column) -> np.ndarray:
    """Return a boolean mask of the values that are missing.

    >>> missing(["3", "NA", " "]).tolist()
    [False, True, True]
    """
    if isinstance(column, list):
        return np.fromiter((text.strip().lower() in MISSING for text in column), bool, len(column))
    if column.dtype.kind != "f":
        return np.zeros(len(column), dtype=bool)
    return np.asarray(np.isnan(column).reshape(len(column), -1).any(axis=1))


def find_kind(parts: Iterable[Column], decimal: str = ".") -> ColumnKind:
    """Return the kind of a column, of which every part may come from another file.

    It is a number if all values that are not missing are numbers, a date if all are dates, else a category.

    >>> find_kind([["3", "NA"], ["4.5"]]), find_kind([["2024-05-31", ""]]), find_kind([["f", "m"]])
    ('number', 'date', 'category')
    """
    kinds = {kind for part in parts for kind in _kinds(part, decimal)}
    return kinds.pop() if len(kinds) == 1 else "category" if kinds else "number"


def _kinds(column: Column, decimal: str) -> set[ColumnKind]:
    """Return the kinds of the values of a part; none if all of them are missing."""
    if not isinstance(column, list):
        return {"number"}
    texts = [text for text, gone in zip(column, missing(column)) if not gone]
    if not texts:
        return set()
    for kind, parse in (("number", number), ("date", days)):
        # most columns are decided by their first value
        if all(parse(text, decimal) is not None for text in texts):
            return {kind}  # type: ignore[arg-type]
    return {"category"}


def number(text: str, decimal: str = ".") -> float | None:
    """Return the number that a text is, or None. Where the comma is the decimal point, a point may separate
    thousands, so that a text with one is not taken for a number.

    >>> number("2.5"), number("2,5", decimal=","), number("two"), number("1.234", decimal=",")
    (2.5, 2.5, None, None)
    """
    if not _usual(text, decimal):
        return None
    try:
        return float(text if decimal == "." else text.replace(decimal, "."))
    except ValueError:
        return None


def read_numbers(column: list[str], decimal: str, dtype: type[np.floating]) -> np.ndarray:
    """Return texts that are all numbers as an array; raise a ValueError if one is not. Numbers that are too
    large for the dtype become infinite."""
    if not _usual("".join(column), decimal):
        raise ValueError("not all of these texts are numbers")
    with np.errstate(over="ignore"):
        return np.array(column if decimal == "." else [t.replace(decimal, ".") for t in column], dtype=dtype)


def _usual(text: str, decimal: str) -> bool:
    """Whether a text has nothing that Python accepts in a number (1_000) although people mean another."""
    return "_" not in text and (decimal == "." or "." not in text)


def days(text: str, _: str = ".") -> float | None:
    """Return the days from 1970 to a date in ISO 8601, with or without a time; None if it is no such date.

    >>> days("1970-01-02"), days("1970-01-02 12:00"), days("31.12.1970")
    (1.0, 1.5, None)
    """
    text = text.strip()
    if len(text) < 10 or text[4] != "-":  # fromisoformat also takes 20240531, which may be a number
        return None
    try:
        moment = datetime.fromisoformat(text)
        if moment.tzinfo is not None:
            moment = moment.astimezone(UTC).replace(tzinfo=None)
    except (ValueError, OverflowError):  # the second in the first and the last hours of the calendar
        return None
    return (moment - EPOCH).total_seconds() / 86400


def parse(
    table: TableFile, name: str, kind: ColumnKind, decimal: str = ".", clients: Sequence[str] | None = None
) -> np.ndarray:
    """Return a column of this kind: numbers and dates as float64, NaN where a value is missing; categories as
    texts, empty where one is missing. Raises a ConfigError for the first value of another kind."""
    column = table.columns[name]
    if kind == "category":
        return np.array(category_texts(column), dtype=object)
    if isinstance(column, list):
        values = _parse_texts(table, name, column, kind, decimal, clients)
    elif kind == "date":
        table.refuse(~missing(column), name, "not a date such as 2024-05-31", clients)
        values = np.full(len(column), math.nan)
    else:
        if column.dtype.kind not in "biuf":
            table.refuse(np.ones(len(column), dtype=bool), name, "not a number", clients)
        values = column.astype(np.float64)
    table.refuse(np.isinf(values), name, "not a finite number", clients)
    return values


def _parse_texts(
    table: TableFile,
    name: str,
    column: list[str],
    kind: ColumnKind,
    decimal: str,
    clients: Sequence[str] | None,
) -> np.ndarray:
    if kind == "number":
        try:
            return read_numbers(column, decimal, np.float64)
        except ValueError:
            pass  # something is missing or wrong
    convert = number if kind == "number" else days
    gone = missing(column)
    values = [math.nan if empty else convert(text, decimal) for text, empty in zip(column, gone)]
    wrong = [value is None for value in values]
    what = "not a number" if kind == "number" else "not a date such as 2024-05-31"
    if kind == "number" and any(number(text, ",") is not None for text, bad in zip(column, wrong) if bad):
        what += "; is the comma its decimal point?"
    elif kind == "number" and decimal == "," and any(number(text) is not None for text in column):
        what += "; with a decimal comma, numbers have no points"
    table.refuse(wrong, name, what, clients)
    return np.array(values, dtype=np.float64)


def category_texts(column: Column) -> list[str]:
    """Return the values as texts without spaces around them, empty where one is missing. Whole numbers have
    no decimal point, so that a category is the same text in a CSV and in a Parquet file.

    >>> category_texts(np.array([1.0, np.nan, 2.5])), category_texts([" f", "NA"])
    (['1', '', '2.5'], ['f', ''])
    """
    gone = missing(column)
    if isinstance(column, list):
        return ["" if empty else text.strip() for text, empty in zip(column, gone)]
    return ["" if empty else plain_number(value) for value, empty in zip(column.tolist(), gone)]


def plain_number(value: float) -> str:
    """Return a number as text, a whole one without a decimal point."""
    return str(int(value)) if float(value).is_integer() else repr(float(value))
