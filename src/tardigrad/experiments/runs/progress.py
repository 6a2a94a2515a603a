"""Progress of a run: a bar on a terminal, plain lines elsewhere. Fed by the events alone."""

from __future__ import annotations

import time
from typing import Any

from rich.console import Console
from rich.progress import (
    BarColumn,
    Progress,
    SpinnerColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from tardigrad.core.events import Event, ModelEvaluated, ModelMoved, RunPosition, UploadReceived
from tardigrad.experiments.config.schema import Config

LINE_SECONDS = 10.0


class ProgressCounts:
    """Counts that every display needs."""

    def __init__(self, config: Config, history: list[ModelEvaluated]) -> None:
        self._stop = config.stop
        self._oracle = "ORACLE" if config.algorithm.oracle else ""
        last = history[-1] if history else ModelEvaluated(*RunPosition())
        self.trips, self.steps, self.time = last.trips, last.version, last.time
        self.accuracy = last.metric("accuracy")
        self.epsilon: float | None = None
        privacy = config.privacy
        self._void = "" if privacy is None or privacy.void(config.pace, config.buffer) is None else " (VOID)"
        self._staleness = 0.0
        self._accepted = 0
        self._began, self._first = time.monotonic(), self.trips

    def see(self, events: list[Event]) -> None:
        """Count these."""
        for event in events:
            match event:
                case UploadReceived():
                    self.trips += 1
                    self.time = event.time
                    if event.accepted:
                        self._accepted += 1
                        self._staleness += event.staleness or 0
                case ModelMoved():
                    self.steps = event.version
                    self.epsilon = event.metric("epsilon")
                case ModelEvaluated():
                    self.trips, self.time = event.trips, event.time
                    accuracy = event.metric("accuracy")
                    self.accuracy = self.accuracy if accuracy is None else accuracy

    @property
    def share(self) -> float:
        """How much of the run is done, by whichever limit is nearest."""
        stop = self._stop
        shares = [0.0]
        if stop.trips:
            shares.append(self.trips / stop.trips)
        if stop.steps:
            shares.append(self.steps / stop.steps)
        if stop.virtual_time:
            shares.append(self.time / stop.virtual_time)
        return min(max(shares), 1.0)

    def fields(self) -> dict[str, Any]:
        """What to show."""
        seconds = max(time.monotonic() - self._began, 1e-9)
        return {
            "trips": f"{self.trips:,} trips",
            "steps": f"{self.steps:,} steps",
            "rate": f"{(self.trips - self._first) / seconds:,.0f} trips/s",
            "accuracy": "" if self.accuracy is None else f"accuracy {self.accuracy:.1%}",
            "epsilon": "" if self.epsilon is None else f"epsilon {self.epsilon:.3g}{self._void}",
            "oracle": self._oracle,
            "staleness": f"staleness {self._staleness / max(self._accepted, 1):.1f}",
        }


class Bar:
    """A Rich progress bar."""

    def __init__(self, console: Console) -> None:
        names = ("trips", "steps", "rate", "accuracy", "staleness", "epsilon", "oracle")
        self._progress = Progress(
            SpinnerColumn(),
            BarColumn(bar_width=20),
            TextColumn("{task.percentage:>3.0f}%"),
            *(TextColumn(f"{{task.fields[{name}]}}") for name in names),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            console=console,
            transient=True,
        )
        self._shown = 0.0

    def begin(self, config: Config, history: list[ModelEvaluated]) -> None:
        self._tally = ProgressCounts(config, history)
        self._task = self._progress.add_task("", total=1.0, **self._tally.fields())
        self._progress.start()

    def see(self, events: list[Event]) -> None:
        self._tally.see(events)
        now = time.monotonic()
        if now - self._shown > 0.1:
            self._shown = now
            self._progress.update(self._task, completed=self._tally.share, **self._tally.fields())

    def end(self) -> None:
        self._progress.stop()


class Lines:
    """A line every few seconds, for logs."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._shown = 0.0

    def begin(self, config: Config, history: list[ModelEvaluated]) -> None:
        self._tally = ProgressCounts(config, history)
        self._shown = time.monotonic()

    def see(self, events: list[Event]) -> None:
        self._tally.see(events)
        now = time.monotonic()
        if now - self._shown > LINE_SECONDS:
            self._shown = now
            shown = ", ".join(text for text in self._tally.fields().values() if text)
            self._console.print(f"{self._tally.share:4.0%}  {shown}", highlight=False)

    def end(self) -> None:
        pass
