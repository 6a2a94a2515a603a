"""Events as lines of text."""

from __future__ import annotations

from typing import NamedTuple

from tardigrad.core.events import (
    CheckInRefused,
    Event,
    ModelEvaluated,
    ModelMoved,
    RunEnded,
    RunStarted,
    TripGivenUp,
    UploadReceived,
)
from tardigrad.core.metric import Metric

TEXT = 300
"""Characters of a line at most."""


class LogLine(NamedTuple):
    """One line."""

    time: float | None
    """The run's time."""
    warning: bool
    text: str


def log_line(event: Event) -> LogLine:
    """Return an event as one line.

    >>> log_line(RunEnded("trips", 20, 200, 3.5)).text
    'the run is over (trips)'
    """
    when, warning, text = _line(event)
    return LogLine(when, warning, text[:TEXT])


def _line(event: Event) -> tuple[float | None, bool, str]:
    match event:
        case RunStarted():
            return 0.0, False, f"the run started with seed {event.seed}"
        case ModelMoved():
            loss = "" if event.training_loss is None else f", training loss {event.training_loss:.4g}"
            if event.discarded:
                return event.time, True, f"version {event.version:,}: the step was discarded, not finite"
            return event.time, False, f"version {event.version:,} after {event.trips:,} trips{loss}"
        case ModelEvaluated():
            told = ", ".join(
                f"{Metric.named(name)} {Metric.named(name).shown(value)}"
                for name in list(event.metrics)[:4]
                if (value := event.metric(name)) is not None
            )
            who = f"{event.clients} clients evaluated" if event.federated else "evaluated"
            return event.time, False, f"{who} version {event.version:,}: {told}"
        case UploadReceived():
            return event.time, True, f"trip {event.trip:,} of {event.client}: refused, {event.reason}"
        case TripGivenUp():
            return event.time, True, f"trip {event.trip:,} of {event.client}: given up"
        case CheckInRefused():
            return event.time, True, f"{event.client}: no task, {event.reason}"
        case RunEnded():
            return event.time, False, f"the run is over ({event.reason})"
