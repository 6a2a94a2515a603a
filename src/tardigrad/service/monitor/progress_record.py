"""The progress of a served run: the one record from which `status.json`, the Prometheus metrics, the messages
of `Watch`, the lines in the log and the summary of the run are made.

Numbers that only one of them shows, such as the histograms of the metrics, are read from the counters there.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tardigrad.service.server.coordinator import Coordinator
    from tardigrad.service.server.rpc import Servicer


@dataclass(frozen=True, kw_only=True)
class RunProgress:
    """How far a served run has come. Counts are of the whole run unless they say otherwise.

    >>> RunProgress(trips=10, refused={"norm too large": 2}).accepted
    8
    """

    version: int = 0
    trips: int = 0
    """Trips that ended in an upload."""
    time: float = 0.0
    """Seconds for which the run has been served."""
    bytes: int = 0
    """Bytes of tasks and uploads, both ways."""
    in_flight: int = 0
    """Trips under way."""
    waiting: int = 0
    """Clients that wait for a task."""
    given_up: int = 0
    """Trips that were given up or expired."""
    refused: dict[str, int] = field(default_factory=dict)
    """Uploads that do not count, by reason."""
    metrics: dict[str, float] = field(default_factory=dict)
    """Metrics of the last evaluation: the central one, or else the clients' own; {} before the first."""
    steps_discarded: int = 0
    """Steps after which the model would not have been finite."""
    over: str | None = None
    """Why the run has ended; None while it goes on."""
    staleness: float = 0.0
    """Mean staleness of the uploads that this process accepted."""
    metrics_dropped: int = 0
    """Metrics of clients that this process did not take."""
    requests_refused: dict[str, int] = field(default_factory=dict)
    """Requests that this process refused, by cause."""
    helper_away: float | None = None
    """Seconds for which a helper of a secure run could not be reached; None if all are there."""

    @property
    def accepted(self) -> int:
        """Uploads that count."""
        return self.trips - sum(self.refused.values())


def progress_of(coordinator: Coordinator, servicer: Servicer) -> RunProgress:
    """Return the progress of a run as it is now. Must be called in the event loop's thread."""
    run_state, model_state, counters = coordinator.run_state, coordinator.model_state, coordinator.counters
    return RunProgress(
        version=run_state.book.version,
        trips=run_state.trips,
        time=coordinator.now if run_state.over is None else run_state.time,
        bytes=run_state.bytes,
        in_flight=len(run_state.book.in_flight),
        waiting=coordinator.waiting,
        given_up=run_state.given_up,
        refused=dict(run_state.refused),
        metrics=dict(model_state.metrics or run_state.reports.metrics),
        steps_discarded=model_state.discarded,
        over=run_state.over,
        staleness=counters.staleness.mean,
        metrics_dropped=counters.metrics_dropped,
        requests_refused=dict(servicer.refusals.counts),
        helper_away=None if coordinator.link is None else coordinator.link.away,
    )


def trips_per_second(trips: int, seconds: float) -> float:
    """Return how many trips ended in each second on average; 0 if no time has passed."""
    return trips / seconds if seconds > 0 else 0.0
