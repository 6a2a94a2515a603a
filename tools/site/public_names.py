"""The list of public names in docs/reference/public-api.md; `python tools/site/public_names.py` writes it.

The list is checked in, so that a name that comes or goes is seen when a change is reviewed.
"""

from __future__ import annotations

from pathlib import Path

from python_reference import TITLES, by_package

PAGE = Path(__file__).parents[2] / "docs/reference/public-api.md"
BEGIN, END = "<!-- names: begin -->", "<!-- names: end -->"


def with_names(page: str) -> str:
    """Return the page with the table of public names between its markers."""
    groups = {TITLES[package]: names for package, names in by_package().items()}
    rows = [f"| {title} | {', '.join(f'`{name}`' for name in names)} |" for title, names in groups.items()]
    before, rest = page.split(BEGIN)
    table = "\n".join(["| part | names |", "| --- | --- |", *rows])
    return f"{before}{BEGIN}\n\n{table}\n\n{END}{rest.split(END)[1]}"


if __name__ == "__main__":
    PAGE.write_text(with_names(PAGE.read_text()))
