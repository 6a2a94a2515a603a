"""The page's view of one run: its events so far, in bounded memory."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Mapping
from typing import NamedTuple

from tardigrad.core.events import (
    CheckInRefused,
    Event,
    ModelEvaluated,
    ModelMoved,
    RunEnded,
    RunPosition,
    RunStarted,
    TripGivenUp,
    UploadReceived,
)
from tardigrad.core.metric import ACCURACY, Metric
from tardigrad.service.monitor.status import Status
from tardigrad.watch.bounded_series import BoundedSeries
from tardigrad.watch.client_list import LONGEST_REASON, ClientList, bounded_reason

UPLOADS = 1000
"""Uploads whose staleness, weights and buffers are shown."""
TRIPS = 48
"""Trips in the picture of trips against versions."""
LINES = 60
"""Lines of the log."""
POINTS = 500
"""Points of a curve."""
PACE_SECONDS = 30.0
"""Seconds over which the trips a second are measured."""
SILENT = 30.0
"""Seconds without an event after which the page says so."""


class RefusedFor(NamedTuple):
    """How often something was refused for one reason."""

    times: int
    last: float | None
    """The run's time of the last one; None if it is not known."""


NEVER = RefusedFor(0, None)


class BufferFill(NamedTuple):
    """How full the buffer was after an upload."""

    trips: int
    fill: int


