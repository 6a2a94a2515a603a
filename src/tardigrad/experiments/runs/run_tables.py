"""The result of a run as a table in the terminal, and its curves as a picture; made from the events."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from tardigrad.core.event_log import read_events
from tardigrad.core.events import ModelEvaluated, RunStarted, UploadReceived
from tardigrad.core.metric import ACCURACY, Metric
from tardigrad.errors import ConfigError
from tardigrad.experiments.runs.progress import ProgressCounts
from tardigrad.experiments.runs.run_folder import OWN_CODE, SERVER_FILES, RunFolder

PICTURES = (".png", ".svg", ".pdf")
BLOCKS = " ▁▂▃▄▅▆▇█"


def show_summary(summary: Mapping[str, Any], console: Console, title: str = "", served: bool = False) -> None:
    """Print the summary of a run as a table. `served`: its time is not virtual."""
    console.print(summary_table(summary, title, served))


def summary_table(summary: Mapping[str, Any], title: str = "", served: bool = False) -> Table:
    """Return the summary of a run as a table for the terminal."""
    table = Table(title=escape(title) or None, show_header=False, title_justify="left")
    table.add_column(style="cyan")
    table.add_column()
    for name, text in summary_rows(summary, served):
        table.add_row(Text(name), Text(text))  # not markup: a client may have chosen the name of a metric
    return table


def summary_rows(summary: Mapping[str, Any], served: bool = False) -> list[tuple[str, str]]:
    """Return the summary of a run as names and texts."""
    rows = []
    for name, value in summary.items():
        if name in ("metrics", "profile", "baseline", "main"):
            continue
        if value in (None, False) and name in (
            "oracle", "epsilon", "privacy_void", "accuracy", "loss", "bytes_up",
        ):  # fmt: skip
            continue
        if name == "oracle":
            text = "yes: it used the simulated future, which no real run can"
        elif name == "epsilon" and summary.get("privacy_void"):
            text = f"{value:.4g} (VOID: this run is not private)"
        elif name == "accuracy":
            text = Metric.named(name).shown(value)  # in percent, as the baseline
        elif isinstance(value, float):
            text = f"{value:.4g}" if name != "virtual_time" else f"{value:,.2f}"
        elif isinstance(value, dict):
            text = ", ".join(f"{reason}: {count:,}" for reason, count in value.items()) or "none"
        else:
            text = f"{value:,}" if isinstance(value, int) else str(value)
        if name == "virtual_time" and served:
            name, text = "time_served", f"{text} s"
        rows.append((name.replace("_", " "), text))
    for name, value in summary.get("metrics", {}).items():
        if name not in summary:
            metric = Metric.named("accuracy" if "accuracy" in name else name)  # such as client_accuracy
            rows.append((name.replace("_", " "), "not finite" if value is None else metric.shown(value)))
    if summary.get("baseline"):
        rows.append(("baseline", _baseline_text(summary)))
    return rows


def _baseline_text(summary: Mapping[str, Any]) -> str:
    """Return what a model that ignores its input gets on the test set."""
    one, metric = summary["baseline"], Metric.named(summary.get("main", "accuracy"))
    value = one["metrics"].get(metric.name)
    texts = [f"{metric} {'no value' if value is None else metric.shown(value)}"]
    if metric != ACCURACY and "accuracy" in one["metrics"]:  # which people look at, too
        texts.append(f"{ACCURACY} {ACCURACY.shown(one['metrics']['accuracy'])}")
    return f"{', '.join(texts)}: {one['says']} (learned from {one['of']})"


def show_profile(seconds: dict[str, float], console: Console) -> None:
    """Print the time of a run by kind of work, for this process and for all workers together."""
    groups = {
        "this process": {n: s for n, s in seconds.items() if not n.startswith("workers: ")},
        "workers, together": {n.removeprefix("workers: "): s for n, s in seconds.items() if ": " in n},
    }
    for title, parts in groups.items():
        if not parts:
            continue
        table = Table(box=box.SIMPLE_HEAD, padding=(0, 2, 0, 0))
        table.add_column(title)
        table.add_column("seconds", justify="right")
        table.add_column("share", justify="right")
        table.add_column("")
        whole = sum(parts.values()) or 1.0
        for name, spent in sorted(parts.items(), key=lambda part: -part[1]):
            share = spent / whole
            table.add_row(name, f"{spent:,.2f}", f"{share:.1%}", "█" * round(30 * share))
        console.print(table)


def show_run(directory: Path, console: Console) -> None:
    """Print the result, its metric over time and the distribution of staleness of a run's folder."""
    events = _events(directory)
    counts, values = ProgressCounts(), []
    for event in read_events(events):
        counts.see([event])
        found = event.metric(counts.metric.name) if isinstance(event, ModelEvaluated) else None
        values += [] if found is None else [found]
    summary_file = directory / "summary.json"
    if summary_file.exists():
        summary = RunFolder(directory).summary or {}
        served = any((directory / file).exists() for file in SERVER_FILES)
        show_summary(summary, console, str(directory), served)
        if counts.trips < summary.get("client_trips", 0):
            console.print(
                f"{events}: ends after {counts.trips:,} of {summary['client_trips']:,} trips. Its end was "
                "lost, so that curves and counts of it are not of the whole run",
                highlight=False, markup=False,
            )  # fmt: skip
    else:
        again = "tardigrad serve" if (directory / "journal.sqlite").exists() else "tardigrad run ... --resume"
        console.print(
            f"{directory}: not finished; {counts.trips:,} trips so far, "
            f"refused: {dict(counts.refused) or 'none'}. Go on with: {again}",
            highlight=False,
            markup=False,
        )
    own = directory / OWN_CODE
    if own.exists():
        names = ", ".join(re.findall(r"^class (\w+)", own.read_text(), re.MULTILINE))
        console.print(f"own code   {names} ({own})", highlight=False, markup=False, soft_wrap=True)
    if values:
        metric = counts.metric
        ends = " to ".join(f"{v:.1%}" if metric.percent else f"{v:.4g}" for v in (values[0], values[-1]))
        console.print(f"{metric!s:<9}  {_spark(values)}  {ends}", highlight=False)
    if counts.staleness:
        top = max(counts.staleness)
        line = _spark([float(counts.staleness[s]) for s in range(top + 1)], floor=0.0)
        console.print(f"staleness  {line}  0 to {top}, mean {counts.mean_staleness:.2f}", highlight=False)


