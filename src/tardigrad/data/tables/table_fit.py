"""How a table fits a preparation: for each column, whether it is there, what is missing, what is strange."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import chain

import numpy as np

from tardigrad.data.tables.column_kinds import ColumnKind, category_texts, missing, parse
from tardigrad.data.tables.preparation import (
    OneHotColumn,
    Preparation,
    PreparedTarget,
    ScaledColumn,
    apply_column,
)
from tardigrad.data.tables.reading_tables import TableFile
from tardigrad.data.tables.targets import OwnedTable, class_numbers, scaled_targets, target_numbers
from tardigrad.errors import ConfigError

FAR = 6.0
"""Values further from the mean than so many scales are reported."""


@dataclass(frozen=True)
class ColumnFit:
    """How one column of a table fits."""

    name: str
    kind: str
    missing: int = 0
    constants: str = ""
    """The constants that are applied to it."""
    note: str = ""
    """A warning about values that are unusual, but possible."""
    problem: str = ""
    """Why the column cannot be used; empty if it can."""

    def record(self) -> dict[str, object]:
        """Return the fields that say something."""
        return {name: value for name, value in asdict(self).items() if value != ""}


def table_fit(table: TableFile, preparation: Preparation, decimal: str = ".") -> list[ColumnFit]:
    """Return how each column of a table fits, the target last."""
    fits = [_feature(table, column, decimal) for column in preparation.columns]
    if preparation.target is not None:
        fits.append(_target(table, preparation.target, decimal))
    return fits


def declared_columns(preparation: Preparation) -> list[ColumnFit]:
    """Return the columns that a preparation names, the target last."""
    fits = [
        ColumnFit(column.name, column.kind, constants=constants_of(column)) for column in preparation.columns
    ]
    target = preparation.target
    return (
        fits
        if target is None
        else [*fits, ColumnFit(target.name, _target_kind(target), constants=constants_of(target))]
    )


def describe_columns(
    tables: Sequence[OwnedTable],
    kinds: Mapping[str, ColumnKind],
    preparation: Preparation | None,
    decimal: str = ".",
) -> list[ColumnFit]:
    """Return what each column of one's own tables is and what becomes of it, the target last.

    `kinds`: of the feature columns, where there is no preparation.
    """
    joined = TableFile(tables[0].table.file, {}, lambda row: f"row {row + 1} of all tables")
    label = tables[0].label
    for name in (*(kinds if preparation is None else preparation.kinds), label):
        parts = [table.table.columns[name] for table in tables]
        if all(isinstance(part, list) for part in parts):
            joined.columns[name] = list(chain.from_iterable(parts))
        elif any(isinstance(part, list) for part in parts):
            joined.columns[name] = list(chain.from_iterable(category_texts(part) for part in parts))
        else:
            joined.columns[name] = np.concatenate(parts)
    if preparation is not None:
        return table_fit(joined, preparation, decimal)
    fits = [
        ColumnFit(name, kind, int(missing(joined.columns[name]).sum()), _range(joined, name, kind, decimal))
        for name, kind in kinds.items()
    ]
    return [*fits, ColumnFit(label, "label", int(missing(joined.columns[label]).sum()))]


def _range(table: TableFile, name: str, kind: ColumnKind, decimal: str) -> str:
    if kind == "category" or np.ndim(table.columns[name]) > 1:
        return ""
    values = parse(table, name, kind, decimal)
    return f"{np.nanmin(values):.4g} to {np.nanmax(values):.4g}" if not np.isnan(values).all() else ""


def constants_of(column: ScaledColumn | OneHotColumn | PreparedTarget) -> str:
    """Return the constants of a column in a few words.

    >>> constants_of(ScaledColumn(name="age", mean=50, scale=10, missing="mean"))
    'mean 50, scale 10'
    >>> constants_of(OneHotColumn(name="sex", categories=("f", "m")))
    '2 categories: f, m'
    """
    if isinstance(column, OneHotColumn):
        return f"{len(column.categories)} categories: {_listed(column.categories)}"
    if isinstance(column, PreparedTarget) and column.classes is not None:
        return f"{len(column.classes)} classes: {_listed(column.classes)}"
    if (column.mean, column.scale) == (0.0, 1.0):
        return "as it is"
    if isinstance(column, ScaledColumn) and column.kind == "date":
        day = np.datetime64(0, "D") + np.timedelta64(round(column.mean), "D")
        words = f"mean {day}, scale {column.scale:.4g} days"
    else:
        words = f"mean {column.mean:.4g}, scale {column.scale:.4g}"
    marked = isinstance(column, ScaledColumn) and column.missing == "indicator"
    return f"{words}, missing ones marked" if marked else words


def _listed(names: tuple[str, ...], most: int = 5) -> str:
    return ", ".join(names[:most]) + (", ..." if len(names) > most else "")


def _feature(table: TableFile, column: ScaledColumn | OneHotColumn, decimal: str) -> ColumnFit:
    name, kind, constants = column.name, column.kind, constants_of(column)
    if name not in table.columns:
        return ColumnFit(name, kind, constants=constants, problem="the table has no such column")
    gone = int(missing(table.columns[name]).sum())
    if np.ndim(table.columns[name]) > 1:
        return ColumnFit(name, kind, gone, constants, problem="an array for each row, not a value")
    try:
        values = parse(table, name, kind, decimal)
        apply_column(column, values, table.refuse)
    except ConfigError as error:
        return ColumnFit(name, kind, gone, constants, problem=str(error))
    return ColumnFit(name, kind, gone, constants, note=_note(column, values, gone))


def _note(column: ScaledColumn | OneHotColumn, values: np.ndarray, gone: int) -> str:
    """Return what is strange about a column's values."""
    if gone == len(values):
        return "all values are missing"
    if isinstance(column, OneHotColumn):
        known = frozenset(column.categories)
        unknown = Counter(value for value in values if value and value not in known)
        if not unknown:
            return ""
        shown = ", ".join(f"{value} ({count})" for value, count in unknown.most_common(3))
        return f"{len(unknown)} unknown categories: {shown}"
    if (column.mean, column.scale) == (0.0, 1.0):  # not scaled
        return ""
    with np.errstate(invalid="ignore"):
        far = np.abs(values - column.mean) > FAR * column.scale
    if not far.any():
        return ""
    return f"{int(far.sum())} values further than {FAR:g} scales from the mean, such as {values[far][0]:.6g}"


def _target_kind(target: PreparedTarget) -> str:
    return "target" if target.classes is None else "label"


def _target(table: TableFile, target: PreparedTarget, decimal: str) -> ColumnFit:
    kind = _target_kind(target)
    constants = constants_of(target)
    if target.name not in table.columns:
        return ColumnFit(target.name, kind, constants=constants, problem="the table has no such column")
    column = table.columns[target.name]
    gone = int(missing(column).sum())
    owned = OwnedTable(table, (), target.name, [""] * len(table))
    try:
        if target.classes is None:
            scaled_targets([owned], target_numbers(owned, decimal), target)
            return ColumnFit(target.name, kind, gone, constants)
        numbers = class_numbers(owned, target.classes)
    except ConfigError as error:
        return ColumnFit(target.name, kind, gone, constants, problem=str(error))
    held = len(np.unique(numbers))
    note = "" if held == len(target.classes) else f"{held} of {len(target.classes)} classes occur"
    return ColumnFit(target.name, kind, gone, constants, note=note)