class WatchedRun:
    """One run. Its reader calls `take` with new events, and `tick` every time that it has looked for some."""

    def __init__(self, name: str, entry: str = "", seed: int | None = None) -> None:
        self.name = name
        self.entry = entry or name
        """The entry of a comparison that it belongs to; else its name."""
        self.seed = seed
        self.config: Mapping[str, object] = {}
        """The content of config.toml, if there is one."""
        self.status: Status | None = None
        """The status that its server wrote or sent last."""
        self.progress_only = False
        """Whether its server tells the progress alone, because the key is not an operator's."""
        self.problem = ""
        """Why nothing new is heard, in a sentence; empty if all is well."""
        self.reading = 1.0
        """The share of its events that was read, from 0 to 1."""
        self.damaged = 0
        """Lines of its events that could not be read."""
        self.disk: dict[str, int] = {}
        """Bytes on disk: free, and of the run's files."""
        self.begin()

    def begin(self) -> None:
        """Forget all events, because they are read from the beginning."""
        self.metric = ACCURACY
        self.position = RunPosition()
        self.started = False
        self.over: str | None = None
        self.evaluations = BoundedSeries[ModelEvaluated](POINTS)
        self.reports = BoundedSeries[ModelEvaluated](POINTS)
        """Evaluations by clients."""
        self.steps = BoundedSeries[ModelMoved](POINTS)
        self.last_steps: deque[tuple[float, int]] = deque(maxlen=POINTS)
        """Times and versions."""
        self.uploads: deque[UploadReceived] = deque(maxlen=UPLOADS)
        self.fills: deque[BufferFill] = deque(maxlen=UPLOADS)
        self.trips: deque[UploadReceived | TripGivenUp] = deque(maxlen=TRIPS)
        self.log: deque[Event] = deque(maxlen=LINES)
        self.refused: dict[str, dict[str, RefusedFor]] = {}
        """By what was refused (upload, check-in), by the reason."""
        self.given_up = 0
        self.accepted = 0
        self.staleness_sum = 0
        self.parts = {"download": 0.0, "compute": 0.0, "upload": 0.0, "trips": 0.0}
        """For a simulated network: the sums of the parts of trips, and the number of trips."""
        self.clients = ClientList()
        self._buffer = (0, 0)  # the version that is being filled, and its uploads
        self._pace: deque[tuple[float, RunPosition]] = deque()
        self.heard = time.time()
        """When something was heard of it last, in seconds since 1970."""

    # -- events ------------------------------------------------------------------------------------

    def take(self, events: list[Event]) -> None:
        """Add new events, in order."""
        for event in events:
            match event:
                case UploadReceived():
                    self._upload(event)
                case ModelMoved():
                    self._step(event)
                case ModelEvaluated():
                    self._evaluation(event)
                case TripGivenUp():
                    self.given_up += 1
                    self._move(time=event.time)
                    self.trips.append(event)
                    self.clients.take(event)
                    self.log.append(event)
                case CheckInRefused():
                    self._refuse("check-in", event.reason, event.time)
                    self.clients.take(event)
                    self.log.append(event)
                case RunStarted():
                    self.started = True
                    self.metric = Metric(event.metric, event.lower_is_better)
                    self.seed = event.seed
                    self.log.append(event)
                case RunEnded():
                    self.over = event.reason[:LONGEST_REASON]
                    self.position = RunPosition(event.version, event.trips, event.time, event.bytes)
                    self.log.append(event)

    def _upload(self, event: UploadReceived) -> None:
        self._move(trips=self.position.trips + 1, time=event.time)
        if event.accepted:
            self.accepted += 1
            self.staleness_sum += event.staleness or 0
            filled = self._buffer[1] + 1 if event.step == self._buffer[0] else 1
            self._buffer = (event.step or 0, filled)
            self.fills.append(BufferFill(self.position.trips, filled))
        else:
            self._refuse("upload", str(event.reason), event.time)
            self.log.append(event)
        if event.upload_time is not None:
            self.parts["download"] += event.download_time or 0.0
            self.parts["compute"] += event.compute_time or 0.0
            self.parts["upload"] += event.upload_time
            self.parts["trips"] += 1
        self.uploads.append(event)
        if event.start_time is not None:
            self.trips.append(event)
        self.clients.take(event)

    def _step(self, event: ModelMoved) -> None:
        self.position = RunPosition(
            event.version, event.trips, event.time, event.bytes or self.position.bytes
        )
        self.steps.add(event)
        self.last_steps.append((event.time, event.version))
        self.log.append(event)

    def _evaluation(self, event: ModelEvaluated) -> None:
        (self.reports if event.federated else self.evaluations).add(event)
        self._move(time=event.time, bytes=max(event.bytes, self.position.bytes))
        self.log.append(event)

    def _refuse(self, what: str, reason: str, when: float | None) -> None:
        known = self.refused.setdefault(what, {})
        reason = bounded_reason(reason, known)
        known[reason] = RefusedFor(known.get(reason, NEVER).times + 1, when)

    def _move(self, trips: int | None = None, time: float | None = None, bytes: int | None = None) -> None:
        now = self.position
        self.position = RunPosition(
            now.version,
            now.trips if trips is None else trips,
            now.time if time is None else max(now.time, time),
            now.bytes if bytes is None else bytes,
        )

    # -- what follows from them --------------------------------------------------------------------

    def tick(self, now: float) -> None:
        """Note the position at a moment of the monotonic clock. Only a run that is read up to its end has a
        pace, and only from its first known trip on: a server may have made many before it is asked."""
        if self.reading < 1.0 or not self.position.trips:
            self._pace.clear()
            return
        self._pace.append((now, self.position))
        while len(self._pace) > 2 and now - self._pace[0][0] > PACE_SECONDS:
            self._pace.popleft()

    @property
    def fill(self) -> int:
        """Uploads in the buffer now."""
        return self._buffer[1] if self._buffer[0] > self.position.version else 0

    @property
    def best_evaluations(self) -> list[ModelEvaluated]:
        """The central evaluations that are kept, or, where there are none, those by clients."""
        return self.evaluations.points() or self.reports.points()

    @property
    def silence(self) -> float:
        """Seconds since the last event, or since the server's last word."""
        quiet = max(0.0, time.time() - self.heard)
        return quiet if self.status is None else min(quiet, self.status.age)

    def state(self) -> str:
        """Return the state in one word: reading, waiting, over, failed, silent or running."""
        if self.reading < 1.0:
            return "reading"
        if self.status is not None and self.status.failed:
            return "failed"
        if self.over is not None or (self.status is not None and self.status.over):
            return "over"
        if not self.started and self.status is None:
            return "silent" if self.problem else "waiting"
        return "silent" if self.problem or self.silence > SILENT else "running"

    def pace(self) -> dict[str, float] | None:
        """Return trips, steps, time and bytes a second of the last seconds; None if that is not known."""
        if len(self._pace) < 2 or self.state() in ("over", "failed"):
            return None
        (before, first), (now, last) = self._pace[0], self._pace[-1]
        seconds = max(now - before, 1e-9)
        return {name: (getattr(last, name) - getattr(first, name)) / seconds for name in RunPosition._fields}
