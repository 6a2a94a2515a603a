"""Metrics and loss over client trips, virtual time and bytes, with a band over seeds, the targets, and the
baseline: what a model that ignores its input gets."""

from __future__ import annotations

import numpy as np
from matplotlib.axes import Axes

from tardigrad.core.metric import Metric
from tardigrad.data.trigger import ATTACK_SUCCESS
from tardigrad.experiments.report.chart import (
    MUTED,
    Chart,
    curves_panel,
    draw_band,
    label_ends,
    numbered,
    percent,
)
from tardigrad.experiments.report.interactive import ChartSpec, line
from tardigrad.experiments.report.run_record import FloatArray
from tardigrad.experiments.report.sources import RunSource, Series, time_of

AXES = {
    "trips": "client trips",
    "time": "virtual time",
    "bytes_up": "megabytes uploaded",
    "bytes_down": "megabytes downloaded",
    "bytes": "megabytes sent, both ways",
}
POINTS = 200

Curves = list[FloatArray]


def curve_charts(entries: list[Series], targets: dict[str, list[float]]) -> list[Chart]:
    """Return a chart for each metric and each cost: the metrics that the runs are judged by, those that their
    configs ask for, the success of an attack, and the loss. The reader chooses the cost. `targets`: by
    metric."""
    charts = []
    for metric in _metrics(entries):
        for over in AXES:
            curves = {
                number: found
                for number, entry in enumerate(entries)
                if (found := _curves(entry, over, metric.name))
            }
            if curves:
                charts.append(_chart(entries, curves, metric, over, targets.get(metric.name, [])))
    return charts


def _metrics(entries: list[Series]) -> list[Metric]:
    asked = [
        name for entry in entries for name in entry.first.settings.get("evaluation", {}).get("metrics", ())
    ]
    main = {entry.metric.name: entry.metric for entry in entries}
    others = {name: Metric.named(name) for name in (*asked, ATTACK_SUCCESS, "loss") if name not in main}
    return [*main.values(), *others.values()]


def _baseline(entries: list[Series], metric: Metric) -> tuple[str, float] | None:
    """Return what a model that ignores its input predicts, and the mean of what it gets; None if unknown."""
    found = [
        run.summary["baseline"]
        for entry in entries
        for run in entry.runs
        if run.summary is not None and run.summary.get("baseline")
    ]
    values = [one["metrics"][metric.name] for one in found if metric.name in one["metrics"]]
    return (str(found[0]["says"]), float(np.mean(values))) if values else None


def _curves(entry: Series, over: str, metric: str) -> Curves:
    """Return the curve of each seed that has more than one point."""
    curves = [_curve(run, over, metric) for run in entry.runs]
    return [curve for curve in curves if len(curve) > 1 and curve[-1, 0] > 0]


def _curve(run: RunSource, over: str, metric: str) -> FloatArray:
    """Return pairs of cost and metric; none where uploads and downloads were not told apart."""
    if not over.startswith("bytes"):
        return run.record.curve(over, metric)
    curve = run.record.curve("bytes", metric) * (1e-6, 1.0)
    if over == "bytes":
        return curve
    up = (run.summary or {}).get("bytes_up")
    if up is None:
        return curve[:0]
    uploads = run.record.curve("trips", metric)[:, 0]  # all uploads have the same size
    uploaded = uploads * up / max(float((run.summary or {})["client_trips"]), 1.0) * 1e-6
    curve[:, 0] = uploaded if over == "bytes_up" else curve[:, 0] - uploaded
    return curve


def _chart(
    entries: list[Series], curves: dict[int, Curves], metric: Metric, over: str, targets: list[float]
) -> Chart:
    ends, last = [], {}
    words, baseline = f"test {metric}", _baseline(entries, metric)
    x = time_of([entries[number] for number in curves]) if over == "time" else AXES[over]
    spec = ChartSpec(kind="lines", x=x, y=words, percent=metric.percent, lines=[], levels=[])
    with curves_panel(len(curves)) as (figure, axis):
        for number, own in curves.items():
            grid = np.linspace(0.0, min(curve[-1, 0] for curve in own), POINTS)
            values = np.stack([np.interp(grid, curve[:, 0], curve[:, 1]) for curve in own])
            mean = values.mean(axis=0)
            draw_band(axis, grid, values, number)
            spec["lines"].append(line(entries[number].label, number, grid, values))
            ends.append((float(grid[-1]), float(mean[-1]), number, entries[number].label))
            last[number] = float(mean[-1])
        axis.set_xlim(left=0)
        axis.set_xlabel(x)
        axis.set_ylabel(words)
        numbered(axis)
        if metric.percent:
            percent(axis)
        if metric.lower_is_better:
            firsts = [float(curve[0, 1]) for own in curves.values() for curve in own]
            axis.set_ylim(0, min(axis.get_ylim()[1], 1.3 * max(firsts)))
            spec["zero"], spec["top"] = True, axis.get_ylim()[1]
        for target in targets:
            shown = f"{100 * target:.3g} %" if metric.percent else f"{target:.4g}"
            _level(axis, target, f"target {shown}", (1, 2), metric.lower_is_better)
            spec["levels"].append({"value": target, "text": f"target {shown}"})
        if baseline is not None and metric.name != "loss":
            text = f"{baseline[0]}: {metric.shown(baseline[1])}"
            _level(axis, baseline[1], text, (6, 3), right=True)
            spec["levels"].append({"value": baseline[1], "text": text, "right": True})
        label_ends(axis, ends)
    best = (min if metric.lower_is_better else max)(last, key=lambda number: last[number])
    end = f"{last[best]:.1%}" if metric.percent else f"{last[best]:.3g}"
    says = f"{entries[best].label} ends {'best, ' if len(last) > 1 else ''}at {end}"
    seeds = max(len(own) for own in curves.values())
    says += (
        f"; lines are means over seeds, bands reach from the lowest to the highest of {seeds}."
        if (seeds > 1)
        else "."
    )
    title = f"{words[0].upper()}{words[1:]} over {x}"
    return Chart(f"{metric.name}-{over}", title, says, figure, turn=x, spec=spec)


def _level(axis: Axes, value: float, text: str, dashes: tuple[int, int], right: bool) -> None:
    """Draw a horizontal line with a text on it, at the right or left end: the one far from the curves."""
    end, side = (1, "right") if right else (0, "left")
    axis.axhline(value, color=MUTED, linewidth=1, linestyle=(0, dashes))
    axis.annotate(
        text, (end, value), xycoords=("axes fraction", "data"), xytext=(4 - 8 * end, 3),
        textcoords="offset points", ha=side, fontsize=9, color=MUTED,
    )  # fmt: skip
