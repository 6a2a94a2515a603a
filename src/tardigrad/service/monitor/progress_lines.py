"""Lines in the server's log that tell how the run proceeds."""

from __future__ import annotations

import asyncio
from itertools import islice
from typing import TYPE_CHECKING

from tardigrad.service.monitor.progress_record import RunProgress, progress_of, trips_per_second
from tardigrad.service.protocol.refusals import log

if TYPE_CHECKING:
    from tardigrad.service.server.coordinator import Coordinator
    from tardigrad.service.server.rpc import Servicer

LINE_SECONDS = 10.0
SHOWN_METRICS = 2


async def log_progress(coordinator: Coordinator, servicer: Servicer, seconds: float = LINE_SECONDS) -> None:
    """Log a line every few seconds until the run is over, or until cancelled."""
    before = progress_of(coordinator, servicer)
    while before.over is None:
        await asyncio.sleep(seconds)
        now = progress_of(coordinator, servicer)
        if now.over is None:
            log.info("%s", progress_line(now, before), extra={"event": "progress"})
        before = now


def log_end(progress: RunProgress) -> None:
    """Log that the run is over, and what it came to."""
    log.info("the run is over (%s): %s", progress.over, progress_line(progress), extra={"event": "over"})


def progress_line(progress: RunProgress, before: RunProgress | None = None) -> str:
    """Return the progress as one line of text. The rate is that since `before`, or of the whole run.

    >>> progress_line(RunProgress(version=3, trips=30, time=15.0, in_flight=8, metrics={"accuracy": 0.5}))
    'version 3, 30 trips, 2.0 trips/s, 8 in flight, staleness 0.0, accuracy 0.5'
    """
    trips, seconds = progress.trips, progress.time
    if before is not None:
        trips, seconds = trips - before.trips, seconds - before.time
    parts = [
        f"version {progress.version:,}",
        f"{progress.trips:,} trips",
        f"{trips_per_second(trips, seconds):,.1f} trips/s",
        f"{progress.in_flight:,} in flight",
        f"staleness {progress.staleness:.1f}",
    ]
    if progress.helper_away is not None:
        parts.insert(0, f"a helper is away since {progress.helper_away:,.0f} s")
    parts += [f"{name} {value:.4g}" for name, value in islice(progress.metrics.items(), SHOWN_METRICS)]
    return ", ".join(parts)
