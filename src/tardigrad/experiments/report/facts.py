"""The tables of a report as HTML: costs, settings that differ, refusals, tuning. All text is escaped."""

from __future__ import annotations

import html
import itertools
import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import tomli_w

from tardigrad.core.events import ModelEvaluated, RunPosition
from tardigrad.experiments.compare.tables import attack_successes, cells, headings, time_splits
from tardigrad.experiments.compare.tabulate import ComparisonTable, metric_of
from tardigrad.experiments.report.sources import Series, Sources, time_of

CODE = re.compile("`([^`]+)`")


def table(head: Sequence[str], rows: Iterable[Sequence[str]], words: bool = False) -> str:
    """Return a table that can be scrolled. `words`: its columns are texts, not numbers."""
    top = "".join(f"<th>{html.escape(cell)}</th>" for cell in head)
    body = "".join(
        "<tr>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in row) + "</tr>" for row in rows
    )
    kind = " class='words'" if words else ""
    return f"<div class='wide'><table{kind}><thead><tr>{top}</tr></thead><tbody>{body}</tbody></table></div>"


def paragraph(text: str, kind: str = "") -> str:
    """Return a paragraph of escaped text."""
    return f"<p{f' class={kind!r}' if kind else ''}>{html.escape(text)}</p>"


def items(lines: Iterable[str], kind: str = "") -> str:
    """Return a list of escaped lines, or an empty text if there are none. `Backticks` mark code."""
    texts = (CODE.sub(r"<code>\1</code>", html.escape(line)) for line in lines)
    inside = "".join(f"<li>{text}</li>" for text in texts)
    return f"<ul{f' class={kind!r}' if kind else ''}>{inside}</ul>" if inside else ""


def comparison(found: ComparisonTable) -> str:
    """Return the tables of a comparison, one for each target, with the sentences on them, and what failed."""
    seeds = len(found["seeds"])
    said = f"mean ± standard deviation over {seeds} seeds" if seeds > 1 else f"seed {found['seeds'][0]}"
    parts, metric = [], metric_of(found)
    for target in found["targets"]:
        parts.append(paragraph(f"What it cost to reach {metric} {target:.3g}: {said}."))
        parts.append(table(headings(target, metric), cells(found, target)))
        parts.append(items(found["sentences"].get(str(target), [])))
        parts.append(items(found.get("missed", {}).get(str(target), [])))
    parts.append(items([*time_splits(found), *attack_successes(found)]))
    failed = [f"{row['entry']} failed: {error}" for row in found["rows"] for error in row["failed"]]
    return "".join(parts) + items(failed, "failed")


def runs(entries: list[Series]) -> str:
    """Return a table with a row for each run."""
    metrics = list(dict.fromkeys(entry.metric for entry in entries if entry.metric.name != "loss"))
    shown = [f"{metric}{', %' if metric.percent else ''}" for metric in metrics]
    time = time_of(entries).replace("seconds", "time served")  # another column has the seconds of computing
    head = [
        "run", "seed", "client trips", "steps", time, "MB up", "MB down", *shown, "loss",
        "mean staleness",
        "epsilon", "network", "stopped by", "seconds",
    ]  # fmt: skip
    rows = []
    for entry in entries:
        for run in entry.runs:
            record, summary = run.record, run.summary or {}
            last = record.evaluations[-1] if record.evaluations else ModelEvaluated(*RunPosition())
            values, loss = [(m, last.metric(m.name)) for m in metrics], last.metric("loss")
            stale = record.trips.staleness[record.trips.accepted]
            counts: dict[str, float] = {
                "client_trips": last.trips, "steps": last.version,
                "virtual_time": record.time, "bytes": last.bytes,
            }  # fmt: skip
            counts |= {name: summary[name] for name in counts if name in summary}
            rows.append(
                [
                    entry.label,
                    str(run.settings.get("seed", "-")),
                    f"{counts['client_trips']:,}",
                    f"{counts['steps']:,}",
                    f"{counts['virtual_time']:,.1f}",
                    *_megabytes(counts["bytes"], summary.get("bytes_up")),
                    *("-" if v is None else f"{100 * v:.1f}" if m.percent else f"{v:.4g}" for m, v in values),
                    "-" if loss is None else f"{loss:.3g}",
                    f"{stale.mean():.1f}" if len(stale) else "-",
                    _epsilon(summary),
                    "-" if record.split is None else f"{record.split.download + record.split.upload:.0%}",
                    record.ended or "not finished",
                    f"{summary['wall_seconds']:,.1f}" if "wall_seconds" in summary else "-",
                ]
            )
    columns = [n for n in range(len(head)) if any(row[n] != "-" for row in rows)]
    return table([head[n] for n in columns], [[row[n] for n in columns] for row in rows])


