"""One run in a server process: its coordinator, its calls, its status, and its end."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import suppress
from contextvars import copy_context
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from tardigrad.core.outcomes import Reason
from tardigrad.errors import RunError
from tardigrad.service.access.enrolment import Enrolled, EnrolledFor
from tardigrad.service.access.signed_requests import RequestVerifier
from tardigrad.service.monitor.logs import served_run
from tardigrad.service.monitor.progress_lines import log_end, log_progress
from tardigrad.service.monitor.progress_record import RunProgress, progress_of
from tardigrad.service.monitor.status import keep_status, status_of, write_status
from tardigrad.service.protocol.refusals import log
from tardigrad.service.protocol.v1 import service_pb2_grpc as v1_grpc
from tardigrad.service.server.coordinator import Coordinator
from tardigrad.service.server.finished_run import FailedRunServicer, FinishedRunServicer
from tardigrad.service.server.rpc import Servicer
from tardigrad.service.server.run_plan import RunPlan, coordinate, facts_of
from tardigrad.service.store.audit_log import AUDIT, AuditLog
from tardigrad.service.store.contract import Store
from tardigrad.service.store.memory import MemoryStore
from tardigrad.service.store.recovery import RunLog, Snapshot
from tardigrad.service.store.sqlite import SqliteStore

GRACE = 30.0
"""Seconds for calls that are under way when a run, or the server, is asked to stop."""


@dataclass(frozen=True, kw_only=True)
class ServedRun(RunProgress):
    """The progress of a run at its end, or when the server was stopped, and its model."""

    reason: str | None
    """Why the run ended; None if the server was stopped before."""
    model: Tensor


@dataclass(frozen=True)
class RunToServe:
    """A run whose folder is open, and what is done at its end."""

    name: str
    plan: RunPlan
    folder: Path
    record: RunLog
    snapshot: Snapshot | None
    finish: Callable[[ServedRun], None]
    """Called when the run is over, before its clients are told."""
    after_snapshot: Callable[[], None] = lambda: None
    closed: Callable[[ServedRun], None] = lambda served: None
    """Called when the run was stopped or is over, and its store is closed; not if it has failed."""
    accept_loss: bool = False


class RunServer:
    """Serves one run, until it is over or has failed or the process is asked to stop."""

    def __init__(self, run: RunToServe, enrolled: Enrolled, durable: bool, alone: bool) -> None:
        """Open the store of the run. `alone`: whether it is the only run of the process."""
        self.name, self.folder, self._run, self._alone = run.name, run.folder, run, alone
        self._context = copy_context()
        """Tasks of the run have its name in their log lines, if there are several runs."""
        if not alone:
            self._context.run(served_run.set, run.name)
        self.gate = RequestVerifier(EnrolledFor(enrolled, run.name))
        self._store: Store = SqliteStore(run.folder) if durable else MemoryStore()
        try:
            self.coordinator: Coordinator = self._context.run(
                coordinate,
                run.plan,
                self._store,
                run.record,
                run.after_snapshot,
                audit=AuditLog(run.folder / AUDIT),
            )
        except BaseException:
            self._store.close()
            raise
        self.servicer = Servicer(self.coordinator, self.gate, facts_of(run.plan), run.name, alone)
        self.answering: v1_grpc.FederationServicer = self.servicer
        """The servicer that answers the calls of clients: `servicer`, until the run is over or has failed."""
        self.calls: set[asyncio.Task[Any]] = set()
        """The calls that are under way, if a router passes them on."""
        self.failure: BaseException | None = None
        """The error that ended the run."""
        self.served: ServedRun | None = None
        """The part of the run that was served, when the run was stopped without an error."""
        self._background: list[asyncio.Task[None]] = []
        self._started = self._finishing = self._stopped = False

    @property
    def over(self) -> str | None:
        """Why the run has ended; None while it goes on."""
        return self.coordinator.run_state.over

    @property
    def failed(self) -> bool:
        """Whether the run has ended with an error."""
        return self.coordinator.failure is not None

    @property
    def concurrency(self) -> int:
        """How many clients the pace lets train at once."""
        return max(1, self.coordinator.run_state.book.pace.capacity(0, 0))

    @property
    def linger_seconds(self) -> float:
        """Seconds after the end of the run in which its clients are told."""
        return self._run.plan.settings.linger_seconds

    def at_work(self) -> set[str]:
        """Return the clients that have a trip under way."""
        return {str(ticket.client) for ticket in self.coordinator.run_state.book.in_flight.values()}

    def has_work_for(self, client: str) -> bool:
        """Return whether this client could get a task: the run is not paused, and privacy and the buffer
        allow it."""
        run_state = self.coordinator.run_state
        objection = run_state.book.objection(client)
        return run_state.steering.paused is None and objection in (None, Reason.TRAINING)

    def has_ejected(self, client: str) -> bool:
        """Return whether an operator has ejected this client from the run."""
        return client in self.coordinator.run_state.steering.ejected

    def reload(self) -> None:
        """Read the list of clients again."""
        self._context.run(self.gate.reload)

    async def start(self) -> None:
        """Recover the run, and begin to take entries."""
        await self._task(self.coordinator.start(self._run.snapshot, self._run.accept_loss))
        self._started = True
        self._background = [
            self._task(keep_status(self.folder, self.coordinator, self.servicer)),
            self._task(log_progress(self.coordinator, self.servicer)),
        ]

    async def until_over(self, asked: asyncio.Future[None]) -> None:
        """Return when the run is over and its clients had time to hear it, or when `asked` is done. Raise the
        error if the run fails."""
        ends: set[asyncio.Future[Any]] = {asked, self.coordinator.ended}
        await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        if self.coordinator.ended.done():
            await self._task(self._finish())
            await asyncio.wait({asked}, timeout=self.linger_seconds)

    async def leave(self) -> None:
        """Stop this run while others go on: it is over or has failed, and that is what clients hear from now
        on."""
        if self.failure is not None:
            self.answering = FailedRunServicer(self.gate, self.name)
        else:
            self.answering = FinishedRunServicer(self.gate, self.over or "")
        self.coordinator.dismiss()
        if self.calls:
            await asyncio.wait(self.calls, timeout=GRACE)
        for call in self.calls:
            call.cancel()
        if self.calls:
            await asyncio.wait(self.calls)
        await self.stop()

    async def stop(self) -> None:
        """End all tasks, finish the run if it has ended meanwhile, and close the store. Raise the error if
        that fails."""
        if not self._stopped:
            self._stopped = True
            await self._task(self._stop())

    async def _stop(self) -> None:
        try:
            if not self._started:
                return
            for task in self._background:
                task.cancel()
            await asyncio.gather(*self._background, return_exceptions=True)
            await self.coordinator.stop()
            with suppress(OSError):
                write_status(self.folder, status_of(self.coordinator, self.servicer))
            counts = dict(self.servicer.refusals.counts)
            log.info("stopped; refused: %s", counts or "nothing", extra={"event": "stopped"})
            if self.coordinator.ended.done() and not self._finishing:
                await self._finish()  # the run ended, or failed, while the server was stopping
        finally:
            self._store.close()
        if self.failure is None:
            self.served = served_run_of(self.coordinator, self.servicer)
            await asyncio.to_thread(self._run.closed, self.served)

    async def _finish(self) -> None:
        """Log the end of the run and write its result; raise the error if the run has failed."""
        self._finishing = True
        try:
            error = self.coordinator.failure
            if error is not None and not (self._alone or isinstance(error, Exception)):
                raise RunError(f"{type(error).__name__}: {error}")  # sys.exit in own code ends its run alone
            self.coordinator.ended.result()
            served = served_run_of(self.coordinator, self.servicer)
            log_end(served)
            await asyncio.to_thread(self._run.finish, served)
        except BaseException as error:
            self.failure = self.coordinator.unfinished = error
            raise

    def _task(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        return asyncio.get_running_loop().create_task(work, context=self._context)


def served_run_of(coordinator: Coordinator, servicer: Servicer) -> ServedRun:
    """Return what was served of a run up to now."""
    progress = progress_of(coordinator, servicer)
    return ServedRun(
        **vars(progress),
        reason=progress.over if coordinator.ended.done() else None,
        model=coordinator.model_state.aggregator.evaluated_model,
    )
