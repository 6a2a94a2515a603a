"""The table of a comparison as text: for the terminal, and as Markdown, CSV and LaTeX, from the same rows."""

from __future__ import annotations

import csv
import io

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from tardigrad.core.metric import ACCURACY, Metric
from tardigrad.core.plural import counted
from tardigrad.data.trigger import ATTACK_SUCCESS
from tardigrad.experiments.compare.outcome import COSTS, Cost
from tardigrad.experiments.compare.tabulate import (
    ComparisonRow,
    ComparisonTable,
    MeanAndSd,
    TargetRow,
    metric_of,
)
from tardigrad.experiments.compare.time_split import TimeSplit

TEX = {character: f"\\{character}" for character in "&%$#_{}"} | {
    "\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}",
    "±": r"$\pm$", ">": r"$>$", "<": r"$<$",
}  # fmt: skip
HEADINGS = (
    "trips",
    "trips\nratio",
    "time",
    "time\nratio",
    "steps",
    "MB up",
    "MB down",
    "at the end",
    "stale",
)
END = 1 + HEADINGS.index("at the end")
FULL = {
    "stale": "mean staleness",
    "MB down": "megabytes down",
    "MB up": "megabytes up",
    "steps": "steps",
}
OPTIONAL = tuple(FULL)
"""Columns that are left out in a narrow terminal, in this order."""


def headings(target: float, metric: Metric = ACCURACY) -> list[str]:
    """Return the headings of the columns for one target."""
    end = f"{metric} at the end{', %' if metric.percent else ''}"
    return [
        "entry", f"client trips to {target:.3g}", "trips / best", "virtual time", "time / best", "steps",
        "MB up", "MB down", end, "mean staleness",
    ]  # fmt: skip


def cells(table: ComparisonTable, target: float) -> list[list[str]]:
    """Return the rows for one target, as text."""
    names: tuple[Cost, ...] = ("trips", "time")
    best = {name: min(_means(table, target, name), default=None) for name in names}
    seeds, metric = len(table["seeds"]), metric_of(table)
    rows = [_cells(row, target, best, seeds, metric) for row in table["rows"]]
    if "baseline" in table:
        one = table["baseline"]
        rows.append([one["says"], *["-"] * 7, _value(one["value"], seeds, metric), "-"])
    return rows


def _means(table: ComparisonTable, target: float, name: Cost) -> list[float]:
    """Return the mean cost of each entry that reached the target with every seed."""
    rows = [row for row in table["rows"] if not row["failed"]]
    return [spread["mean"] for row in rows if (spread := row["targets"][str(target)][name]) is not None]


def _value(spread: MeanAndSd | None, seeds: int, metric: Metric) -> str:
    """Return the mean and deviation of a metric, in percent if it is a share."""
    if spread is None:
        return "-"
    if metric.percent:
        return f"{100 * spread['mean']:.1f}" + (f" ± {100 * spread['sd']:.1f}" if seeds > 1 else "")
    return f"{spread['mean']:.4g}" + (f" ± {spread['sd']:.2g}" if seeds > 1 else "")


def _cells(
    row: ComparisonRow, target: float, best: dict[Cost, float | None], seeds: int, metric: Metric
) -> list[str]:
    if row["failed"]:
        return [row["entry"], "failed", *[""] * 8]
    at = row["targets"][str(target)]
    shown = [row["entry"]]
    digits_of: dict[Cost, int] = {"trips": 0, "time": 1}
    for name, digits in digits_of.items():
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
    shown += _both_megabytes(at)
    shown.append(_value(row["accuracy"], seeds, metric))
    shown.append(f"{row['staleness']['mean']:.1f}" if row["staleness"] else "-")
    return shown


def _both_megabytes(at: TargetRow) -> list[str]:
    """Return the megabytes of uploads and of downloads."""
    both, up = at["bytes"], at.get("bytes_up")
    if both is None or up is None:
        return ["-", "-"]
    return [_megabytes(up["mean"]), _megabytes(both["mean"] - up["mean"])]


def _megabytes(size: float) -> str:
    """Return bytes as megabytes; a small number of them with two digits, because it is not 0."""
    return f"{size / 1e6:,.1f}" if size >= 1e5 or size == 0 else f"{size / 1e6:.2g}"


def _table(rows: list[list[str]], left_out: list[str], metric: Metric) -> Table:
    caption = "ratio: to the best entry"
    caption += "" if "stale" in left_out else "; stale: mean staleness"
    if left_out:  # in a narrow terminal
        caption += f"; in comparison.md also: {', '.join(FULL[name] for name in left_out)}"
    shown = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False, caption=caption)
    shown.add_column("entry", overflow="fold", min_width=_least(rows))
    kept = [n for n, heading in enumerate(HEADINGS, 1) if heading not in left_out]
    for n in kept:
        heading = f"{metric}{' %' if metric.percent else ''}" if n == END else HEADINGS[n - 1]
        shown.add_column(heading, justify="right", no_wrap=True)
    for row in rows:
        parts = [row[n] for n in (0, *kept)]
        shown.add_row(*("[red]failed[/]" if part == "failed" else escape(part) for part in parts))
    return shown


def _least(rows: list[list[str]]) -> int:
    """Return the least width of the entries' column: labels are wrapped, words only if they are long."""
    return max(5, min(16, max((len(word) for row in rows for word in row[0].split()), default=0)))


def _needs(shown: Table, rows: list[list[str]]) -> int:
    """Return how wide a terminal must be for the table."""
    labels = max((len(row[0]) for row in rows), default=0)
    return Console(width=1000).measure(shown).maximum - max(0, labels - _least(rows))