def _megabytes(both: float, up: float | None) -> list[str]:
    """Return the megabytes of uploads and of downloads; only their sum if the parts are not known."""
    if up is None:
        return ["-", f"{both / 1e6:,.1f} (both ways)"]
    return [f"{up / 1e6:,.1f}", f"{(both - up) / 1e6:,.1f}"]


def _epsilon(summary: Mapping[str, Any]) -> str:
    if summary.get("epsilon") is None:
        return "-" if summary.get("privacy_void") is None else "void"
    return f"{summary['epsilon']:.3g}" + ("" if summary.get("privacy_void") is None else " (void)")


def refusals(entries: list[Series]) -> str:
    """Return a table of how many trips counted and why the others did not; empty if all counted."""
    totals = {entry.label: _fate(entry) for entry in entries}
    reasons = list(
        dict.fromkeys(reason for fate in totals.values() for reason in fate if reason != "counted")
    )
    if not reasons:
        return ""
    head = ["entry", "trips that ended", "counted", *reasons]
    rows = []
    for entry in entries:
        fate = totals[entry.label]
        ended = sum(len(run.record.trips) for run in entry.runs)
        shares = (
            f"{fate[name]:,} ({fate[name] / max(ended, 1):.1%})" if fate[name] else "0" for name in head[3:]
        )
        rows.append([entry.label, f"{ended:,}", f"{fate['counted']:,}", *shares])
    return table(head, rows)


def _fate(entry: Series) -> Counter[str]:
    fate: Counter[str] = Counter()
    for run in entry.runs:
        trips = run.record.trips
        fate["counted"] += int(trips.accepted.sum())
        for reason, count in run.record.refused.items():
            fate[f"refused: {reason}"] += count
        for reason, count in run.record.turned_away.items():
            fate[f"not let start: {reason}"] += count
        if trips.gave_up.any():
            fate["gave up"] += int(trips.gave_up.sum())
    return fate


def differences(entries: list[Series]) -> str:
    """Return a table of the settings in which entries differ; empty if they do not."""
    flat = {entry.label: flattened(entry.first.settings) for entry in entries}
    names = dict.fromkeys(itertools.chain.from_iterable(flat.values()))
    different = [
        name for name in names if name != "seed" and len({own.get(name) for own in flat.values()}) > 1
    ]
    seeds = {entry.label: [run.settings.get("seed") for run in entry.runs] for entry in entries}
    rows = [[name, *(flat[entry.label].get(name, "–") for entry in entries)] for name in different]
    if len({str(own) for own in seeds.values()}) > 1:
        rows.insert(0, ["seed", *(", ".join(map(str, seeds[entry.label])) for entry in entries)])
    return table(["setting", *(entry.label for entry in entries)], rows, words=True) if rows else ""


def configs(entries: list[Series]) -> str:
    """Return the full config of each entry, folded."""
    parts = []
    for entry in entries:
        seeds = ", ".join(str(run.settings.get("seed", "?")) for run in entry.runs)
        text = tomli_w.dumps({k: v for k, v in entry.first.settings.items() if k != "seed"})
        parts.append(
            f"<details><summary>All settings of {html.escape(entry.label)} (seed {html.escape(seeds)})"
            f"</summary><pre>{html.escape(text)}</pre></details>"
        )
    return "".join(parts)


def flattened(settings: Mapping[str, object], path: str = "") -> dict[str, str]:
    """Return settings by their dotted keys, as text.

    >>> flattened({"local": {"lr": 0.1, "epochs": 1}})
    {'local.lr': '0.1', 'local.epochs': '1'}
    """
    flat: dict[str, str] = {}
    for name, value in settings.items():
        key = f"{path}.{name}" if path else name
        if isinstance(value, dict):
            flat |= flattened(value, key)
        else:
            flat[key] = value if isinstance(value, str) else json.dumps(value, default=str)
    return flat


def tuning(sources: Sources) -> str:
    """Return a table of what tuning each entry cost; empty if that is not on record."""
    rows = []
    for folder, found in sources.tuning.items():
        for label, spent in found["per_entry"].items():
            trips = spent.get("trips")
            rows.append(
                [
                    folder,
                    str(label),
                    str(spent.get("trials", "-")),
                    f"{trips:,}" if isinstance(trips, int) else "-",
                ]
            )
    if not rows:
        return ""
    said = "Before these numbers, settings were tried out. So many trials, and client trips, went into each:"
    return paragraph(said) + table(["folder", "entry", "trials", "client trips spent"], rows)
