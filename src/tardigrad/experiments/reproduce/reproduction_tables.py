"""A reproduction as a table: the paper's numbers, ours, and the verdicts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from tardigrad.experiments.reproduce.measures import UNITS

STYLES = {"holds": "green", "does not hold": "red", "not tested": "yellow", "not run": "dim"}


def show_reproduction(result: dict[str, Any], console: Console) -> None:
    """In the terminal."""
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


def side_by_side(result: dict[str, Any]) -> str:
    """As Markdown."""
    head, rows = _grid(result)
    lines = [f"# {result['title']}", "", _facts(result), ""]
    lines += ["| " + " | ".join(head) + " |", "| --- |" + " ---: |" * (len(head) - 1)]
    lines += ["| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in rows]
    lines += ["", "| claim | verdict | found |", "| --- | --- | --- |"]
    for claim in result["claims"]:
        where = f" ({claim['task']})" if claim["task"] else ""
        says, found = (text.replace("|", "\\|") for text in (claim["says"] + where, claim["found"]))
        lines.append(f"| {says} | **{claim['verdict']}** | {found} |")
    lines += [f"\n{run} failed: {error}" for run, error in result["failed"].items()]
    return "\n".join(lines) + "\n"


def _facts(result: dict[str, Any]) -> str:
    seeds = ", ".join(map(str, result["seeds"]))
    facts = [f"{result['source']}; scale {result['scale']}, seeds {seeds}"]
    if result["tuning"]:
        facts.append(f"tuning: {result['tuning']}")
    return "; ".join(facts)


def _grid(result: dict[str, Any]) -> tuple[list[str], list[list[str]]]:
    """Heading and rows: entry, the paper's columns, ours by task."""
    columns = list(dict.fromkeys(column for numbers in result["paper"].values() for column in numbers))
    unit = result["paper_measure"]
    head = ["entry", *(f"paper: {column}" + (f" ({unit})" if unit else "") for column in columns)]
    for task in result["ours"]:
        target = f" {result['targets'][task][0]:g}" if "target" in UNITS[result["measure"]] else ""
        head.append(f"ours: {UNITS[result['measure']]}{target}" + (f", {task}" if task else ""))
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
                _cell(task.get(label), result["measure"], len(result["seeds"]))
                for task in result["ours"].values()
            ]
        )
    return head, rows


def _cell(number: dict[str, Any] | None, measure: str, seeds: int) -> str:
    if number is None:
        return ""
    if number["mean"] is None:
        if number.get("budget") is None:
            return "not run"
        return f"> {number['budget']:,.0f} ({number['reached']} of {seeds})"
    mean, sd = number["mean"], number["sd"]
    if "accuracy" in measure:
        return f"{100 * mean:.1f} ± {100 * sd:.1f} %" if seeds > 1 else f"{100 * mean:.1f} %"
    digits = 0 if mean >= 100 else 1 if mean >= 10 else 3
    return f"{mean:,.{digits}f}" + (f" ± {sd:,.{digits}f}" if seeds > 1 else "")


def show_library(reproductions: dict[str, Any], out: Path, console: Console) -> None:
    """Everything that can be reproduced, and what has come of it so far."""
    shown = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
    for heading in ("name", "source", "what", "claims so far"):
        shown.add_column(heading, overflow="fold")
    for name, one in reproductions.items():
        so_far = _so_far(out / name / "reproduction.json")
        shown.add_row(name, escape(one.paper.source), escape(one.title), so_far)
    console.print(shown)
    console.print(
        "tardigrad reproduce NAME... | PAPER | all   --scale smoke | small | paper",
        highlight=False,
        markup=False,
    )


def _so_far(file: Path) -> str:
    if not file.exists():
        return "[dim]not run[/]"
    verdicts = [claim["verdict"] for claim in json.loads(file.read_text())["claims"]]
    return ", ".join(
        f"[{style}]{verdicts.count(verdict)} {verdict}[/]"
        for verdict, style in STYLES.items()
        if verdict in verdicts
    )
