"""How much progress a command shows: none, the usual, or a line for everything that ends."""

from __future__ import annotations

from typing import Literal

from rich.console import Console

from tardigrad.core.events import Event, ModelEvaluated
from tardigrad.experiments.config.schema import Config

Verbosity = Literal["quiet", "normal", "verbose"]


class EvaluationLines:
    """Print a line for each evaluation of a run."""

    def __init__(self, console: Console) -> None:
        self._console = console

    def begin(self, config: Config, history: list[ModelEvaluated]) -> None:
        pass

    def see(self, events: list[Event]) -> None:
        for event in events:
            if isinstance(event, ModelEvaluated):
                metrics = (
                    f"{name} {value:.4g}"
                    for name in event.metrics
                    if (value := event.metric(name)) is not None
                )
                place = f"{event.trips:,} trips, version {event.version:,}, time {event.time:,.2f}"
                self._console.print(f"{place}: {', '.join(metrics)}", highlight=False, markup=False)

    def end(self) -> None:
        pass
