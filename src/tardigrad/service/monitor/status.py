"""The status of a served run: written to `status.json` in the run's folder every second, and read by
`tardigrad status`.

The file contains names of clients, which readers of the run's folder can see anyway. `Watch` sends no names
over the network, because every enrolled client can call it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from dataclasses import asdict, dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import TypeAdapter, ValidationError

from tardigrad.core.plain_json import plain_json
from tardigrad.errors import ConfigError, RunError
from tardigrad.service.monitor.explain import Explanation, explain, shown_seconds
from tardigrad.service.monitor.progress_record import progress_of
from tardigrad.service.monitor.run_facts import RunFacts, gather_facts
from tardigrad.service.protocol.refusals import log

if TYPE_CHECKING:
    from tardigrad.service.server.coordinator import Coordinator
    from tardigrad.service.server.rpc import Servicer

FILE = "status.json"
SECONDS = 1.0
LARGEST = 1 << 24
"""Bytes of a status at most."""
SILENT = 5.0
"""Seconds without a new status after which the server may not be running."""
MOST_NAMES = 1000
"""Clients that are named at most."""


@dataclass(frozen=True)
class Status:
    """The progress of a run at one moment, as it is written to the file."""

    version: int
    trips: int
    time: float
    """Seconds for which the run has been served."""
    in_flight: int
    waiting: int
    staleness: float
    """Mean staleness of the uploads that the process accepted."""
    given_up: int
    uploads_refused: dict[str, int]
    metrics: dict[str, float | None]
    """Metrics of the last evaluation; None for a number that is not finite."""
    over: str
    """Why the run has ended; empty while it goes on."""
    written: float
    """When this was written, in seconds since 1970."""
    requests_refused: dict[str, int] = field(default_factory=dict)
    last_seen: dict[str, float] = field(default_factory=dict)
    """By client: how many seconds before this was written its last request came."""
    steps_discarded: int = 0
    """Steps after which the model would not have been finite."""
    metrics_dropped: int = 0
    """Metrics of clients that the process did not take."""
    helper_away: float | None = None
    """Seconds for which a helper of a secure run could not be reached; None if all are there."""
    steps_waiting: int = 0
    """Steps of a secure run that wait for the helpers."""
    at_work: dict[str, int] = field(default_factory=dict)
    """By client: the version from which it started the trip that is under way."""
    paused_by: str = ""
    """The operator who has paused the run; empty if it is not paused."""
    paused_since: float | None = None
    """When that was, in seconds since 1970."""
    ejected: dict[str, float] = field(default_factory=dict)
    """By client that an operator has ejected: when that was, in seconds since 1970."""
    acts: int = 0
    """Lines of the audit log."""
    last_act: str = ""
    """The hash of the last one."""
    software: dict[str, str] = field(default_factory=dict)
    """By client: name and version of its software, as it said when it joined this process."""
    failed: str = ""
    """Why the run has failed, so that this process serves it no more; empty otherwise."""
    started: dict[str, float] = field(default_factory=dict)
    """By client: the time of the run at which this trip began."""
    explanations: list[Explanation] = field(default_factory=list)
    """Why the run is where it is, the gravest reason first; `explained` returns them for a reader."""

    @property
    def age(self) -> float:
        """Seconds since this was written."""
        return max(0.0, time.time() - self.written)

    @property
    def ended(self) -> bool:
        """Whether the run has failed, or is over and no step waits for a helper."""
        return bool(self.failed) or (bool(self.over) and not self.steps_waiting)

    def explained(self) -> list[Explanation]:
        """Return why the run is where it is. What the server did not tell follows from the other fields."""
        if self.failed:
            return [
                Explanation(
                    "error",
                    f"The run has failed: {self.failed}",
                    "The server's log says more. Remove the cause and start the server again with the same "
                    "command; the run goes on from its journal.",
                )
            ]
        if not self.ended and self.age > SILENT:
            return [
                Explanation(
                    "error",
                    "The server is not running, or its disk is full: it has not written its status for "
                    f"{shown_seconds(self.age)}.",
                    "Start it again with the same command; the run goes on, and its clients come back.",
                    self.age,
                )
            ]
        if self.explanations:
            return self.explanations
        return explain(
            RunFacts(
                over=self.over, in_flight=self.in_flight, waiting=self.waiting,
                helper_away=self.helper_away, steps_waiting=self.steps_waiting,
            )
        )  # fmt: skip


STATUS = TypeAdapter(Status)


def status_of(coordinator: Coordinator, servicer: Servicer) -> Status:
    """Return the status of a run as it is now. Must be called in the event loop's thread."""
    progress = progress_of(coordinator, servicer)
    last_seen = coordinator.counters.last_seen(MOST_NAMES)
    steering, acts = coordinator.run_state.steering, coordinator.recovery.audit.synced
    under_way = list(islice(coordinator.run_state.book.in_flight.values(), MOST_NAMES))
    return Status(
        version=progress.version,
        trips=progress.trips,
        time=round(progress.time, 3),
        in_flight=progress.in_flight,
        waiting=progress.waiting,
        staleness=round(progress.staleness, 3),
        given_up=progress.given_up,
        uploads_refused=dict(progress.refused),
        metrics=dict(progress.metrics),
        over=progress.over or "",
        written=time.time(),
        requests_refused=dict(progress.requests_refused),
        last_seen=last_seen,
        steps_discarded=progress.steps_discarded,
        metrics_dropped=progress.metrics_dropped,
        helper_away=None if progress.helper_away is None else round(progress.helper_away, 3),
        steps_waiting=progress.steps_waiting,
        at_work={str(ticket.client): ticket.version for ticket in under_way},
        paused_by="" if steering.paused is None else steering.paused.admin,
        paused_since=None if steering.paused is None else steering.paused.wall,
        ejected={name: origin.wall for name, origin in islice(steering.ejected.items(), MOST_NAMES)},
        acts=acts.number,
        last_act=acts.hash if acts.number else "",
        software=coordinator.counters.software(last_seen),
        failed="" if coordinator.failure is None else " ".join(str(coordinator.failure).split()),
        started={str(ticket.client): round(ticket.time, 3) for ticket in under_way},
        explanations=[
            replace(one, since=None if one.since is None else round(one.since, 1))
            for one in explain(gather_facts(coordinator, servicer))
        ],
    )


