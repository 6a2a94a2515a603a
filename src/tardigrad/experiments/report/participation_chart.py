"""Participation of clients and how they are served, in fifths by their speed and number of examples."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes

from tardigrad.core.metric import Metric
from tardigrad.experiments.report.chart import (
    MUTED,
    Chart,
    curves_panel,
    draw_band,
    label_ends,
    percent,
    style,
    thousands,
)
from tardigrad.experiments.report.population import Population
from tardigrad.experiments.report.run_record import FloatArray, IntArray
from tardigrad.experiments.report.sources import RunSource, Series

GROUPS = 5
KINDS = {
    "slowness": ("by speed", "the fastest fifth of the clients", "the slowest fifth of the clients"),
    "examples": (
        "by data",
        "the fifth of the clients with the fewest examples",
        "the fifth of the clients with the most examples",
    ),
}
Populations = dict[Path, Population]
Means = dict[int, FloatArray]
"""By entry: a row for each seed, a column for each group of clients."""


def participation_charts(entries: list[Series], populations: Populations) -> list[Chart]:
    """Return charts of accepted uploads of a client over the average, by speed and by number of examples."""
    charts = []
    for kind, (by, low, high) in KINDS.items():
        means = _means(entries, populations, kind, _contributions)
        if not means:
            continue
        with curves_panel(len(means)) as (figure, axis):
            axis.axhline(1.0, color=MUTED, linewidth=1, linestyle=(0, (1, 2)))
            _draw(axis, means)
            axis.set_ylim(bottom=0)
            axis.set_ylabel("accepted uploads of a client,\nover the average")
            _group_axis(axis, entries, populations, kind)
            _label(axis, means, entries)
        gaps = {number: own.mean(axis=0) for number, own in means.items()}
        worst = max(gaps, key=lambda number: float(np.abs(gaps[number][-1] - gaps[number][0])))
        says = (
            f"With {entries[worst].label} {high} contributes "
            f"{_times(gaps[worst][-1], gaps[worst][0])} {low}; 1 is everybody's fair share."
        )
        words = "speed of their devices" if kind == "slowness" else "number of examples"
        charts.append(Chart(f"participation-{by[3:]}", f"Who takes part, by {words}", says, figure))
    return charts


def uploads_by_client(entries: list[Series]) -> list[str]:
    """Return a sentence for each entry with so few clients that each can be named, on its first run."""
    said = []
    for entry in entries:
        counts = entry.first.record.contributions()
        if 1 < len(counts) < GROUPS:
            each = ", ".join(f"{name}: {count:,}" for name, count in counts.most_common())
            said.append(f"Accepted uploads of each client with {entry.label}, by name: {each}.")
    return said


def serving_charts(entries: list[Series], populations: Populations) -> list[Chart]:
    """Return charts of the final model's metric over clients, by speed and by number of examples."""
    charts = []
    metric = entries[0].metric
    entries = [entry for entry in entries if entry.metric == metric]
    if spread := _spread_chart(entries, populations, metric):
        charts.append(spread)
    for kind, (by, low, high) in KINDS.items():
        means = _means(entries, populations, kind, _values)
        if not means:
            continue
        with curves_panel(len(means)) as (figure, axis):
            _draw(axis, means)
            axis.set_ylabel(f"mean {metric} of the clients")
            if metric.percent:
                percent(axis)
            _group_axis(axis, entries, populations, kind)
            _label(axis, means, entries)
        gaps = {number: float(own.mean(axis=0)[-1] - own.mean(axis=0)[0]) for number, own in means.items()}
        worst = max(gaps, key=lambda number: abs(gaps[number]))
        more = "more" if gaps[worst] > 0 else "less"
        gap = f"{abs(100 * gaps[worst]):.1f} points" if metric.percent else f"{abs(gaps[worst]):.3g}"
        says = f"The largest gap is {entries[worst].label}'s: {high} has {gap} {more} {metric} than {low}."
        words = "fast against slow clients" if kind == "slowness" else "by number of examples"
        charts.append(Chart(f"client-accuracy-{by[3:]}", f"{_capital(metric)}, {words}", says, figure))
    return charts


def not_drawn(populations: Populations) -> list[str]:
    """Return sentences on the charts that are left out because they would show nothing."""
    said = []
    enough = [one for one in populations.values() if len(one.names) >= GROUPS]
    if populations and not enough:
        said.append(
            "There are fewer than five clients, so nothing is shown by fifths of the clients: neither by the "
            "speed of their devices nor by their number of examples."
        )
    if enough and not any(_differ(one, "slowness") for one in enough):
        said.append("All devices are about equally fast for good, so nothing is shown by speed.")
    if enough and not any(_differ(one, "examples") for one in enough):
        said.append(
            "All clients hold about equally many examples, so nothing is shown by number of examples."
        )
    return said


