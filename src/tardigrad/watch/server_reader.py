"""The reader of a served run over the network. (It loads torch, so only pages of servers import it.)"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable

from tardigrad.core.events import Event, ModelEvaluated, ModelMoved, RunEnded
from tardigrad.errors import ConfigError, TardigradError
from tardigrad.service.monitor.following import Followed, FollowedConfig, FollowedEvents, FollowedRestart
from tardigrad.service.monitor.status import Status
from tardigrad.watch.event_lines import EventLines
from tardigrad.watch.run_readers import parsed_config
from tardigrad.watch.watched_run import WatchedRun

AWAY_SECONDS = 10.0
"""Seconds between two attempts to reach a server that is away."""
MUCH = 1 << 19
"""Bytes of events at once that mean that more are to come."""


class ServerReader:
    """Takes what a server tells over the network: everything to an operator, but neither names nor single
    uploads to any other client."""

    def __init__(self, address: str, source: Callable[[int], AsyncIterator[Followed]]) -> None:
        """`source` opens the stream of what the server tells, with the events from an offset on."""
        self.run = WatchedRun(address)
        self._source = source
        self._metrics: dict[str, float | None] = {}
        self._lines = EventLines()
        self._offset = 0
        self._all = False  # the server tells everything

    async def follow(self) -> None:
        """Take what comes until the run is over or the server says why it tells nothing. A server that told
        everything and is away is asked again, and so is one whose run has failed: it may be started again."""
        while True:
            try:
                async for part in self._source(self._offset):
                    self.run.problem = ""
                    self._take(part)
                if self.run.status is None or not self.run.status.failed:
                    return
            except TardigradError as error:
                self.run.problem = str(error)
                if not self._all or isinstance(error, ConfigError):
                    return
            await asyncio.sleep(AWAY_SECONDS)

    def _take(self, part: Followed) -> None:
        run = self.run
        match part:
            case FollowedConfig():
                self._all = run.started = True
                run.config = parsed_config(part.text)
            case FollowedRestart():
                self._lines, self._offset = EventLines(), 0
                run.begin()
            case FollowedEvents():
                self._offset = part.offset
                run.take(self._lines.take(part.lines))
                run.damaged = self._lines.damaged
                trips = 0 if run.status is None else run.status.trips
                more = len(part.lines) > MUCH and trips > run.position.trips
                run.reading = run.position.trips / trips if more else 1.0
            case Status() if self._all:
                run.status, run.heard = part, time.time()
            case Status():
                self.take(part)

    def take(self, status: Status) -> None:
        """Note a status that is all that is told."""
        run = self.run
        events: list[Event] = []
        run.started = run.progress_only = True
        if status.metrics and status.metrics != self._metrics:
            self._metrics = dict(status.metrics)
            events.append(
                ModelEvaluated(status.version, status.trips, status.time, metrics=dict(status.metrics))
            )
        if status.version > run.position.version:
            events.append(ModelMoved(status.version, status.trips, status.time))
        if status.over:
            events.append(RunEnded(status.over, status.version, status.trips, status.time))
        run.status, run.heard = status, time.time()
        run.take(events)
        run.position = run.position._replace(trips=status.trips, time=status.time)
        run.given_up = status.given_up
