"""Serving a run: from opening the store to the end of the last call."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Mapping
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path

import grpc
from torch import Tensor

from tardigrad.service.access.admins import Admins
from tardigrad.service.access.certificates import expiries
from tardigrad.service.access.enrolment import LIST, Enrolled
from tardigrad.service.access.signed_requests import RequestVerifier
from tardigrad.service.monitor.progress_lines import log_end, log_progress
from tardigrad.service.monitor.progress_record import RunProgress, progress_of
from tardigrad.service.monitor.status import keep_status, status_of, write_status
from tardigrad.service.protocol.refusals import log
from tardigrad.service.server.admin_rpc import AdminServicer, SteeredRun, admin_handlers
from tardigrad.service.server.coordinator import Coordinator
from tardigrad.service.server.endpoint import Endpoint
from tardigrad.service.server.expiry_warnings import warn_of_expiry
from tardigrad.service.server.listener import Server
from tardigrad.service.server.rpc import Servicer
from tardigrad.service.server.run_plan import RunPlan, coordinate, facts_of
from tardigrad.service.store.audit_log import AUDIT, AuditLog
from tardigrad.service.store.contract import Store
from tardigrad.service.store.memory import MemoryStore
from tardigrad.service.store.recovery import RunLog, Snapshot
from tardigrad.service.store.sqlite import SqliteStore

GRACE = 30.0
"""Seconds for calls that are under way when the server is asked to stop."""


@dataclass(frozen=True, kw_only=True)
class ServedRun(RunProgress):
    """The progress of a run at its end, or when the server was stopped, and its model."""

    reason: str | None
    """Why the run ended; None if the server was stopped before."""
    model: Tensor


async def serve(
    plan: RunPlan,
    endpoint: Endpoint,
    folder: Path,
    record: RunLog,
    snapshot: Snapshot | None,
    listening: Callable[[int], None],
    finish: Callable[[ServedRun], None],
    after_snapshot: Callable[[], None] = lambda: None,
    accept_loss: bool = False,
) -> ServedRun:
    """Serve until the run is over or a signal asks to stop. `listening` is called with the port; `finish` is
    called when the run is over, before the clients are told."""
    endpoint.check()
    credentials = endpoint.credentials()
    enrolled = Enrolled(endpoint.keys / LIST)
    loop = asyncio.get_running_loop()
    asked = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, asked.set)
    gate, admins = RequestVerifier(enrolled), Admins(enrolled)
    certificates = {} if credentials is None else expiries(endpoint.keys)
    store: Store = SqliteStore(folder) if endpoint.durable else MemoryStore()
    with closing(store):
        coordinator = coordinate(plan, store, record, after_snapshot, audit=AuditLog(folder / AUDIT))
        server = Server(Servicer(coordinator, gate, facts_of(plan)))
        run = SteeredRun("", coordinator, server.servicer, folder)
        administration = AdminServicer({run.name: run}, admins)
        server.add(admin_handlers(administration))
        loop.add_signal_handler(signal.SIGHUP, _reload, gate, administration)
        await coordinator.start(snapshot, accept_loss)
        return await _serve_until_over(
            plan, endpoint, folder, coordinator, server, asked, certificates, credentials, listening, finish
        )


async def _serve_until_over(
    plan: RunPlan,
    endpoint: Endpoint,
    folder: Path,
    coordinator: Coordinator,
    server: Server[Servicer],
    asked: asyncio.Event,
    certificates: Mapping[str, float],
    credentials: grpc.ServerCredentials | None,
    listening: Callable[[int], None],
    finish: Callable[[ServedRun], None],
) -> ServedRun:
    """Serve with a coordinator that was started until the run is over or `asked` is set, and stop it."""
    background = [
        asyncio.ensure_future(keep_status(folder, coordinator, server.servicer)),
        asyncio.ensure_future(log_progress(coordinator, server.servicer)),
        asyncio.ensure_future(warn_of_expiry(certificates)),
    ]
    end_metrics = lambda: None  # noqa: E731
    finished = False
    try:
        if endpoint.metrics_port is not None:
            end_metrics = _publish(endpoint, coordinator, server.servicer, folder, certificates)
        port = await server.start(f"{endpoint.host}:{endpoint.port}", credentials)
        log.info("listening on %s:%d", endpoint.host, port, extra={"event": "listening"})
        listening(port)
        stop = asyncio.ensure_future(_asked_to_stop(asked))
        await asyncio.wait({stop, coordinator.ended}, return_when=asyncio.FIRST_COMPLETED)
        if coordinator.ended.done():
            await _finish(coordinator, server.servicer, finish)
            finished = True
            await asyncio.wait({stop}, timeout=plan.settings.linger_seconds)
        stop.cancel()
        coordinator.dismiss()
        await server.stop(GRACE)
    finally:
        await server.stop(0)
        await asyncio.to_thread(end_metrics)
        for task in background:
            task.cancel()
        await asyncio.gather(*background, return_exceptions=True)
        await coordinator.stop()
        with suppress(OSError):
            write_status(folder, status_of(coordinator, server.servicer))
        counts = dict(server.servicer.refusals.counts)
        log.info("stopped; refused: %s", counts or "nothing", extra={"event": "stopped"})
    if coordinator.ended.done() and not finished:  # the run ended, or failed, while the server was stopping
        await _finish(coordinator, server.servicer, finish)
    return _result(coordinator, server.servicer)


def _reload(gate: RequestVerifier, administration: AdminServicer) -> None:
    """Read the lists of clients and operators again."""
    gate.reload()
    administration.reload()


def _publish(
    endpoint: Endpoint,
    coordinator: Coordinator,
    servicer: Servicer,
    folder: Path,
    certificates: Mapping[str, float],
) -> Callable[[], None]:
    # imported here, so that a server without metrics does not load prometheus_client
    from tardigrad.service.monitor.metrics import MetricsCollector, publish

    assert endpoint.metrics_port is not None
    collector = MetricsCollector(coordinator, servicer, folder, certificates)
    port, end = publish(endpoint.metrics_host, endpoint.metrics_port, collector)
    log.info("metrics on http://%s:%d/metrics", endpoint.metrics_host, port, extra={"event": "metrics"})
    return end


async def _asked_to_stop(asked: asyncio.Event) -> str:
    await asked.wait()
    return "asked to stop"


async def _finish(coordinator: Coordinator, servicer: Servicer, finish: Callable[[ServedRun], None]) -> None:
    """Log the end of the run and call `finish`; raise the error if the run has failed."""
    coordinator.ended.result()
    served = _result(coordinator, servicer)
    log_end(served)
    await asyncio.to_thread(finish, served)


def _result(coordinator: Coordinator, servicer: Servicer) -> ServedRun:
    progress = progress_of(coordinator, servicer)
    return ServedRun(
        **vars(progress),
        reason=progress.over if coordinator.ended.done() else None,
        model=coordinator.model_state.aggregator.evaluated_model,
    )
