"""Columns of tables as a table for people."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich import box
from rich.markup import escape
from rich.table import Table

if TYPE_CHECKING:
    from tardigrad.data.tables.table_fit import ColumnFit


def fit_table(fits: Sequence[ColumnFit]) -> Table:
    """Return a table with a row for each column."""
    shown = Table(box=box.SIMPLE_HEAD)
    for title, justify in (("column", "left"), ("kind", "left"), ("missing", "right"), ("constants", "left")):
        shown.add_column(title, justify=justify)  # type: ignore[arg-type]
    shown.add_column("note")
    for fit in fits:
        note = "[bold red]does not fit[/]" if fit.problem else escape(fit.note)
        shown.add_row(escape(fit.name), fit.kind, f"{fit.missing:,}", escape(fit.constants), note)
    return shown
