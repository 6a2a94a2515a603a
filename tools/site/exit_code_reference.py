"""The reference page of exit codes: the section of docs/architecture.md, and the errors that have a code."""

from __future__ import annotations

from pathlib import Path

import tardigrad.errors

ARCHITECTURE = Path(__file__).parents[2] / "docs/architecture.md"


def page() -> str:
    """Return the page."""
    section = ARCHITECTURE.read_text().partition("\n## Exit codes\n")[2].partition("\n## ")[0].strip()
    rows = ["| error in Python | exit code of the command | meaning |", "| --- | --- | --- |"]
    for name, error in vars(tardigrad.errors).items():
        if isinstance(error, type) and issubclass(error, Exception):
            rows.append(f"| `td.{name}` | {error.exit_code} | {error.__doc__} |")
    return f"# Exit codes\n\n{section}\n\n## Errors in Python\n\n" + "\n".join(rows) + "\n"
