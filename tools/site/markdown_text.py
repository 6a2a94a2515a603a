"""Texts of docstrings and schemas as Markdown."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Sequence


def cell(text: str) -> str:
    """Return a text for a cell of a table. In code a bar needs no backslash, which would be shown."""
    parts = " ".join(text.split()).split("`")
    return "`".join(part if i % 2 else part.replace("|", "\\|") for i, part in enumerate(parts))


def docstring(text: str) -> str:
    """Return a docstring as Markdown: doctests become code."""
    blocks = inspect.cleandoc(text.replace("  # doctest: +SKIP", "")).split("\n\n")
    return "\n\n".join(
        f"```pycon\n{block}\n```" if block.lstrip().startswith(">>>") else block for block in blocks
    )


def table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """Give a table, if it has rows."""
    if rows:
        lines = [headings, ["---"] * len(headings), *([cell(text) for text in row] for row in rows)]
        yield "\n".join(f"| {' | '.join(line)} |" for line in lines)