def _capital(metric: Metric) -> str:
    return str(metric)[0].upper() + str(metric)[1:]


def _spread_chart(entries: list[Series], populations: Populations, metric: Metric) -> Chart | None:
    ends, lowest = [], {}
    with curves_panel(len(entries)) as (figure, axis):
        for number, entry in enumerate(entries):
            found = [
                value
                for run in entry.runs
                if run.folder in populations
                for value in populations[run.folder].values
                if value is not None
            ]
            if len(found) < 2:
                continue
            shares = np.linspace(0, 1, 101)
            values = np.quantile(found, 1 - shares if metric.lower_is_better else shares)
            axis.plot(shares, values, **style(number))
            ends.append((1.0, float(values[-1]), number, entry.label))
            worst_first = np.sort(found)[::-1] if metric.lower_is_better else np.sort(found)
            lowest[number] = float(np.mean(worst_first[: max(1, len(found) // 10)]))
        if not ends:
            return None
        axis.set_xlim(0, 1)
        axis.set_xlabel("share of the clients, worst served first")
        axis.set_ylabel(f"{metric} on the client's examples")
        axis.xaxis.set_major_formatter("{x:.0%}")
        if metric.percent:
            percent(axis)
        label_ends(axis, ends)
    ranked = sorted(lowest, key=lambda n: metric.gain(0.0, lowest[n]))
    worst, best = ranked[0], ranked[-1]
    shown = {n: f"{v:.0%}" if metric.percent else f"{v:.3g}" for n, v in lowest.items()}
    says = f"The worst served tenth of the clients has {shown[best]} on average with {entries[best].label}"
    says += "." if worst == best else f", and {shown[worst]} with {entries[worst].label}."
    return Chart("client-accuracy", f"{_capital(metric)} over clients", says, figure)


def _contributions(run: RunSource, population: Population) -> FloatArray:
    """Return the accepted uploads of each client over the mean."""
    counts = run.record.contributions()
    own = np.array([counts[name] for name in population.names], dtype=float)
    return own / own.mean() if own.any() else np.full(len(own), np.nan)


def _values(run: RunSource, population: Population) -> FloatArray:
    return np.array([np.nan if one is None else one for one in population.values], dtype=float)


def _differ(population: Population, kind: str) -> bool:
    values = getattr(population, kind)
    return len(values) >= GROUPS and max(values) > 1.2 * min(values)


def _groups(population: Population, kind: str) -> list[IntArray]:
    """Return the clients in fifths, with the smallest values first."""
    return np.array_split(np.argsort(getattr(population, kind), kind="stable"), GROUPS)


def _means(
    entries: list[Series],
    populations: Populations,
    kind: str,
    what: Callable[[RunSource, Population], FloatArray],
) -> Means:
    found: Means = {}
    for number, entry in enumerate(entries):
        rows = []
        for run in entry.runs:
            population = populations.get(run.folder)
            if population is None or not _differ(population, kind):
                continue
            values = what(run, population)
            groups = [values[group] for group in _groups(population, kind)]
            if all(np.isfinite(group).any() for group in groups):
                rows.append([np.nanmean(group) for group in groups])
        if rows:
            found[number] = np.array(rows)
    return found


def _draw(axis: Axes, means: Means) -> None:
    for number, own in means.items():
        draw_band(axis, np.arange(GROUPS, dtype=float), own, number, marker="o")


def _label(axis: Axes, means: Means, entries: list[Series]) -> None:
    label_ends(
        axis,
        [(GROUPS - 1.0, float(own.mean(axis=0)[-1]), n, entries[n].label) for n, own in means.items()],
    )


def _group_axis(axis: Axes, entries: list[Series], populations: Populations, kind: str) -> None:
    """Label the horizontal axis with the range of values in each fifth, for the first entry."""
    population = next(
        populations[run.folder]
        for entry in entries
        for run in entry.runs
        if run.folder in populations and _differ(populations[run.folder], kind)
    )
    values = np.array(getattr(population, kind))
    ticks = []
    for group in _groups(population, kind):
        low, high = values[group].min(), values[group].max()
        ticks.append(f"{_short(low)}\nto {_short(high)}" if high > low else _short(low))
    axis.set_xticks(range(GROUPS), ticks)
    axis.set_xlabel("examples of a client" if kind == "examples" else "slowness of its device (1 is typical)")


def _short(value: float) -> str:
    return thousands(value) if value == int(value) else f"{value:.2g}"


def _times(a: float, b: float) -> str:
    return f"{a / b:.2f} times as often as" if b > 0 else "while nobody does in"
