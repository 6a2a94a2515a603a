"""What one run came to, read from its folder: its curve, and when it reached which target."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tardigrad.core.event_log import read_events
from tardigrad.core.events import Event, ModelEvaluated, ModelMoved, RunEnded, UploadReceived
from tardigrad.errors import RunError
from tardigrad.experiments.runs.run_folder import RunFolder

COSTS = ("trips", "steps", "time", "bytes")
"""What it may have cost to reach a target."""


@dataclass(frozen=True)
class Point:
    """One evaluation."""

    trips: float
    steps: float
    time: float
    bytes: float
    accuracy: float

    def cost(self, name: str) -> float:
        """One of `COSTS`."""
        value: float = getattr(self, name)
        return value


@dataclass(frozen=True)
class Outcome:
    """One run of one entry."""

    label: str
    seed: int
    folder: Path
    summary: dict[str, Any] | None = None
    """Nothing, if the run failed or was stopped."""
    curve: list[Point] = field(default_factory=list)
    staleness: Counter[int] = field(default_factory=Counter)
    """Of accepted uploads."""
    error: str | None = None
    uploads: Counter[str] = field(default_factory=Counter)
    """Accepted ones, by client."""
    least_squares_errors: list[float] = field(default_factory=list)
    """Of momentum approximation, by step."""

    def reached(self, target: float) -> Point | None:
        """The first evaluation at or above the target."""
        return next((point for point in self.curve if point.accuracy >= target), None)

    @property
    def mean_staleness(self) -> float:
        """Of accepted uploads."""
        return sum(s * n for s, n in self.staleness.items()) / max(self.staleness.total(), 1)


def read_outcome(label: str, seed: int, folder: Path, error: str | None = None) -> Outcome:
    """The outcome of a run; without its curve if it is not finished."""
    summary = RunFolder(folder).summary
    if summary is None:
        return Outcome(label, seed, folder, error=error or "not finished")
    curve: list[Point] = []
    staleness: Counter[int] = Counter()
    uploads: Counter[str] = Counter()
    errors: list[float] = []
    whole = False
    for event in _record(folder):
        match event:
            case ModelEvaluated():
                accuracy = event.metric("accuracy")
                if accuracy is not None:
                    curve.append(Point(event.trips, event.version, event.time, event.bytes, accuracy))
            case UploadReceived(accepted=True, staleness=int(stale)):
                staleness[stale] += 1
                uploads[str(event.client)] += 1
            case ModelMoved():
                least_squares_error = event.metric("least_squares_error")
                if least_squares_error is not None:
                    errors.append(least_squares_error)
            case RunEnded():
                whole |= event.trips == summary["client_trips"]
    if not whole:
        damaged = (
            f"{folder / 'events.jsonl'} is damaged or gone, though the run has finished; delete its folder"
        )
        return Outcome(label, seed, folder, error=damaged)
    return Outcome(label, seed, folder, summary, curve, staleness, error, uploads, errors)


def _record(folder: Path) -> Iterator[Event]:
    """Iterate over the events up to the first that cannot be read."""
    try:
        yield from read_events(folder / "events.jsonl")
    except (OSError, RunError):
        return
