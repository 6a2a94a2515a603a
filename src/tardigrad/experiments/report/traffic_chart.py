"""Charts of clients at work over virtual time, and of trips against versions in a short window."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.lines import Line2D

from tardigrad.experiments.report.chart import (
    FRESH_TO_STALE,
    INK,
    MUTED,
    SERIES,
    Chart,
    numbered,
    panel,
    slug,
    thousands,
)
from tardigrad.experiments.report.interactive import ChartLine, ChartSpec, ChartTrip, short_numbers
from tardigrad.experiments.report.run_record import FloatArray, IntArray, RunRecord, Trips
from tardigrad.experiments.report.sources import Series

BINS = 240
ROWS = 40
"""Maximum number of trips in a timeline."""
MOST_VERSIONS = 24
"""Maximum number of versions that are marked in a timeline."""


class AtWork(NamedTuple):
    """For each bin of time: its beginning, and the number of clients at work."""

    begin: FloatArray
    fewest: IntArray
    most: IntArray
    mean: FloatArray


def at_work_charts(entries: list[Series]) -> list[Chart]:
    """Return a chart of clients at work for each entry's first seed, all with the same vertical axis."""
    found = {}
    for number, entry in enumerate(entries):
        trips = entry.first.record.trips
        if len(trips) > 1 and (end := _shown_until(entry.first.record)) > (begin := float(trips.start.min())):
            found[number] = (at_work(trips, begin, end), begin, end)
    top = max((float(one.most.max()) for one, _, _ in found.values()), default=0.0)
    charts = []
    for number, (one, begin, end) in found.items():
        colour = SERIES[number % len(SERIES)]
        with panel(height=210) as (figure, axis):
            axis.fill_between(
                one.begin, one.fewest, one.most, step="post", color=colour, alpha=0.3, linewidth=0
            )
            axis.step(one.begin, one.mean, where="post", color=colour, linewidth=1.4)
            axis.set_xlim(begin, end)
            axis.set_ylim(0, 1.08 * top)
            axis.set_xlabel(entries[number].time)
            axis.set_ylabel("clients at work")
            numbered(axis)
            numbered(axis, "y", whole=True)
        least, most = f"{one.fewest.min():,.0f}", f"{one.most.max():,.0f}"
        record = entries[number].first.record
        since = (
            f"From time {thousands(begin)} to {thousands(end)}"
            if begin > 0
            else f"Until time {thousands(end)}"
        )
        whole = "" if end > 0.9 * record.time else f" of {thousands(record.time)}"
        mean = f"{one.mean.mean():,.3g}"
        says = f"{since}{whole}, {mean} {'client is' if mean == '1' else 'clients are'} at work"
        says += " all the time." if least == most else f" on average, between {least} and {most}."
        label = entries[number].label
        bands = ChartLine(
            label="clients at work, mean",
            x=short_numbers(one.begin),
            y=short_numbers(one.mean),
            low=short_numbers(one.fewest),
            high=short_numbers(one.most),
            colour=number % len(SERIES),
        )
        spec = ChartSpec(
            kind="lines", x=entries[number].time, y="clients at work", zero=True, stepped=True, lines=[bands]
        )
        charts.append(Chart(f"at-work-{number}-{slug(label)}", label, says, figure, spec=spec))
    return charts


def _shown_until(record: RunRecord) -> float:
    """Return the end of the chart: after about twenty trips' time, so that single rounds are visible."""
    durations = record.trips.end - record.trips.start
    some = 20 * float(np.quantile(durations, 0.9)) or record.time
    return min(_known_until(record), float(record.trips.start.min()) + some)


def _known_until(record: RunRecord) -> float:
    """Return the time until which all trips are on record: trips under way at the end are not."""
    trips = record.trips
    if not len(trips):
        return 0.0
    return max(record.time / 2, record.time - float((trips.end - trips.start).max()))


def at_work(trips: Trips, begin: float, end: float, bins: int = BINS) -> AtWork:
    """Count the clients at work in bins from `begin`, the first trip's start, to `end`."""
    edges = np.linspace(begin, end, bins + 1)
    starts, ends = np.sort(trips.start), np.sort(trips.end)
    times = np.unique(np.concatenate([edges[:-1], starts[starts < end], ends[ends < end]]))
    count = np.searchsorted(starts, times, "right") - np.searchsorted(ends, times, "right")
    lasts = np.diff(times, append=end)
    first = np.searchsorted(times, edges[:-1])
    mean = np.add.reduceat(count * lasts, first) / ((end - begin) / bins)
    return AtWork(edges[:-1], np.minimum.reduceat(count, first), np.maximum.reduceat(count, first), mean)


