"""What the charts need of one run: its events read once, line by line, and kept as columns of numbers."""

from __future__ import annotations

from array import array
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tardigrad.errors import RunError
from tardigrad.experiments.directory import SCHEMA, Event, read_events

Numbers = NDArray[Any]

STEP_PLACES = ("event", "version", "trips", "time", "bytes", "training_loss")
"""What every step event has; the rest is what the algorithm and the budget tell."""


@dataclass(frozen=True)
class Trips:
    """All trips that ended, as columns, in the order of their ends."""

    start: Numbers
    end: Numbers
    start_version: Numbers
    staleness: Numbers
    """-1 where the trip ended without an upload."""
    weight: Numbers
    step: Numbers
    """The version that the upload helped to make; -1 where it did not count."""
    client: Numbers
    """An index into `clients` of the record."""
    gave_up: Numbers

    @property
    def accepted(self) -> Numbers:
        """Which of them counted."""
        return self.step >= 0

    def __len__(self) -> int:
        return len(self.end)


@dataclass(frozen=True)
class Record:
    """One run."""

    evaluations: list[Event]
    trips: Trips
    clients: list[int | str]
    """By name, those that were seen."""
    steps: dict[str, Numbers]
    """`version`, `time`, and every number that step events tell."""
    refused: Counter[str]
    """Uploads that did not count, by the reason."""
    turned_away: Counter[str]
    """Check-ins that were not granted, by the reason."""
    ended: str | None
    """Why the run stopped; nothing if it has not."""

    @property
    def time(self) -> float:
        """The virtual time that the run has come to."""
        ends = self.trips.end
        last = float(ends[-1]) if len(ends) else 0.0
        return max(last, self.evaluations[-1]["time"] if self.evaluations else 0.0)

    def curve(self, over: str, metric: str) -> Numbers:
        """Pairs of (cost so far, metric), of the evaluations that have it."""
        pairs = [(one[over], one[metric]) for one in self.evaluations if metric in one]
        return np.array(pairs, dtype=float).reshape(-1, 2)

    def contributions(self) -> Counter[int | str]:
        """Uploads that counted, by the client's name."""
        counts = np.bincount(self.trips.client[self.trips.accepted], minlength=len(self.clients))
        return Counter(dict(zip(self.clients, counts.tolist())))


def read_record(file: Path) -> Record:
    """Read the events of a run, finished or not; a RunError that names the file if they are damaged."""
    reader = _Reader()
    event: Event = {}
    try:
        for event in read_events(file):
            reader.take(event)
    except (KeyError, TypeError, ValueError) as error:
        raise RunError(
            f"{file}: the event {str(event)[:200]} is damaged ({type(error).__name__}: {error})"
        ) from None
    except OSError as error:
        raise RunError(f"{file}: cannot be read ({error})") from None
    if reader.schema != SCHEMA:
        raise RunError(f"{file}: its events have the schema {reader.schema}; {SCHEMA} can be read")
    return reader.record()


class _Reader:
    def __init__(self) -> None:
        self.schema: Any = None
        self._evaluations: list[Event] = []
        self._names: dict[int | str, int] = {}
        self._times = array("d")  # start, end, weight
        self._places = array("q")  # start version, staleness, step, client, gave up
        self._steps: dict[str, array[float]] = {"version": array("d"), "time": array("d")}
        self._refused: Counter[str] = Counter()
        self._turned_away: Counter[str] = Counter()
        self._ended: str | None = None

    def take(self, event: Event) -> None:
        match event["event"]:
            case "upload":
                self._upload(event)
            case "step":
                self._step(event)
            case "evaluation":
                self._evaluations.append({k: v for k, v in event.items() if v is not None})
            case "give_up":
                self._trip(event, weight=0.0, staleness=-1, step=-1, gave_up=1)
            case "turned_away":
                self._turned_away[event["reason"]] += 1
            case "start":
                self.schema = event["schema"]
            case "end":
                self._ended = event["reason"]

    def _upload(self, event: Event) -> None:
        if event["accepted"]:
            self._trip(event, event["weight"], event["staleness"], event["step"], gave_up=0)
        else:
            self._refused[event["reason"]] += 1
            if event["start_time"] is not None:  # else nobody knows of such a trip
                self._trip(event, weight=0.0, staleness=event["staleness"], step=-1, gave_up=0)

    def _trip(self, event: Event, weight: float, staleness: int, step: int, gave_up: int) -> None:
        client = self._names.setdefault(event["client"], len(self._names))
        self._times.extend((event["start_time"], event["time"], weight))
        self._places.extend((event["start_version"], staleness, step, client, gave_up))

    def _step(self, event: Event) -> None:
        made = len(self._steps["version"])
        for name, value in event.items():
            if name in ("version", "time") or (
                name not in STEP_PLACES and isinstance(value, int | float) and not isinstance(value, bool)
            ):
                column = self._steps.setdefault(name, array("d"))
                column.extend([float("nan")] * (made - len(column)))
                column.append(value)

    def record(self) -> Record:
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
        return Record(
            self._evaluations, trips, list(self._names), steps, self._refused, self._turned_away, self._ended
        )
