"""Charts of the staleness and the weights of uploads."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from tardigrad.core.plural import counted
from tardigrad.experiments.report.chart import SERIES, Chart, numbered, panel, percent, slug
from tardigrad.experiments.report.interactive import ChartLine, ChartSpec, short_numbers
from tardigrad.experiments.report.sources import Series

BARS = 40


def staleness_charts(entries: list[Series]) -> list[Chart]:
    """Return a histogram for each entry that has stale uploads."""
    charts = []
    for number, entry in enumerate(entries):
        stale = np.concatenate([run.record.trips.staleness[run.record.trips.accepted] for run in entry.runs])
        if not len(stale) or stale.max() == 0:
            continue
        counts = np.bincount(stale)
        wide = -(-len(counts) // BARS)
        shares = np.add.reduceat(counts, np.arange(0, len(counts), wide)) / len(stale)
        middle, high = np.quantile(stale, [0.5, 0.95], method="inverted_cdf")
        with panel() as (figure, axis):
            places = np.arange(len(shares), dtype=float) * wide + (wide - 1) / 2
            axis.bar(places, shares, width=0.88 * wide, color=SERIES[number % len(SERIES)])
            axis.set_xlabel("staleness (versions)")
            axis.set_ylabel("share of accepted uploads")
            percent(axis)
            numbered(axis, whole=True)
        says = f"Of the accepted uploads {counts[0] / len(stale):.0%} are fresh, "
        if middle > 0:
            says += f"half are at most {counted(int(middle), 'version')} old, "
        says += f"and 95 % are at most {counted(int(high), 'version')} old."
        spec = _bars("staleness (versions)", number, places, shares, wide)
        spec["whole"] = True
        charts.append(Chart(f"staleness-{number}-{slug(entry.label)}", entry.label, says, figure, spec=spec))
    return charts


def all_fresh(entries: list[Series]) -> list[str]:
    """Return the labels of entries that have uploads, none of them stale."""
    return [
        entry.label
        for entry in entries
        if any(run.record.trips.accepted.any() for run in entry.runs)
        and not any((run.record.trips.staleness > 0)[run.record.trips.accepted].any() for run in entry.runs)
    ]


def weight_charts(entries: list[Series]) -> list[Chart]:
    """Return a histogram for each entry whose uploads have different weights."""
    charts = []
    for number, entry in enumerate(entries):
        weights = np.concatenate([run.record.trips.weight[run.record.trips.accepted] for run in entry.runs])
        if not len(weights) or weights.min() == weights.max():
            continue
        counts, edges = np.histogram(weights, bins=BARS, range=(0, float(weights.max())))
        places, wide = (edges[:-1] + edges[1:]) / 2, float(edges[1])
        with panel() as (figure, axis):
            axis.bar(
                places, counts / len(weights), width=0.9 * wide, color=SERIES[number % len(SERIES)]
            )  # fmt: skip
            axis.set_xlabel("weight of an upload")
            axis.set_ylabel("share of accepted uploads")
            percent(axis)
            numbered(axis)
        says = (
            f"The median weight is {np.median(weights):.3g}; the lightest tenth of the accepted uploads "
            f"weigh {np.quantile(weights, 0.1):.3g} or less, the heaviest {weights.max():.3g}."
        )
        spec = _bars("weight of an upload", number, places, counts / len(weights), wide)
        charts.append(Chart(f"weights-{number}-{slug(entry.label)}", entry.label, says, figure, spec=spec))
    return charts


def _bars(x: str, number: int, places: Iterable[float], shares: Iterable[float], wide: float) -> ChartSpec:
    bars = ChartLine(
        label="share of accepted uploads",
        x=short_numbers(places),
        y=short_numbers(shares),
        colour=number % len(SERIES),
    )
    return ChartSpec(kind="bars", x=x, y="share of accepted uploads", percent=True, wide=wide, lines=[bars])
