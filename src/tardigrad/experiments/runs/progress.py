"""Progress of a run: counts of its events, shown as a bar on a terminal or as plain lines elsewhere."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from rich.console import Console
from rich.progress import (
    BarColumn,
    Progress,
    SpinnerColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from tardigrad.core.events import Event, ModelEvaluated, ModelMoved, RunStarted, TripGivenUp, UploadReceived
from tardigrad.core.metric import ACCURACY, Metric
from tardigrad.core.stop import Stop
from tardigrad.experiments.config.schema import Config

LINE_SECONDS = 10.0


@dataclass
class ProgressCounts:
    """Counts of the events of a run, from its beginning or from the last evaluation before it was resumed.

    >>> counts = ProgressCounts()
    >>> counts.see([ModelMoved(version=3, trips=30, time=1.5)])
    >>> counts.steps, counts.share(Stop(steps=12))
    (3, 0.25)
    """

    trips: int = 0
    """Trips that ended with an upload."""
    steps: int = 0
    time: float = 0.0
    given_up: int = 0
    refused: Counter[str] = field(default_factory=Counter)
    """Uploads that were refused, by reason."""
    staleness: Counter[int] = field(default_factory=Counter)
    """Uploads that were accepted, by staleness."""
    metric: Metric = ACCURACY
    """The metric that the run is judged by."""
    value: float | None = None
    """The value of this metric in the last evaluation that has it."""
    epsilon: float | None = None
    """Privacy loss so far, if privacy is promised."""

    def see(self, events: Iterable[Event]) -> None:
        """Count these events."""
        for event in events:
            match event:
                case UploadReceived():
                    self.trips += 1
                    self.time = event.time
                    if event.accepted:
                        self.staleness[event.staleness or 0] += 1
                    else:
                        self.refused[str(event.reason)] += 1
                case TripGivenUp():
                    self.given_up += 1
                case ModelMoved():
                    self.steps = event.version
                    self.epsilon = event.metric("epsilon")
                case ModelEvaluated():
                    self.trips, self.time = event.trips, event.time
                    self.steps = max(self.steps, event.version)
                    value = event.metric(self.metric.name)
                    self.value = self.value if value is None else value
                case RunStarted():
                    self.metric = Metric(event.metric, event.lower_is_better)

    @property
    def mean_staleness(self) -> float:
        """The mean staleness of accepted uploads, or 0 if there are none."""
        return sum(s * n for s, n in self.staleness.items()) / max(self.staleness.total(), 1)

    def share(self, stop: Stop) -> float:
        """Return the share of the run that is done, from 0 to 1, by the limit that is nearest."""
        shares = [0.0]
        if stop.trips:
            shares.append(self.trips / stop.trips)
        if stop.steps:
            shares.append(self.steps / stop.steps)
        if stop.virtual_time:
            shares.append(self.time / stop.virtual_time)
        return min(max(shares), 1.0)


class ProgressText:
    """The counts of a run as short texts."""

    def __init__(self, config: Config, history: list[ModelEvaluated]) -> None:
        """`history`: the evaluations so far, if the run is resumed."""
        self.counts = ProgressCounts(metric=config.evaluation.metric)
        self.counts.see(history[-1:])
        self._stop = config.stop
        self._oracle = "ORACLE" if config.algorithm.oracle else ""
        privacy = config.privacy
        self._void = "" if privacy is None or privacy.void(config.pace, config.buffer) is None else " (VOID)"
        self._began, self._trips_before = time.monotonic(), self.counts.trips

    @property
    def share(self) -> float:
        """The share of the run that is done, from 0 to 1."""
        return self.counts.share(self._stop)

    def fields(self) -> dict[str, str]:
        """Return the texts by name; a text is empty if it does not apply."""
        counts, seconds = self.counts, max(time.monotonic() - self._began, 1e-9)
        return {
            "trips": f"{counts.trips:,} trips",
            "steps": f"{counts.steps:,} steps",
            "rate": f"{(counts.trips - self._trips_before) / seconds:,.0f} trips/s",
            "metric": "" if counts.value is None else _metric_text(counts.metric, counts.value),
            "epsilon": "" if counts.epsilon is None else f"epsilon {counts.epsilon:.3g}{self._void}",
            "oracle": self._oracle,
            "staleness": f"staleness {counts.mean_staleness:.1f}",
        }


def _metric_text(metric: Metric, value: float) -> str:
    return f"{metric} {value:.1%}" if metric.percent else f"{metric} {value:.4g}"


class Bar:
    """An observer that shows a Rich progress bar."""

    def __init__(self, console: Console) -> None:
        names = ("trips", "steps", "rate", "metric", "staleness", "epsilon", "oracle")
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
        """Show the bar."""
        self._text = ProgressText(config, history)
        self._task = self._progress.add_task("", total=1.0)
        self._show()
        self._progress.start()

    def see(self, events: list[Event]) -> None:
        """Count these events and update the bar, at most ten times a second."""
        self._text.counts.see(events)
        now = time.monotonic()
        if now - self._shown > 0.1:
            self._shown = now
            self._show()

    def _show(self) -> None:
        self._progress.tasks[0].fields.update(self._text.fields())
        self._progress.update(self._task, completed=self._text.share)

    def end(self) -> None:
        """Remove the bar."""
        self._progress.stop()


class Lines:
    """An observer that prints a line every few seconds, for logs."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._shown = 0.0

    def begin(self, config: Config, history: list[ModelEvaluated]) -> None:
        """Begin to count."""
        self._text = ProgressText(config, history)
        self._shown = time.monotonic()

    def see(self, events: list[Event]) -> None:
        """Count these events and print a line if it is time."""
        self._text.counts.see(events)
        now = time.monotonic()
        if now - self._shown > LINE_SECONDS:
            self._shown = now
            shown = ", ".join(text for text in self._text.fields().values() if text)
            self._console.print(f"{self._text.share:4.0%}  {shown}", highlight=False)

    def end(self) -> None:
        """Print nothing more: the summary follows."""
