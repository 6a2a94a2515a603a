"""Driving a run of this process to its end: events, observers, snapshots and interruption."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Protocol

import torch
from torch import Tensor

from tardigrad.core.event_log import from_record, to_record
from tardigrad.core.events import Event, ModelEvaluated, RunEnded, evaluations
from tardigrad.experiments.config.schema import Config
from tardigrad.experiments.runs.assembly import Assembly
from tardigrad.experiments.runs.interrupt import Interrupt
from tardigrad.experiments.runs.private_run import Secrets, forget_secrets
from tardigrad.experiments.runs.result import Result, RunTotals
from tardigrad.experiments.runs.run_folder import RunFolder, Snapshot
from tardigrad.learning.profile import Profile

SHOW_SECONDS = 0.5
"""How often those who watch the run's folder see new events."""


class Observer(Protocol):
    """An object that is told the events of a run, such as a progress bar or a tracker."""

    def begin(self, config: Config, history: list[ModelEvaluated]) -> None:
        """Called once before the first event. `history`: the evaluations so far, if the run is resumed."""

    def see(self, events: list[Event]) -> None:
        """Called with the next events."""

    def end(self) -> None:
        """Called at the end of the run, also if it failed or was interrupted."""


class RunLoop(Protocol):
    """The loop of a run, such as the engine of a simulation."""

    time: float
    trips: int
    given_up: int
    bytes: int
    refused: Counter[str]

    @property
    def metrics(self) -> dict[str, float]:
        """The metrics of the last evaluation."""

    @property
    def version(self) -> int:
        """The version of the model."""

    def run(self) -> Iterator[list[Event]]:
        """Run, and yield all events; a snapshot can be taken between two lists of them."""

    def snapshot(self) -> tuple[dict[str, Tensor], Mapping[str, object]]:
        """Return everything that is needed to continue: tensors, and the rest as JSON."""

    def restore(self, tensors: dict[str, Tensor], document: Any) -> None:
        """Continue from a `snapshot()`."""


class DrivenRun(Protocol):
    """A run that is put together and ready to be driven, such as a `Simulation`."""

    assembly: Assembly
    secrets: Secrets
    profile: Profile

    @property
    def engine(self) -> RunLoop:
        """The loop."""

    @property
    def model(self) -> Tensor:
        """The model that is evaluated and saved."""

    def worker_seconds(self) -> dict[str, float]:
        """Return the seconds that other processes have worked, by kind of work."""


class Drive:
    """One session of a run, from its beginning or from a snapshot."""

    def __init__(
        self,
        simulation: DrivenRun,
        folder: RunFolder | None = None,
        snapshot: Snapshot | None = None,
        snapshot_seconds: float = 30.0,
    ) -> None:
        """`folder`: where the run is recorded, which must be open for writing; None to keep it in memory."""
        self._simulation, self._engine, self._folder = simulation, simulation.engine, folder
        self._snapshot_seconds = snapshot_seconds
        self._history: list[ModelEvaluated] = []
        self._seconds_before = 0.0  # of earlier sessions
        self._stopped_by = ""
        if snapshot is not None:
            tensors, document = snapshot
            self._engine.restore(tensors, document["engine"])
            self._history = evaluations(map(from_record, document["history"]))
            self._seconds_before = document["wall_seconds"]
        self._trips_before = self._engine.trips

    def run(self, observers: tuple[Observer, ...] = ()) -> Result:
        """Run to the end and return the result; raise KeyboardInterrupt after a snapshot if interrupted."""
        if self._folder is not None:
            self._simulation.assembly.write_texts(self._folder)
        self._began = time.monotonic()
        for observer in observers:
            observer.begin(self._simulation.assembly.config, self._history)
        try:
            self._commit_all(observers)
        finally:
            for observer in observers:
                observer.end()
        return self._finish(time.monotonic() - self._began)

    def _commit_all(self, observers: tuple[Observer, ...]) -> None:
        profile = self._simulation.profile
        written, shown, cost = self._began, self._began, 0.0
        interrupted = Interrupt(wanted=self._folder is not None)
        for events in interrupted.watch(self._engine.run()):
            self._history += evaluations(events)
            if events and isinstance(events[-1], RunEnded):
                self._stopped_by = events[-1].reason
            with profile.part("record"):
                self._tell(events, observers)
            now = time.monotonic()
            if self._folder is not None and now - shown > SHOW_SECONDS:
                self._folder.flush()
                shown = now
            if now - written > max(self._snapshot_seconds, 20 * cost):
                with profile.part("snapshot"):
                    self.save()
                written = time.monotonic()
                cost = written - now
        if interrupted and not self._stopped_by:  # between two commits, where a snapshot is possible
            self.save()
            raise KeyboardInterrupt

    def _tell(self, events: list[Event], observers: tuple[Observer, ...]) -> None:
        if self._folder is not None:
            self._folder.record(events)
        try:
            for observer in observers:
                observer.see(events)
        except KeyboardInterrupt:  # an observer may ask to stop, too
            self.save()
            raise

    def save(self) -> None:
        """Write a snapshot, unless the run has ended: a resumed run would end a second time."""
        if self._folder is None or self._stopped_by:
            return
        tensors, document = self._engine.snapshot()
        elapsed = self._seconds_before + time.monotonic() - self._began
        rows = [to_record(evaluation) for evaluation in self._history]
        self._folder.snapshot(tensors, {"engine": document, "history": rows, "wall_seconds": elapsed})
        self._simulation.secrets.noise.forget()

    def _finish(self, seconds: float) -> Result:
        engine, assembly = self._engine, self._simulation.assembly
        totals = RunTotals(
            model=self._simulation.model,
            trips=engine.trips,
            version=engine.version,
            time=engine.time,
            bytes=engine.bytes,
            given_up=engine.given_up,
            refused=dict(engine.refused),
            metrics=engine.metrics,
            stopped_by=self._stopped_by,
        )
        rate = (engine.trips - self._trips_before) / max(seconds, 1e-9)
        profile = self._profile(seconds)
        result = assembly.result(totals, self._seconds_before + seconds, rate, profile, self._history)
        if self._folder is not None:
            self._folder.write("privacy.md", assembly.privacy_text(engine.version))
            self._folder.finish(result.model, result.summary())
            if assembly.guarantee is not None:
                forget_secrets(self._folder.path)
        return result

    def _profile(self, seconds: float) -> dict[str, float]:
        simulation = self._simulation
        if not simulation.profile.on:
            return {}
        parts = dict(simulation.profile.seconds)
        parts["other"] = max(0.0, seconds - sum(parts.values()))
        parts |= {f"workers: {name}": s for name, s in simulation.worker_seconds().items()}
        return {name: round(s, 3) for name, s in parts.items()}


@contextmanager
def one_thread() -> Iterator[None]:
    """Use one thread of torch: small batches are slower on several, and the bits depend on their number."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
