"""A comparison as a table: for the terminal, Markdown, CSV and LaTeX, all from the same rows."""

from __future__ import annotations

import csv
import io
from typing import Any

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

TEX = {character: f"\\{character}" for character in "&%$#_{}"} | {
    "\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}",
    "±": r"$\pm$", ">": r"$>$", "<": r"$<$",
}  # fmt: skip
UNITS = {"trips": "client trips", "steps": "steps", "time": "virtual time", "bytes": "MB"}
HEADINGS = ("trips", "x", "time", "x", "steps", "MB", "accuracy %", "stale")
SPARED = ("stale", "MB", "steps")
"""Columns that a narrow terminal does without, the first first."""


def headings(target: float) -> list[str]:
    """Of the columns for one target."""
    return [
        "entry", f"client trips to {target:.3g}", "x best", "virtual time", "x best", "steps", "MB",
        "accuracy at the end, %", "mean staleness",
    ]  # fmt: skip


def cells(table: dict[str, Any], target: float) -> list[list[str]]:
    """The rows for one target, as text."""
    best = {
        name: min(
            (row["targets"][str(target)][name]["mean"] for row in table["rows"] if _all(row, target)),
            default=None,
        )
        for name in ("trips", "time")
    }
    return [_cells(row, target, best, len(table["seeds"])) for row in table["rows"]]


def _all(row: dict[str, Any], target: float) -> bool:
    """Whether every seed reached the target."""
    return not row["failed"] and row["targets"][str(target)]["trips"] is not None


def _cells(row: dict[str, Any], target: float, best: dict[str, float | None], seeds: int) -> list[str]:
    if row["failed"]:
        return [row["entry"], "failed", *[""] * 7]
    at = row["targets"][str(target)]
    shown = [row["entry"]]
    for name, digits in (("trips", 0), ("time", 1)):
        spread = at[name]
        if spread is None:
            limit = f"> {row['budget'][name]:,.{digits}f}"
            shown += [limit, f"{at['reached']} of {seeds}" if name == "trips" else ""]
        else:
            of = best[name]
            ratio = f"{spread['mean'] / of:.2f}" if of else ""
            sd = f" ± {spread['sd']:,.{digits}f}" if seeds > 1 else ""
            shown += [f"{spread['mean']:,.{digits}f}{sd}", ratio]
    shown.append("-" if at["steps"] is None else f"{at['steps']['mean']:,.0f}")
    shown.append("-" if at["bytes"] is None else f"{at['bytes']['mean'] / 1e6:,.1f}")
    accuracy = row["accuracy"]
    sd = f" ± {100 * accuracy['sd']:.1f}" if accuracy and seeds > 1 else ""
    shown.append(f"{100 * accuracy['mean']:.1f}{sd}" if accuracy else "-")
    shown.append(f"{row['staleness']['mean']:.1f}" if row["staleness"] else "-")
    return shown


def _table(rows: list[list[str]], left_out: list[str]) -> Table:
    caption = "x: over the best entry"
    caption += "" if "stale" in left_out else "; stale: mean staleness"
    caption += f"; comparison.md has {', '.join(left_out)} too" if left_out else ""
    shown = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False, caption=caption)
    shown.add_column("entry", overflow="fold", min_width=_least(rows))
    kept = [n for n, heading in enumerate(HEADINGS, 1) if heading not in left_out]
    for n in kept:
        shown.add_column(HEADINGS[n - 1], justify="right", no_wrap=True)
    for row in rows:
        parts = [row[n] for n in (0, *kept)]
        shown.add_row(*("[red]failed[/]" if part == "failed" else escape(part) for part in parts))
    return shown


def _least(rows: list[list[str]]) -> int:
    """Characters of the entries' column: labels go on in the next line, words only if they are long."""
    return max(5, min(16, max((len(word) for row in rows for word in row[0].split()), default=0)))


def _needs(shown: Table, rows: list[list[str]]) -> int:
    """How wide a terminal must be for it."""
    labels = max((len(row[0]) for row in rows), default=0)
    return Console(width=1000).measure(shown).maximum - max(0, labels - _least(rows))


