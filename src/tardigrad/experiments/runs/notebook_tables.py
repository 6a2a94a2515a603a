"""Tables for notebooks: as HTML, and as pandas data frames."""

from __future__ import annotations

import io
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from types import ModuleType
from typing import TYPE_CHECKING

from tardigrad.errors import ConfigError

if TYPE_CHECKING:
    import pandas


def html_table(rows: Iterable[Sequence[str]], headings: Sequence[str] = ()) -> str:
    """Return an HTML table of texts; all columns but the first are aligned to the right below headings.

    >>> html_table([("steps", "7")])
    '<table><tr><td style="text-align: left">steps</td><td style="text-align: left">7</td></tr></table>'
    """
    sides = ["left", *["right" if headings else "left"] * 20]
    head = "".join(_cell("th", text, side) for text, side in zip(headings, sides))
    body = ("".join(_cell("td", text, side) for text, side in zip(row, sides)) for row in rows)
    return "<table>" + "".join(f"<tr>{cells}</tr>" for cells in (head, *body) if cells) + "</table>"


def _cell(tag: str, text: str, side: str) -> str:
    return f'<{tag} style="text-align: {side}">{escape(text)}</{tag}>'


def data_frame(rows: Iterable[Mapping[str, object]]) -> pandas.DataFrame:
    """Return a pandas data frame of these rows."""
    return _pandas().DataFrame(list(rows))


def read_frame(comma_separated: str) -> pandas.DataFrame:
    """Return a pandas data frame of the text of a CSV file."""
    return _pandas().read_csv(io.StringIO(comma_separated))


def _pandas() -> ModuleType:
    """Return the module, or raise a ConfigError if it is not installed."""
    try:
        import pandas
    except ImportError:
        raise ConfigError("to_pandas needs pandas; in this environment: pip install pandas") from None
    return pandas
