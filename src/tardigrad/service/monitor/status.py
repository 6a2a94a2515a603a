"""How a served run is getting on: written into the run's folder every second, read by `tardigrad status`.

The file names clients: whoever can read the run's folder can see them anyway. What is told over the network
(`Watch`), every client that is enrolled can hear, so it is numbers alone.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import TypeAdapter, ValidationError

from tardigrad.core.plain_json import plain_json
from tardigrad.errors import ConfigError, RunError
from tardigrad.service.protocol.refusals import log

if TYPE_CHECKING:
    from tardigrad.service.server.coordinator import Coordinator
    from tardigrad.service.server.rpc import Servicer

FILE = "status.json"
SECONDS = 1.0
MOST_NAMES = 8


@dataclass(frozen=True)
class Status:
    """One moment of a run."""

    version: int
    trips: int
    time: float
    """Seconds since the run began."""
    in_flight: int
    waiting: int
    staleness: float
    """Mean, of what was accepted in this process."""
    given_up: int
    uploads_refused: dict[str, int]
    metrics: dict[str, float | None]
    """Of the last evaluation; None for what is not finite."""
    over: str
    """Why the run has ended; empty while it goes on."""
    written: float
    """Seconds since 1970."""
    requests_refused: dict[str, int] = field(default_factory=dict)
    last_seen: dict[str, float] = field(default_factory=dict)
    """By client, seconds before this was written."""
    steps_discarded: int = 0
    """Steps after which the model would not have been finite."""
    metrics_dropped: int = 0
    """Metrics of clients that the server does not take, in this process."""

    @property
    def age(self) -> float:
        """Seconds since this was true."""
        return max(0.0, time.time() - self.written)


STATUS = TypeAdapter(Status)


def status_of(coordinator: Coordinator, servicer: Servicer) -> Status:
    """As it is now; in the event loop."""
    run_state, counters = coordinator.run_state, coordinator.counters
    return Status(
        version=run_state.book.version,
        trips=run_state.trips,
        time=round(coordinator.now if run_state.over is None else run_state.time, 3),
        in_flight=len(run_state.book.in_flight),
        waiting=coordinator.waiting,
        staleness=round(counters.staleness.mean, 3),
        given_up=run_state.given_up,
        uploads_refused=dict(run_state.refused),
        metrics=dict(coordinator.model_state.metrics or run_state.reports.metrics),
        over=run_state.over or "",
        written=time.time(),
        requests_refused=dict(servicer.refusals.counts),
        last_seen=counters.last_seen(MOST_NAMES),
        steps_discarded=coordinator.model_state.discarded,
        metrics_dropped=counters.metrics_dropped,
    )


async def keep_status(folder: Path, coordinator: Coordinator, servicer: Servicer) -> None:
    """Write it every second, until cancelled."""
    well = True
    while True:
        try:
            await asyncio.to_thread(write_status, folder, status_of(coordinator, servicer))
            well = True
        except OSError as error:
            if well:
                log.error("%s cannot be written: %s", FILE, error, extra={"event": "status"})
            well = False
        await asyncio.sleep(SECONDS)


def write_status(folder: Path, status: Status) -> None:
    """All or nothing; it need not survive a crash."""
    partial = folder / f"{FILE}.partial"
    partial.write_text(plain_json(asdict(status)) + "\n")
    partial.replace(folder / FILE)


def read_status(folder: Path) -> Status:
    """What a server wrote last."""
    file = folder / FILE
    if not file.exists():
        raise ConfigError(
            f"{folder}: no server has written its {FILE} there; for a simulated run: tardigrad show"
        )
    try:
        return STATUS.validate_json(file.read_bytes(), strict=True)
    except ValidationError as error:
        first = error.errors()[0]
        fault = ": ".join(str(part) for part in (*first["loc"][:1], first["msg"]))
    except OSError as error:
        fault = str(error)
    raise RunError(f"{file} is damaged ({fault}); the server writes it anew every second")


async def watch_folder(folder: Path) -> AsyncIterator[Status]:
    """What the server writes there, every second until the run is over."""
    while True:
        status = read_status(folder)
        yield status
        if status.over:
            return
        await asyncio.sleep(SECONDS)
