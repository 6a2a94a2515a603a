"""The table of a reproduction: the paper's numbers, ours, and the verdicts."""

from __future__ import annotations

from typing import NotRequired, TypedDict

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from tardigrad.experiments.compare.outcome import unfinished
from tardigrad.experiments.reproduce.claims import Verdict
from tardigrad.experiments.reproduce.measures import UNITS

STYLES: dict[Verdict, str] = {
    "holds": "green",
    "does not hold": "red",
    "not tested": "yellow",
    "not run": "dim",
}


class OurNumber(TypedDict):
    """Our number for one entry: mean and standard deviation over seeds, None if a seed missed the target."""

    mean: float | None
    sd: float | None
    interval: NotRequired[tuple[float, float]]
    """The 95 % confidence interval of the mean; absent with fewer than two seeds."""
    reached: int
    """Number of seeds that reached the target."""
    budget: NotRequired[float | None]
    """The cost that the entry has spent, if costs are compared."""


class JudgedClaim(TypedDict):
    """A claim with its verdict, and the numbers that led to it in words."""

    task: str
    says: str
    verdict: Verdict
    found: str


class ReproductionResult(TypedDict):
    """The content of reproduction.json."""

    name: str
    title: str
    scale: str
    source: str
    paper_measure: str
    paper: dict[str, dict[str, int | float | str]]
    """The paper's numbers, by entry and column."""
    measure: str
    seeds: list[int]
    tuning: str
    settings: dict[str, str]
    """A digest of the settings of all entries, by task."""
    rules: str
    """A digest of what is measured and claimed, and of the paper's numbers."""
    targets: dict[str, list[float]]
    """By task."""
    ours: dict[str, dict[str, OurNumber]]
    """Our numbers, by task and entry."""
    also: NotRequired[dict[str, dict[str, dict[str, OurNumber]]]]
    """Those of further measures, by measure, task and entry."""
    failed: dict[str, str]
    claims: list[JudgedClaim]


def show_reproduction(result: ReproductionResult, console: Console) -> None:
    """Print the table, the verdicts, and the runs that failed."""
    console.print()
    console.print(f"[bold]{escape(result['name'])}[/]: {escape(result['title'])}", highlight=False)
    console.print(escape(_facts(result)), highlight=False, style="dim")
    head, rows = _grid(result)
    shown = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
    shown.add_column("entry", overflow="fold")
    for heading in head[1:]:
        shown.add_column(escape(heading), justify="right", overflow="fold")
    for row in rows:
        shown.add_row(*map(escape, row))
    console.print(shown)
    for claim in result["claims"]:
        style = STYLES[claim["verdict"]]
        where = f" ({claim['task']})" if claim["task"] else ""
        console.print(f"[{style}]{claim['verdict']}[/]: {escape(claim['says'] + where)}", highlight=False)
        console.print(f"  {escape(claim['found'])}", highlight=False, style="dim")
    for run, error in result["failed"].items():
        console.print(f"{run} failed: {error}", style="red", highlight=False, markup=False)


def side_by_side(result: ReproductionResult) -> str:
    """Return a page in Markdown: title, table and verdicts."""
    return f"# {result['title']}\n\n{as_markdown(result)}"


def as_markdown(result: ReproductionResult) -> str:
    """Return the table and the verdicts as Markdown."""
    lines = [numbers_as_markdown(result)]
    lines += ["", "| claim | verdict | found |", "| --- | --- | --- |"]
    for claim in result["claims"]:
        where = f" ({claim['task']})" if claim["task"] else ""
        says, found = (text.replace("|", "\\|") for text in (claim["says"] + where, claim["found"]))
        lines.append(f"| {says} | **{claim['verdict']}** | {found} |")
    lines += [f"\n{run} failed: {error}" for run, error in result["failed"].items()]
    return "\n".join(lines) + "\n"


def numbers_as_markdown(result: ReproductionResult) -> str:
    """Return the table without the verdicts, after a line that says how it was made."""
    head, rows = _grid(result)
    lines = [_facts(result), ""]
    lines += ["| " + " | ".join(head) + " |", "| --- |" + " ---: |" * (len(head) - 1)]
    lines += ["| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in rows]
    return "\n".join(lines)


def _facts(result: ReproductionResult) -> str:
    seeds = ", ".join(map(str, result["seeds"]))
    facts = [f"{result['source']}; scale {result['scale']}, seeds {seeds}"]
    if result["tuning"]:
        facts.append(f"tuning: {result['tuning']}")
    return "; ".join(facts)


def _grid(result: ReproductionResult) -> tuple[list[str], list[list[str]]]:
    """Return the headings and rows: entry, the paper's columns, ours by task."""
    columns = list(dict.fromkeys(column for numbers in result["paper"].values() for column in numbers))
    unit = result["paper_measure"]
    head = ["entry", *(f"paper: {column}" + (f" ({unit})" if unit else "") for column in columns)]
    shown = [(result["measure"], result["ours"]), *result.get("also", {}).items()]
    for name, ours in shown:
        for task in ours:
            target = f" {result['targets'][task][0]:g}" if "target" in UNITS[name] else ""
            head.append(f"ours: {UNITS[name]}{target}" + (f", {task}" if task else ""))
    labels = list(
        dict.fromkeys([*result["paper"], *(one for task in result["ours"].values() for one in task)])
    )
    rows = []
    for label in labels:
        printed = result["paper"].get(label, {})
        row = [label, *(str(printed.get(column, "")) for column in columns)]
        rows.append(
            row
            + [
                _cell(entries.get(label), name, len(result["seeds"]), _failures(result, task, label))
                for name, ours in shown
                for task, entries in ours.items()
            ]
        )
    return head, rows


def _failures(result: ReproductionResult, task: str, label: str) -> int:
    """Return with how many seeds the run of an entry failed, such as by divergence."""
    runs = [f"{task + ': ' if task else ''}{label} (seed {seed})" for seed in result["seeds"]]
    return sum(run in result["failed"] and not unfinished(result["failed"][run]) for run in runs)


def _cell(number: OurNumber | None, measure: str, seeds: int, failures: int) -> str:
    if number is None:
        return ""
    if number["mean"] is None:
        if failures:
            return f"failed ({failures} of {seeds})"
        budget = number.get("budget")
        return "not run" if budget is None else f"> {budget:,.0f} ({number['reached']} of {seeds})"
    mean, sd = number["mean"], number["sd"] or 0.0
    digits = 1 if "accuracy" in measure else 0 if mean >= 100 else 1 if mean >= 10 else 3
    factor, unit = (100, " %") if "accuracy" in measure else (1, "")

    def plain(value: float) -> str:
        return f"{factor * value:,.{digits}f}"

    if seeds < 2:
        return plain(mean) + unit
    interval = number.get("interval")
    within = "" if interval is None else f" [{plain(interval[0])}, {plain(interval[1])}]"
    return f"{plain(mean)} ± {plain(sd)}{within}{unit}"