def show(table: ComparisonTable, console: Console) -> None:
    """Print the tables, one for each target, and what can be said of them."""
    seeds = len(table["seeds"])
    said = f"mean ± sd over {seeds} seeds" if seeds > 1 else f"seed {table['seeds'][0]}"
    metric = metric_of(table)
    for target in table["targets"]:
        console.print(f"{table['title']}: to {target:.3g} {metric}, {said}", highlight=False, markup=False)
        rows = cells(table, target)
        left_out: list[str] = []
        shown = _table(rows, left_out, metric)
        for heading in OPTIONAL:  # no number may be cut off
            if _needs(shown, rows) > console.width:
                left_out.append(heading)
                shown = _table(rows, left_out, metric)
        console.print(shown)
        for sentence in _sentences(table, target):
            console.print(sentence, highlight=False, markup=False)
    for line in (*_baseline(table), *time_splits(table), *attack_successes(table), *_tuning(table)):
        console.print(line, highlight=False, markup=False)
    for row in table["rows"]:
        for error in dict.fromkeys(row["failed"]):
            console.print(f"{row['entry']} failed: {error}", style="red", highlight=False, markup=False)


def _sentences(table: ComparisonTable, target: float) -> list[str]:
    """Return the sentences on differences, and on the entries that missed the target."""
    return [*table["sentences"][str(target)], *table.get("missed", {}).get(str(target), [])]


def _baseline(table: ComparisonTable) -> list[str]:
    """Return a sentence on where the last row of the table comes from, if it has a baseline."""
    if "baseline" not in table:
        return []
    one = table["baseline"]
    return [f"{one['says'].capitalize()}: learned from {one['of']}, evaluated on the test set, no training."]


def time_splits(table: ComparisonTable) -> list[str]:
    """Return a sentence on each entry that says where the time of its trips went, if it has a network."""
    return [
        f"{row['entry']}: {TimeSplit(*row['time_split']).sentence()}."
        for row in table["rows"]
        if "time_split" in row
    ]


def attack_successes(table: ComparisonTable) -> list[str]:
    """Return a sentence on each entry whose adversaries try a backdoor: how often it works at the end."""
    metric, seeds = Metric.named(ATTACK_SUCCESS), len(table["seeds"])
    return [
        f"{row['entry']}: the backdoor works on {_value(row['attack_success'], seeds, metric)} % of the test "
        "examples of other classes."
        for row in table["rows"]
        if "attack_success" in row
    ]


def _tuning(table: ComparisonTable) -> list[str]:
    """Return a sentence on the cost of tuning, if the settings were tuned."""
    if "tuning" not in table:
        return []
    entries = table["tuning"]["per_entry"].values()
    trials = counted(table["tuning"]["trials"], "trial")
    trips = counted(sum(one["trips"] for one in entries), "client trip")
    return [f"Tuned with {trials} an entry, {trips} in all, which are not in the table."]


def markdown(table: ComparisonTable) -> str:
    """Return the tables as Markdown."""
    lines = [f"# {table['title']}", "", f"Seeds: {', '.join(map(str, table['seeds']))}.", ""]
    for target in table["targets"]:
        head = headings(target, metric_of(table))
        lines += ["| " + " | ".join(head) + " |", "| --- |" + " ---: |" * (len(head) - 1)]
        lines += ["| " + " | ".join(_escaped(cell) for cell in row) + " |" for row in cells(table, target)]
        lines += ["", *(f"- {_escaped(sentence)}" for sentence in _sentences(table, target)), ""]
    lines += [
        f"{line}\n"
        for line in (*_baseline(table), *time_splits(table), *attack_successes(table), *_tuning(table))
    ]
    lines += [f"- {row['entry']} failed: {_escaped(e)}" for row in table["rows"] for e in row["failed"]]
    return "\n".join(lines).rstrip() + "\n"


def _escaped(cell: str) -> str:
    return cell.replace("|", "\\|").replace("\n", " ")


def comma_separated(table: ComparisonTable) -> str:
    """Return the tables as CSV: a line for each entry and target, with all digits."""
    text = io.StringIO()
    head = ["entry", "target", "reached", "seeds"]
    head += [f"{name}_{part}" for name in (*COSTS, "bytes_up") for part in ("mean", "sd")]
    writer = csv.writer(text, lineterminator="\n")
    name = metric_of(table).name
    writer.writerow([*head, f"{name}_mean", f"{name}_sd", "staleness_mean", "error"])
    for row in table["rows"]:
        for target in table["targets"]:
            at = row["targets"][str(target)] if "targets" in row else None
            spreads = [at[name] if at else None for name in COSTS]
            spreads += [at.get("bytes_up") if at else None, row.get("accuracy")]
            values = [part for one in spreads for part in ((one["mean"], one["sd"]) if one else ("", ""))]
            staleness = row.get("staleness")
            writer.writerow(
                [
                    row["entry"],
                    target,
                    at["reached"] if at else "",
                    len(table["seeds"]),
                    *values,
                    staleness["mean"] if staleness else "",
                    "; ".join(row["failed"]),
                ]
            )
    return text.getvalue()


def latex(table: ComparisonTable) -> str:
    """Return the tables as LaTeX (booktabs)."""
    lines = []
    for target in table["targets"]:
        head = headings(target, metric_of(table))
        lines += [r"\begin{tabular}{l" + "r" * (len(head) - 1) + "}", r"\toprule"]
        lines += [" & ".join(map(_tex, head)) + r" \\", r"\midrule"]
        lines += [" & ".join(map(_tex, row)) + r" \\" for row in cells(table, target)]
        lines += [r"\bottomrule", r"\end{tabular}", ""]
    return "\n".join(lines)


def _tex(cell: str) -> str:
    return "".join(TEX.get(character, character) for character in cell)