def plot_run(directory: Path, file: Path) -> None:
    """Draw a run's metric over trips and over virtual time, and the staleness of accepted uploads."""
    from tardigrad.experiments.compare.plot import Curve, draw_run

    curve: list[tuple[float, float, float]] = []
    staleness: list[int] = []
    metric = ACCURACY
    for event in read_events(_events(directory)):
        if isinstance(event, RunStarted):
            metric = Metric(event.metric, event.lower_is_better)
        elif isinstance(event, ModelEvaluated):
            value = event.metric(metric.name)
            if value is not None:
                curve.append((event.trips, event.time, value))
        elif isinstance(event, UploadReceived) and event.accepted and event.staleness is not None:
            staleness.append(event.staleness)
    if not curve:
        raise ConfigError(f"{directory}: no evaluation of {metric} yet, so there is nothing to draw")
    check_picture(file)
    found = (RunFolder(directory).summary or {}).get("baseline") or {"metrics": {}}
    value = found["metrics"].get(metric.name)
    baseline = None if value is None else (found["says"], value)
    draw_run(Curve(directory.name, [curve]), staleness, file, metric, baseline)


def check_picture(file: Path) -> None:
    """Raise a ConfigError if no picture can be written to this file."""
    if file.suffix.lower() not in PICTURES:
        raise ConfigError(f"{file}: a picture's name ends in {', '.join(PICTURES)}")
    if not file.parent.is_dir():
        raise ConfigError(f"{file}: there is no folder {file.parent}")


def _events(directory: Path) -> Path:
    file = directory / "events.jsonl"
    if not file.exists():
        raise ConfigError(f"{directory}: holds no run (there is no events.jsonl)")
    return file


def _spark(values: list[float], floor: float | None = None, width: int = 40) -> str:
    """Return the values as a line of block characters of different heights. Only the floor is blank."""
    if len(values) > width:
        values = [values[i * len(values) // width] for i in range(width - 1)] + [values[-1]]
    low = min(values) if floor is None else floor
    span = (max(values) - low) or 1.0
    heights = [round((value - low) / span * (len(BLOCKS) - 1)) for value in values]
    return "".join(
        " " if value == floor else BLOCKS[max(1, height)] for value, height in zip(values, heights)
    )