def show(table: dict[str, Any], console: Console) -> None:
    """In the terminal."""
    seeds = len(table["seeds"])
    said = f"mean ± sd over {seeds} seeds" if seeds > 1 else f"seed {table['seeds'][0]}"
    for target in table["targets"]:
        console.print(f"{table['title']}: to {target:.3g} accuracy, {said}", highlight=False, markup=False)
        rows = cells(table, target)
        left_out: list[str] = []
        shown = _table(rows, left_out)
        for heading in SPARED:  # a number that is cut off would be a wrong one
            if _needs(shown, rows) > console.width:
                left_out.append(heading)
                shown = _table(rows, left_out)
        console.print(shown)
        for sentence in table["sentences"][str(target)]:
            console.print(sentence, highlight=False, markup=False)
    for line in _tuning(table):
        console.print(line, highlight=False, markup=False)
    for row in table["rows"]:
        for error in dict.fromkeys(row["failed"]):
            console.print(f"{row['entry']} failed: {error}", style="red", highlight=False, markup=False)


def _tuning(table: dict[str, Any]) -> list[str]:
    """What the settings had cost before the comparison began, where they were tuned."""
    if "tuning" not in table:
        return []
    entries = table["tuning"]["per_entry"].values()
    trips = sum(one["trips"] for one in entries)
    return [
        f"Tuned with {table['tuning']['trials']} trials an entry, {trips:,} client trips in all, which are "
        "not in the table."
    ]


def markdown(table: dict[str, Any]) -> str:
    """As Markdown."""
    lines = [f"# {table['title']}", "", f"Seeds: {', '.join(map(str, table['seeds']))}.", ""]
    for target in table["targets"]:
        head = headings(target)
        lines += ["| " + " | ".join(head) + " |", "| --- |" + " ---: |" * (len(head) - 1)]
        lines += ["| " + " | ".join(_escaped(cell) for cell in row) + " |" for row in cells(table, target)]
        lines += ["", *(f"- {_escaped(sentence)}" for sentence in table["sentences"][str(target)]), ""]
    lines += [f"{line}\n" for line in _tuning(table)]
    lines += [f"- {row['entry']} failed: {_escaped(e)}" for row in table["rows"] for e in row["failed"]]
    return "\n".join(lines).rstrip() + "\n"


def _escaped(cell: str) -> str:
    return cell.replace("|", "\\|").replace("\n", " ")


def comma_separated(table: dict[str, Any]) -> str:
    """As CSV: a line for each entry and target, numbers in full."""
    text = io.StringIO()
    names = ("trips", "steps", "time", "bytes")
    head = ["entry", "target", "reached", "seeds"]
    head += [f"{name}_{part}" for name in names for part in ("mean", "sd")]
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow([*head, "accuracy_mean", "accuracy_sd", "staleness_mean", "error"])
    for row in table["rows"]:
        for target in table["targets"]:
            at = row.get("targets", {}).get(str(target), {})
            spreads = [at.get(name) or {} for name in names]
            spreads += [row.get("accuracy") or {}]
            values = [spread.get(part, "") for spread in spreads for part in ("mean", "sd")]
            stale = (row.get("staleness") or {}).get("mean", "")
            line = [row["entry"], target, at.get("reached", ""), len(table["seeds"]), *values, stale]
            writer.writerow([*line, "; ".join(row["failed"])])
    return text.getvalue()


def latex(table: dict[str, Any]) -> str:
    """As LaTeX (booktabs)."""
    lines = []
    for target in table["targets"]:
        head = headings(target)
        lines += [r"\begin{tabular}{l" + "r" * (len(head) - 1) + "}", r"\toprule"]
        lines += [" & ".join(map(_tex, head)) + r" \\", r"\midrule"]
        lines += [" & ".join(map(_tex, row)) + r" \\" for row in cells(table, target)]
        lines += [r"\bottomrule", r"\end{tabular}", ""]
    return "\n".join(lines)


def _tex(cell: str) -> str:
    return "".join(TEX.get(character, character) for character in cell)
