"""The outcome of one run, read from its folder: its curve, and when it reached which target."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, get_args

from tardigrad.core.event_log import read_events
from tardigrad.core.events import Event, ModelEvaluated, ModelMoved, RunEnded, RunStarted, UploadReceived
from tardigrad.core.metric import ACCURACY, Metric
from tardigrad.errors import RunError
from tardigrad.experiments.compare.time_split import TimeSplit, TripTimeSum
from tardigrad.experiments.runs.run_folder import RunFolder
from tardigrad.learning.heads.baseline import Baseline

Cost = Literal["trips", "steps", "time", "bytes"]
"""The costs of reaching a target that are counted."""
COSTS: tuple[Cost, ...] = get_args(Cost)

NOT_FINISHED = "not finished"
STOPPED = "stopped"
DIED = "its process died (out of memory?); run it again to go on"
DAMAGED = "is damaged or gone, though the run has finished; delete its folder"


def unfinished(error: str) -> bool:
    """Return whether the error of a run says that it was not made to its end, or that its record is lost;
    otherwise the run itself failed, such as by divergence."""
    return error in (NOT_FINISHED, STOPPED, DIED) or error.endswith(DAMAGED)


@dataclass(frozen=True)
class Point:
    """One evaluation."""

    trips: float
    steps: float
    time: float
    bytes: float
    value: float
    """The value of the metric that the run is judged by."""
    bytes_up: float | None = None
    """The bytes of uploads; the rest of `bytes` are downloads. None in runs of earlier versions."""

    def cost(self, name: str) -> float:
        """Return the cost of this name, one of `COSTS`."""
        value: float = getattr(self, name)
        return value


@dataclass(frozen=True)
class Outcome:
    """One run of one entry."""

    label: str
    seed: int
    folder: Path
    summary: dict[str, Any] | None = None
    """None if the run failed or was stopped."""
    curve: list[Point] = field(default_factory=list)
    staleness: Counter[int] = field(default_factory=Counter)
    """The number of accepted uploads by staleness."""
    error: str | None = None
    uploads: Counter[str] = field(default_factory=Counter)
    """Accepted ones, by client."""
    least_squares_errors: list[float] = field(default_factory=list)
    """The errors of momentum approximation, by step."""
    metric: Metric = ACCURACY
    """The metric that the run is judged by."""
    split: TimeSplit | None = None
    """Where the time of trips went; None without a simulated network."""

    def reached(self, target: float) -> Point | None:
        """Return the first evaluation that is as good as the target or better, or None."""
        return next((point for point in self.curve if self.metric.reached(point.value, target)), None)

    def resolution(self, target: float, cost: Cost) -> float:
        """Return by how much the cost to the target is uncertain: its distance from the evaluation before, at
        which the target was not reached yet. Where the target was missed or reached at once, this is 0."""
        found = (n for n, point in enumerate(self.curve) if self.metric.reached(point.value, target))
        first = next(found, 0)
        return self.curve[first].cost(cost) - self.curve[first - 1].cost(cost) if first else 0.0

    @property
    def best(self) -> float:
        """The best value of all evaluations; NaN if there are none."""
        return self.metric.best((point.value for point in self.curve), default=math.nan)

    @property
    def baseline(self) -> Baseline | None:
        """The metrics of a model that ignores its input, if the run records them."""
        return self.summary.get("baseline") if self.summary else None

    @property
    def mean_staleness(self) -> float:
        """The mean over accepted uploads; 0 if there are none."""
        return sum(s * n for s, n in self.staleness.items()) / max(self.staleness.total(), 1)


def read_outcome(label: str, seed: int, folder: Path, error: str | None = None) -> Outcome:
    """Return the outcome of a run; without its curve if the run is not finished."""
    summary = RunFolder(folder).summary
    if summary is None:
        return Outcome(label, seed, folder, error=error or NOT_FINISHED)
    curve: list[Point] = []
    staleness: Counter[int] = Counter()
    uploads: Counter[str] = Counter()
    errors: list[float] = []
    whole, metric = False, ACCURACY
    times = TripTimeSum()
    up = summary.get("bytes_up")
    upload = None if up is None else up / max(summary["client_trips"], 1)  # all uploads have the same size
    for event in _record(folder):
        match event:
            case RunStarted():
                metric = Metric(event.metric, event.lower_is_better)
            case ModelEvaluated():
                value = event.metric(metric.name)
                if value is not None:
                    sent = None if upload is None else upload * event.trips
                    curve.append(Point(event.trips, event.version, event.time, event.bytes, value, sent))
            case UploadReceived():
                times.add(event)
                if event.accepted and event.staleness is not None:
                    staleness[event.staleness] += 1
                    uploads[str(event.client)] += 1
            case ModelMoved():
                least_squares_error = event.metric("least_squares_error")
                if least_squares_error is not None:
                    errors.append(least_squares_error)
            case RunEnded():
                whole |= event.trips == summary["client_trips"]
    if not whole:
        return Outcome(label, seed, folder, error=f"{folder / 'events.jsonl'} {DAMAGED}")
    split = times.split()
    return Outcome(label, seed, folder, summary, curve, staleness, error, uploads, errors, metric, split)


def _record(folder: Path) -> Iterator[Event]:
    """Iterate over the events up to the first that cannot be read."""
    try:
        yield from read_events(folder / "events.jsonl")
    except (OSError, RunError):
        return
