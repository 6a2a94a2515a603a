"""Charts of the numbers in step events over versions, such as epsilon."""

from __future__ import annotations

import numpy as np

from tardigrad.experiments.report.chart import Chart, curves_panel, draw_band, label_ends, numbered, slug
from tardigrad.experiments.report.interactive import ChartSpec, line
from tardigrad.experiments.report.sources import Series

POINTS = 400
NAMES = {"epsilon": "epsilon spent", "least_squares_error": "least-squares error"}


def told(entries: list[Series]) -> list[str]:
    """Return the names of the numbers in step events, in a fixed order."""
    names = {name for entry in entries for run in entry.runs for name in run.record.steps}
    return sorted(names - {"version", "time"})


def step_chart(entries: list[Series], name: str) -> Chart | None:
    """Return a chart of one such number over versions; None if it never changes."""
    ends, last = [], {}
    words = NAMES.get(name, name.replace("_", " "))
    spec = ChartSpec(kind="lines", x="version", y=words, whole=True, lines=[])
    with curves_panel(len(entries)) as (figure, axis):
        for number, entry in enumerate(entries):
            own = [run.record.steps for run in entry.runs if name in run.record.steps]
            own = [steps for steps in own if np.isfinite(steps[name]).sum() > 1]
            if not own:
                continue
            upper = min(steps["version"][-1] for steps in own)
            grid = np.linspace(1.0, upper, int(min(upper, POINTS)))
            rows = []
            for steps in own:
                known = np.isfinite(steps[name])
                rows.append(np.interp(grid, steps["version"][known], steps[name][known]))
            values = np.stack(rows)
            mean = values.mean(axis=0)
            draw_band(axis, grid, values, number)
            spec["lines"].append(line(entry.label, number, grid, values))
            ends.append((float(grid[-1]), float(mean[-1]), number, entry.label))
            last[number] = (float(mean.min()), float(mean.max()), float(mean[-1]))
        if not ends or all(low == high for low, high, _ in last.values()):
            return None
        axis.set_xlabel("version")
        axis.set_ylabel(words)
        axis.set_xlim(left=0)
        if all(low >= 0 for low, _, _ in last.values()):
            axis.set_ylim(bottom=0)
            spec["zero"] = True
        numbered(axis, whole=True)
        label_ends(axis, ends)
    found = "; ".join(f"{entries[number].label} ends at {end:.3g}" for number, (_, _, end) in last.items())
    return Chart(f"step-{slug(name)}", words.capitalize(), f"{found}.", figure, spec=spec)
