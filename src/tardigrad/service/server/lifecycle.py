"""A server process: from opening the stores of its runs to the end of the last call."""

from __future__ import annotations

import asyncio
import gc
import signal
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any

from tardigrad.errors import naming
from tardigrad.service.access.admins import Admins
from tardigrad.service.access.certificates import expiries
from tardigrad.service.access.enrolment import LIST, Enrolled
from tardigrad.service.access.signed_requests import RequestVerifier
from tardigrad.service.protocol.refusals import log
from tardigrad.service.protocol.v1 import service_pb2_grpc as v1_grpc
from tardigrad.service.server.admin_rpc import AdminServicer, SteeredRun, admin_handlers
from tardigrad.service.server.endpoint import Endpoint
from tardigrad.service.server.expiry_warnings import warn_of_expiry
from tardigrad.service.server.finished_run import FinishedRun
from tardigrad.service.server.listener import Server
from tardigrad.service.server.malloc_arenas import limit_arenas
from tardigrad.service.server.run_router import RunRouter
from tardigrad.service.server.run_server import GRACE, RunServer, RunToServe, ServedRun

Outcome = ServedRun | BaseException
"""The part of a run that was served, or the error that ended it."""


async def serve(run: RunToServe, endpoint: Endpoint, listening: Callable[[int], None]) -> ServedRun:
    """Serve one run until it is over or a signal asks to stop. `listening` is called with the port."""
    process = ServerProcess(endpoint, alone=True)
    await process.start([run])
    await process.serve(listening)
    served = process.runs[0].served
    assert served is not None, "an error was raised"
    return served


async def serve_several(
    runs: Sequence[RunToServe],
    finished: Mapping[str, tuple[str, float]],
    endpoint: Endpoint,
    listening: Callable[[int], None],
) -> dict[str, Outcome]:
    """Serve all runs until they are over or have failed, or a signal asks to stop; return what became of
    each. One run's failure does not end the others.

    `finished`: runs that are over already, by name: why they ended, and for how many seconds clients are told
    at least. `listening` is called with the port.
    """
    process = ServerProcess(endpoint, alone=False)
    await process.start(runs, finished)
    await process.serve(listening)
    outcomes = {run.name: run.failure or run.served for run in process.runs}
    return {name: outcome for name, outcome in outcomes.items() if outcome is not None}


class ServerProcess:
    """The signals, the listener, the metrics and the runs of one server process."""

    def __init__(self, endpoint: Endpoint, alone: bool) -> None:
        """`alone`: whether there is one run, whose clients need not know its name."""
        endpoint.check()
        limit_arenas()
        self._endpoint, self._alone = endpoint, alone
        self._credentials = endpoint.credentials()
        self._enrolled = Enrolled(endpoint.keys / LIST)
        self._certificates = {} if self._credentials is None else expiries(endpoint.keys)
        self.runs: list[RunServer] = []
        self._finished: list[FinishedRun] = []
        self._front: RequestVerifier | None = None
        self._administration: AdminServicer | None = None
        loop = asyncio.get_running_loop()
        self._asked: asyncio.Future[None] = loop.create_future()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._ask_to_stop)
        loop.add_signal_handler(signal.SIGHUP, self._reload)

    def _ask_to_stop(self) -> None:
        if not self._asked.done():
            self._asked.set_result(None)

    def _reload(self) -> None:
        """Read the lists of clients and operators again."""
        if self._front is not None:
            self._front.reload()
        if self._administration is not None:
            self._administration.reload()
        for run in self.runs:
            run.reload()

    async def start(
        self, runs: Sequence[RunToServe], finished: Mapping[str, tuple[str, float]] | None = None
    ) -> None:
        """Recover all runs; if one cannot be, close all and raise its error."""
        try:
            for run in runs:
                with naming("" if self._alone else run.name):
                    self.runs.append(RunServer(run, self._enrolled, self._endpoint.durable, self._alone))
                    await self.runs[-1].start()
        except BaseException:
            await self._stop_runs()
            raise
        self._finished = [
            FinishedRun(name, reason, seconds, self._enrolled)
            for name, (reason, seconds) in (finished or {}).items()
        ]

    async def serve(self, listening: Callable[[int], None]) -> None:
        """Listen until all runs have ended or a signal asks to stop. The error of a run that is alone is
        raised."""
        servicer = self._servicer()
        server = Server(servicer)
        steered = [SteeredRun(run.name, run.coordinator, run.servicer, run.folder) for run in self.runs]
        self._administration = AdminServicer(
            {run.name: run for run in steered},
            Admins(self._enrolled),
            {run.name: run.over or "" for run in self._finished},
        )
        server.add(admin_handlers(self._administration))
        expiry = asyncio.ensure_future(warn_of_expiry(self._certificates))
        end_metrics = lambda: None  # noqa: E731
        endpoint = self._endpoint
        try:
            if endpoint.metrics_port is not None:
                end_metrics = self._publish(servicer)
            port = await server.start(f"{endpoint.host}:{endpoint.port}", self._credentials)
            log.info("listening on %s:%d", endpoint.host, port, extra={"event": "listening"})
            gc.collect()
            gc.freeze()  # modules and settings stay: looking through them stops all threads for 0.1 s
            listening(port)
            await asyncio.gather(
                *map(self._serve_one, self.runs), *(run.until_over(self._asked) for run in self._finished)
            )
            for run in self.runs:
                run.coordinator.dismiss()
            await server.stop(GRACE)
        finally:
            gc.unfreeze()
            await server.stop(0)
            await asyncio.to_thread(end_metrics)
            expiry.cancel()
            await asyncio.gather(expiry, return_exceptions=True)
            await self._stop_runs()

    def _servicer(self) -> v1_grpc.FederationServicer:
        """Return what answers all calls."""
        if self._alone:
            return self.runs[0].servicer
        self._front = RequestVerifier(self._enrolled)
        return RunRouter([*self.runs, *self._finished], self._front)

    async def _serve_one(self, run: RunServer) -> None:
        """Serve a run until it is over. The failure of one of several runs is its own."""
        try:
            await run.until_over(self._asked)
        except Exception as error:
            if self._alone:
                raise
            log.error("the run %s is served no more: %s", run.name, error, extra={"event": "failed"})
        if not self._alone and not self._asked.done():
            await self._settled(run.leave())

    async def _stop_runs(self) -> None:
        for run in self.runs:
            await self._settled(run.stop())

    async def _settled(self, stopping: Coroutine[Any, Any, None]) -> None:
        """Await the end of a run. The error of one of several is kept by it and does not touch the others."""
        try:
            await stopping
        except Exception as error:
            if self._alone:
                raise
            log.error("a run could not be closed: %s", error, extra={"event": "failed"})

    def _publish(self, servicer: v1_grpc.FederationServicer) -> Callable[[], None]:
        # imported here, so that a server without metrics does not load prometheus_client
        from tardigrad.service.monitor.metrics import MetricsCollector, RunsCollector, publish

        endpoint, certificates = self._endpoint, self._certificates
        assert endpoint.metrics_port is not None
        each = {
            run.name: MetricsCollector(run.coordinator, run.servicer, run.folder, certificates)
            for run in self.runs
        }
        refusals = servicer.refusals if isinstance(servicer, RunRouter) else None
        collector = each[self.runs[0].name] if refusals is None else RunsCollector(each, refusals.counts)
        port, end = publish(endpoint.metrics_host, endpoint.metrics_port, collector)
        log.info("metrics on http://%s:%d/metrics", endpoint.metrics_host, port, extra={"event": "metrics"})
        return end
