"""The record of one run for charts: its events, read once, as columns of numbers."""

from __future__ import annotations

from array import array
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from tardigrad.core.event_log import read_events
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
from tardigrad.core.metric import ACCURACY, Metric
from tardigrad.core.participation import ClientId
from tardigrad.errors import RunError
from tardigrad.experiments.compare.time_split import TimeSplit, TripTimeSum

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]
BoolArray = NDArray[np.bool_]


@dataclass(frozen=True)
class Trips:
    """All trips that ended, as columns, in the order of their ends."""

    start: FloatArray
    end: FloatArray
    start_version: IntArray
    staleness: IntArray
    """-1 if the trip ended without an upload."""
    weight: FloatArray
    step: IntArray
    """The version that the upload is part of; -1 if it did not count."""
    client: IntArray
    """An index into `clients` of the record."""
    gave_up: BoolArray

    @property
    def accepted(self) -> BoolArray:
        """Which of them counted."""
        counted: BoolArray = self.step >= 0
        return counted

    def __len__(self) -> int:
        return len(self.end)


@dataclass(frozen=True)
class RunRecord:
    """One run."""

    evaluations: list[ModelEvaluated]
    trips: Trips
    clients: list[ClientId]
    """The names of the clients that had a trip."""
    steps: dict[str, FloatArray]
    """`version`, `time`, and every number in the step events."""
    refused: Counter[str]
    """Uploads that did not count, by the reason."""
    turned_away: Counter[str]
    """Check-ins that were not granted, by the reason."""
    ended: str | None
    """Why the run stopped; None if it has not."""
    metric: Metric = ACCURACY
    """The metric that the run is judged by."""
    split: TimeSplit | None = None
    """Where the time of trips went; None without a simulated network."""

    @property
    def time(self) -> float:
        """The virtual time at the end of the run, or so far."""
        ends = self.trips.end
        last = float(ends[-1]) if len(ends) else 0.0
        return max(last, self.evaluations[-1].time if self.evaluations else 0.0)

    def curve(self, over: str, metric: str) -> FloatArray:
        """Return pairs of (cost so far, metric) of the evaluations that have the metric."""
        found = [(getattr(one, over), one.metric(metric)) for one in self.evaluations]
        pairs = [(cost, value) for cost, value in found if value is not None]
        return np.array(pairs, dtype=float).reshape(-1, 2)

    def contributions(self) -> Counter[ClientId]:
        """Return the number of uploads that counted, by the client's name."""
        counts = np.bincount(self.trips.client[self.trips.accepted], minlength=len(self.clients))
        return Counter(dict(zip(self.clients, counts.tolist())))


def read_record(file: Path) -> RunRecord:
    """Read the events of a run, finished or not. Raise a RunError with the file's name if it is damaged."""
    reader = _Reader()
    try:
        for event in read_events(file):
            reader.take(event)
    except OSError as error:
        raise RunError(f"{file}: cannot be read ({error})") from None
    if not reader.started:
        raise RunError(f"{file}: has no start event; the file is damaged")
    return reader.record()


class _Reader:
    def __init__(self) -> None:
        self.started = False
        self._evaluations: list[ModelEvaluated] = []
        self._names: dict[ClientId, int] = {}
        self._times = array("d")  # start, end, weight
        self._places = array("q")  # start version, staleness, step, client, gave up
        self._steps: dict[str, array[float]] = {"version": array("d"), "time": array("d")}
        self._refused: Counter[str] = Counter()
        self._turned_away: Counter[str] = Counter()
        self._ended: str | None = None
        self._metric = ACCURACY
        self._trip_times = TripTimeSum()

    def take(self, event: Event) -> None:
        match event:
            case UploadReceived():
                self._upload(event)
            case ModelMoved():
                self._step(event)
            case ModelEvaluated():
                self._evaluations.append(event)
            case TripGivenUp(client=client):
                self._times.extend((event.start_time, event.time, 0.0))
                self._places.extend((event.start_version, -1, -1, self._index(client), 1))
            case CheckInRefused():
                self._turned_away[event.reason] += 1
            case RunStarted():
                self.started = True
                self._metric = Metric(event.metric, event.lower_is_better)
            case RunEnded():
                self._ended = event.reason

    def _upload(self, event: UploadReceived) -> None:
        self._trip_times.add(event)
        if not event.accepted:
            self._refused[str(event.reason)] += 1
        start, version, staleness = event.start_time, event.start_version, event.staleness
        if start is None or version is None or staleness is None or event.client is None:
            return  # the upload of an unknown trip
        weight, step = (event.weight, event.step) if event.accepted else (0.0, None)
        self._times.extend((start, event.time, weight))
        self._places.extend((version, staleness, -1 if step is None else step, self._index(event.client), 0))

    def _index(self, client: ClientId) -> int:
        return self._names.setdefault(client, len(self._names))

    def _step(self, event: ModelMoved) -> None:
        made = len(self._steps["version"])
        told = {
            n: v for n, v in event.metrics.items() if isinstance(v, int | float) and not isinstance(v, bool)
        }
        for name, value in {"version": event.version, "time": event.time, **told}.items():
            column = self._steps.setdefault(name, array("d"))
            column.extend([float("nan")] * (made - len(column)))
            column.append(value)

    def record(self) -> RunRecord:
        times = np.array(self._times).reshape(-1, 3)
        places = np.array(self._places).reshape(-1, 5)
        start_version, staleness, step, client, gave_up = places.T
        trips = Trips(
            start=times[:, 0], end=times[:, 1], weight=times[:, 2], start_version=start_version,
            staleness=staleness, step=step, client=client, gave_up=gave_up.astype(bool),
        )  # fmt: skip
        made = len(self._steps["version"])
        steps = {
            name: np.append(np.array(column), [np.nan] * (made - len(column)))
            for name, column in self._steps.items()
        }
        return RunRecord(
            self._evaluations, trips, list(self._names), steps, self._refused, self._turned_away, self._ended,
            self._metric, self._trip_times.split(),
        )  # fmt: skip
