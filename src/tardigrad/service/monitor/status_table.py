"""A run's status as a table in the terminal."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from itertools import islice

from rich import box
from rich.table import Table
from rich.text import Text

from tardigrad.service.monitor.explain import Explanation, shown_seconds
from tardigrad.service.monitor.logs import harmless
from tardigrad.service.monitor.progress_record import over_text, trips_per_second
from tardigrad.service.monitor.status import SILENT, Status

MOST_SEEN = 8
"""Clients that were seen last and are shown."""


def status_table(status: Status, before: Status | None = None, name: str = "") -> Table:
    """Return the status as a table. The rate is that since `before`, or of the whole run. `name`: of the run,
    if it is one of several."""
    title = Text(name, "bold") if name else None
    table = Table(box=box.SIMPLE, show_header=False, padding=(0, 2, 0, 0), title=title, title_justify="left")
    table.add_column(style="cyan", no_wrap=True)
    table.add_column()
    for name, text in rows(status, before):
        table.add_row(name, Text(text))  # not markup: it may contain text of clients
    return table


def rows(status: Status, before: Status | None) -> list[tuple[str, str]]:
    """Return the rows of the table: names and texts. Control characters of clients' text are escaped."""
    state = over_text(status.over, status.steps_waiting) if status.over else _going_on(status)
    if status.failed:
        state = f"failed: {status.failed}"
    silent = not status.ended and status.age > SILENT
    grave = (
        [] if silent or status.failed else [one for one in status.explained()[:1] if one.severity != "info"]
    )
    if silent:
        state = f"nothing was heard of the server for {status.age:.0f} s; is it running?"
    found = [
        ("run", harmless(state)),
        *(("why", harmless(one.sentence)) for one in grave),
        *([] if status.helper_away is None or status.ended else [("helper", _away(status.helper_away))]),
        ("time", f"{status.time:,.0f} s"),
        ("version", f"{status.version:,}"),
        ("trips", f"{status.trips:,}"),
        ("uploads a second", f"{pace(status, before):.2f}"),
        ("in flight", f"{status.in_flight:,}"),
        ("waiting", f"{status.waiting:,}"),
        ("staleness, mean", f"{status.staleness:.2f}"),
        ("given up", f"{status.given_up:,}"),
        ("uploads refused", _counts(status.uploads_refused)),
    ]
    if status.ejected:
        found.append(("ejected", ", ".join(harmless(name) for name in islice(status.ejected, MOST_SEEN))))
    if status.steps_discarded:
        found.append(("steps discarded", f"{status.steps_discarded:,} (the model stayed as it was)"))
    if status.metrics_dropped:
        found.append(("metrics dropped", f"{status.metrics_dropped:,}"))
    if status.requests_refused:
        found.append(("requests refused", _counts(status.requests_refused)))
    told = [f"{harmless(name)} {_number(value)}" for name, value in islice(status.metrics.items(), 8)]
    found.append(("last evaluation", ", ".join(told) or "none yet"))
    if status.last_seen:
        seen = [
            f"{harmless(name)} ({ago + status.age:.0f} s ago)"
            for name, ago in islice(status.last_seen.items(), MOST_SEEN)
        ]
        found.append(("seen last", ", ".join(seen)))
    return found


def explanation_lines(explanations: Iterable[Explanation]) -> list[str]:
    """Return explanations as lines of text: each sentence, since when, and below it what to do."""
    lines = []
    for one in explanations:
        since = "" if one.since is None else f" (for {shown_seconds(one.since)})"
        lines.append(f"{one.severity}: {harmless(one.sentence)}{since}")
        if one.remedy:
            lines.append(f"  {one.remedy}")
    return lines


def pace(status: Status, before: Status | None) -> float:
    """Return the uploads a second since `before`, or of the whole run."""
    if before is not None and status.written > before.written:
        return trips_per_second(status.trips - before.trips, status.written - before.written)
    return trips_per_second(status.trips, status.time)


def _going_on(status: Status) -> str:
    if status.paused_since is None:
        return "goes on"
    since = datetime.fromtimestamp(status.paused_since).strftime("%Y-%m-%d %H:%M:%S")
    return f"paused by {status.paused_by} since {since}; uploads of trips under way count"


def _away(seconds: float) -> str:
    return f"away since {seconds:,.0f} s; steps and uploads wait for it, and nothing is lost"


def _number(value: float | None) -> str:
    return "not finite" if value is None else f"{value:.4g}"


def _counts(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{harmless(name)}: {count:,}" for name, count in counts.items()) or "none"