def timeline_charts(entries: list[Series]) -> list[Chart]:
    """Return a chart of some trips in the middle of the run, for each entry's first seed."""
    charts = []
    for number, entry in enumerate(entries):
        record = entry.first.record
        durations = record.trips.end - record.trips.start
        if len(durations) < 3 or durations.max() <= 0:
            continue
        begin, end = _window(record, durations)
        trips = record.trips
        seen = np.flatnonzero((trips.end > begin) & (trips.start < end))
        if len(seen) < 3:
            continue
        some = seen[np.unique(np.linspace(0, len(seen) - 1, min(len(seen), ROWS)).astype(int))]
        some = some[np.lexsort((trips.end[some], trips.start[some]))]
        versions = record.steps["version"], record.steps["time"]
        marked = np.flatnonzero((versions[1] >= begin) & (versions[1] <= end))
        every = max(1, -(-len(marked) // MOST_VERSIONS))
        with panel(height=320) as (figure, axis):
            _draw_versions(axis, versions[0][marked[::every]], versions[1][marked[::every]])
            _draw_trips(axis, trips, some)
            axis.set_xlim(begin, end)
            axis.set_ylim(len(some) + 0.5, -1.5)
            axis.set_xlabel(entry.time)
            axis.set_ylabel(f"{len(some)} of {len(seen):,} trips" if len(seen) > len(some) else "trips")
            axis.set_yticks([])
            axis.grid(visible=False)
            numbered(axis)
        moved = "once" if len(marked) == 1 else f"{len(marked):,} times"
        moved += "" if every == 1 else f", of which every {every}th is marked"
        says = f"From time {thousands(begin)} to {thousands(end)} the model moved {moved}."
        spec = ChartSpec(
            kind="trips", x=entry.time, y="trips", trips=_trips(record, some),
            steps=[(float(versions[1][at]), float(versions[0][at])) for at in marked[::every]],
        )  # fmt: skip
        charts.append(Chart(f"timeline-{number}-{slug(entry.label)}", entry.label, says, figure, spec=spec))
    return charts


def _trips(record: RunRecord, some: IntArray) -> list[ChartTrip]:
    """Return trips as the browser draws them, by their ends."""
    trips = record.trips
    return [
        {
            "trip": int(at),
            "client": str(record.clients[int(trips.client[at])]),
            "start": float(trips.start[at]),
            "end": float(trips.end[at]),
            "from": int(trips.start_version[at]),
            "fate": "given up" if trips.gave_up[at] else "counted" if trips.accepted[at] else "refused",
            "staleness": None if trips.gave_up[at] else int(trips.staleness[at]),
        }
        for at in sorted(some.tolist(), key=lambda at: float(trips.end[at]))
    ]


def _window(record: RunRecord, durations: FloatArray) -> tuple[float, float]:
    """Return a window as long as two long trips, from the middle of the run."""
    length = 2 * float(np.quantile(durations, 0.9)) or float(durations.max())
    begin = max(0.0, min(record.time / 2, _known_until(record) - length))
    return begin, min(begin + length, record.time)


def _draw_versions(axis: Axes, versions: FloatArray, times: FloatArray) -> None:
    for time in times:
        axis.axvline(time, color=MUTED, linewidth=0.7, alpha=0.6)
    for place in np.unique(np.linspace(0, len(times) - 1, min(len(times), 5)).astype(int)):
        axis.annotate(
            f"v{versions[place]:.0f}", (times[place], 1), xycoords=("data", "axes fraction"), xytext=(0, 2),
            textcoords="offset points", ha="center", fontsize=9, color=MUTED, annotation_clip=True,
        )  # fmt: skip


def _draw_trips(axis: Axes, trips: Trips, some: IntArray) -> None:
    stale = trips.staleness[some]
    most = max(int(stale[trips.accepted[some]].max(initial=0)), 1)
    for row, trip in enumerate(some.tolist()):
        start, end = trips.start[trip], trips.end[trip]
        if trips.gave_up[trip]:
            axis.plot([start, end], [row, row], color=MUTED, linewidth=1.6, linestyle=(0, (2, 2)))
        elif not trips.accepted[trip]:
            axis.plot([start, end], [row, row], color=INK, linewidth=1.2, linestyle=(0, (1, 1)))
            axis.plot([end], [row], marker="x", color=INK, markersize=5)
        else:
            colour = FRESH_TO_STALE(trips.staleness[trip] / most)
            axis.plot([start, end], [row, row], color=colour, linewidth=2.2, solid_capstyle="round")
            axis.plot([end], [row], marker="o", color=colour, markersize=3.5)
    handles = [Line2D([], [], color=FRESH_TO_STALE(0.0), linewidth=2.2, label="fresh")]
    if (stale > 0)[trips.accepted[some]].any():
        label = f"{most} version{'s' * (most > 1)} behind"
        handles.append(Line2D([], [], color=FRESH_TO_STALE(1.0), linewidth=2.2, label=label))
    if (~trips.accepted & ~trips.gave_up)[some].any():
        handles.append(Line2D([], [], color=INK, linewidth=1.2, linestyle=":", marker="x", label="refused"))
    if trips.gave_up[some].any():
        handles.append(Line2D([], [], color=MUTED, linewidth=1.6, linestyle="--", label="gave up"))
    axis.figure.legend(handles=handles, loc="outside lower center", ncols=len(handles), fontsize=9.5)
