"""Texts of docstrings and schemas as Markdown."""

from __future__ import annotations

import inspect


def cell(text: str) -> str:
    """Return a text that can stand in a cell of a table."""
    return " ".join(text.split()).replace("|", "\\|")


def docstring(text: str) -> str:
    """Return a docstring as Markdown: doctests become code."""
    blocks = inspect.cleandoc(text.replace("  # doctest: +SKIP", "")).split("\n\n")
    return "\n\n".join(
        f"```pycon\n{block}\n```" if block.lstrip().startswith(">>>") else block for block in blocks
    )
