"""The list of experiments that can be reproduced, and the details of those that are named."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, TypedDict

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from tardigrad.experiments.reproduce.reproduction_tables import STYLES

if TYPE_CHECKING:
    from tardigrad.experiments.reproduce.claims import Verdict
    from tardigrad.experiments.reproduce.reproduction import Reproduction


class ListedReproduction(TypedDict):
    """A line of the list."""

    name: str
    title: str
    verdicts: dict[Verdict, int]
    """Number of claims by verdict; empty if it was not run yet."""


class ReproductionDetails(ListedReproduction):
    """A reproduction with the details that `--details` prints."""

    source: str
    claims: list[str]
    entries: list[str]
    tasks: list[str]
    scales: dict[str, str]
    """How the settings of each scale were found."""


def list_of(reproductions: dict[str, Reproduction], out: Path) -> list[ListedReproduction]:
    """Return name, title and verdicts so far of each reproduction."""
    return [
        {"name": name, "title": one.title, "verdicts": _verdicts(out / name / "reproduction.json")}
        for name, one in reproductions.items()
    ]


def details_of(reproductions: dict[str, Reproduction], out: Path) -> list[ReproductionDetails]:
    """Return the details of each reproduction."""
    return [
        {
            **listed,
            "source": one.paper.source,
            "claims": [claim.says for claim in one.claims],
            "entries": list(one.entries),
            "tasks": list(one.tasks),
            "scales": {size: scale.tuning for size, scale in one.scales.items()},
        }
        for listed, one in zip(list_of(reproductions, out), reproductions.values())
    ]


def show_list(reproductions: dict[str, Reproduction], out: Path, console: Console) -> None:
    """Print a line for each reproduction; a title that does not fit is cut."""
    listed = list_of(reproductions, out)
    so_far = [_so_far(one["verdicts"]) for one in listed]
    names, statuses = (max(map(len, texts)) for texts in ([one["name"] for one in listed], so_far))
    shown = Table.grid(padding=(0, 2))
    shown.add_column(no_wrap=True, style="cyan", min_width=names)
    shown.add_column(
        no_wrap=True, overflow="ellipsis", max_width=max(10, console.width - names - statuses - 4)
    )
    shown.add_column(no_wrap=True, min_width=statuses)
    for one, status in zip(listed, so_far):
        shown.add_row(escape(one["name"]), escape(one["title"]), status)
    console.print(shown)
    console.print(
        "run: tardigrad reproduce NAME... | PAPER | all  --scale smoke | small | protocol | paper\n"
        "more about one: tardigrad reproduce NAME --details",
        highlight=False,
        markup=False,
    )


def show_details(reproductions: dict[str, Reproduction], out: Path, console: Console) -> None:
    """Print source, entries, claims and scales of each reproduction."""
    for one in details_of(reproductions, out):
        console.print(f"[bold]{escape(one['name'])}[/]: {escape(one['title'])}", highlight=False)
        rows = {
            "source": [one["source"]],
            "entries": one["entries"],
            "tasks": one["tasks"],
            "claims": one["claims"],
        }
        rows["scales"] = [f"{size}: {tuning}" if tuning else size for size, tuning in one["scales"].items()]
        verdicts = (
            f"[{STYLES[verdict]}]{number} {verdict}[/]" for verdict, number in one["verdicts"].items()
        )
        grid = Table.grid(padding=(0, 2))
        grid.add_column(style="cyan", no_wrap=True)
        grid.add_column()
        for name, lines in rows.items():
            if lines:
                grid.add_row(f"  {name}", escape("\n".join(lines)))
        grid.add_row("  so far", ", ".join(verdicts) or "not run")
        console.print(grid)


def _so_far(verdicts: dict[Verdict, int]) -> str:
    if verdicts.keys() <= {"not run"}:  # the scale smoke judges nothing
        return "run, not judged" if verdicts else "not run"
    return f"{verdicts.get('holds', 0)} of {sum(verdicts.values())} hold"


def _verdicts(file: Path) -> dict[Verdict, int]:
    """Return the number of claims by verdict, in a finished reproduction; none if its file is damaged, which
    the next run mends."""
    try:
        found = [claim["verdict"] for claim in json.loads(file.read_text())["claims"]]
    except (OSError, ValueError, TypeError, KeyError):
        return {}
    return {verdict: found.count(verdict) for verdict in STYLES if verdict in found}
