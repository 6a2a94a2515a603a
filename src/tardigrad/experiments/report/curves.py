"""Accuracy and loss over client trips, virtual time and bytes, with a band over seeds and the targets."""

from __future__ import annotations

import numpy as np

from tardigrad.experiments.report.chart import (
    MUTED,
    Chart,
    curves_panel,
    draw_band,
    label_ends,
    numbered,
    percent,
)
from tardigrad.experiments.report.run_record import FloatArray
from tardigrad.experiments.report.sources import Series

AXES = {"trips": "client trips", "time": "virtual time", "bytes": "megabytes sent, both ways"}
POINTS = 200

Curves = list[FloatArray]


def curve_charts(entries: list[Series], targets: list[float]) -> list[Chart]:
    """Return a chart for each metric and each cost. The reader chooses the cost."""
    charts = []
    for metric, words in (("accuracy", "test accuracy"), ("loss", "test loss")):
        for over in AXES:
            curves = {
                number: found
                for number, entry in enumerate(entries)
                if (found := _curves(entry, over, metric))
            }
            if curves:
                charts.append(_chart(entries, curves, metric, words, over, targets))
    return charts


def _curves(entry: Series, over: str, metric: str) -> Curves:
    """Return the curve of each seed that has more than one point."""
    scale = 1e-6 if over == "bytes" else 1.0
    curves = [run.record.curve(over, metric) * (scale, 1.0) for run in entry.runs]
    return [curve for curve in curves if len(curve) > 1 and curve[-1, 0] > 0]


def _chart(
    entries: list[Series], curves: dict[int, Curves], metric: str, words: str, over: str, targets: list[float]
) -> Chart:
    ends, last = [], {}
    with curves_panel(len(curves)) as (figure, axis):
        for number, own in curves.items():
            grid = np.linspace(0.0, min(curve[-1, 0] for curve in own), POINTS)
            values = np.stack([np.interp(grid, curve[:, 0], curve[:, 1]) for curve in own])
            mean = values.mean(axis=0)
            draw_band(axis, grid, values, number)
            ends.append((float(grid[-1]), float(mean[-1]), number, entries[number].label))
            last[number] = float(mean[-1])
        axis.set_xlim(left=0)
        axis.set_xlabel(AXES[over])
        axis.set_ylabel(words)
        numbered(axis)
        if metric == "accuracy":
            percent(axis)
            for target in targets:
                axis.axhline(target, color=MUTED, linewidth=1, linestyle=(0, (1, 2)))
                axis.annotate(
                    f"target {100 * target:.3g} %", (0, target), xycoords=("axes fraction", "data"),
                    xytext=(4, 3), textcoords="offset points", fontsize=9, color=MUTED,
                )  # fmt: skip
        else:
            firsts = [float(curve[0, 1]) for own in curves.values() for curve in own]
            axis.set_ylim(0, min(axis.get_ylim()[1], 1.3 * max(firsts)))
        label_ends(axis, ends)
    best = (max if metric == "accuracy" else min)(last, key=lambda number: last[number])
    end = f"{last[best]:.1%}" if metric == "accuracy" else f"{last[best]:.3g}"
    says = f"{entries[best].label} ends {'best, ' if len(last) > 1 else ''}at {end}"
    seeds = max(len(own) for own in curves.values())
    says += (
        f"; lines are means over seeds, bands reach from the lowest to the highest of {seeds}."
        if (seeds > 1)
        else "."
    )
    title = f"{words.capitalize()} over {AXES[over]}"
    return Chart(f"{metric}-{over}", title, says, figure, turn=AXES[over])