async def keep_status(folder: Path, coordinator: Coordinator, servicer: Servicer) -> None:
    """Write the status every second, until cancelled. A failure is logged once until a write succeeds."""
    written = True
    while True:
        try:
            await asyncio.to_thread(write_status, folder, status_of(coordinator, servicer))
            written = True
        except OSError as error:
            if written:
                log.error("%s cannot be written: %s", FILE, error, extra={"event": "status"})
            written = False
        await asyncio.sleep(SECONDS)


def write_status(folder: Path, status: Status) -> None:
    """Replace the file atomically. It is not synced, because it need not survive a crash."""
    partial = folder / f"{FILE}.partial"
    partial.write_text(plain_json(asdict(status)) + "\n")
    partial.replace(folder / FILE)


def read_status(folder: Path) -> Status:
    """Return the status that a server wrote last."""
    file = folder / FILE
    if not file.exists():
        raise ConfigError(
            f"{folder}: no server has written its {FILE} there; for a simulated run: tardigrad show"
        )
    try:
        if file.stat().st_size > LARGEST:
            raise RunError(f"{file} is damaged (it is too large); the server writes it anew every second")
        return STATUS.validate_json(file.read_bytes(), strict=True)
    except ValidationError as error:
        first = error.errors()[0]
        fault = ": ".join(str(part) for part in (*first["loc"][:1], first["msg"]))
    except OSError as error:
        fault = str(error)
    raise RunError(f"{file} is damaged ({fault}); the server writes it anew every second")


async def watch_folder(folder: Path) -> AsyncIterator[Status]:
    """Read the status in a folder every second until the run is over and no step waits for a helper."""
    while True:
        status = read_status(folder)
        yield status
        if status.ended:
            return
        await asyncio.sleep(SECONDS)
