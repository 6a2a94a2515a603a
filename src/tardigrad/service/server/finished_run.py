"""Runs that are not served any more: enrolled clients that come late are told why."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc

from tardigrad.service.access.enrolment import Enrolled, EnrolledFor, clients_of_run
from tardigrad.service.access.signed_requests import RequestVerifier
from tardigrad.service.protocol.refusals import Cause, Refused, abort_over, abort_refused
from tardigrad.service.protocol.v1 import service_pb2 as v1
from tardigrad.service.protocol.v1 import service_pb2_grpc as v1_grpc
from tardigrad.service.server.endpoint import Endpoint
from tardigrad.service.server.listener import Server
from tardigrad.service.server.run_plan import RunPlan


class FinishedRunServicer(v1_grpc.FederationServicer):
    """Answers `Join` with the reason why the run ended, and refuses all other calls."""

    def __init__(self, gate: RequestVerifier, reason: str) -> None:
        self._gate, self._reason = gate, reason

    async def Join(self, request: v1.Signed, context: grpc.aio.ServicerContext) -> None:
        """Tell an enrolled client that the run is over."""
        try:
            await self._gate.admitted(request, "Join")
        except Refused as refused:
            await abort_refused(context, refused, self._gate.now_ms())
        await abort_over(context, self._reason)

    async def _join_first(self, _: object, context: grpc.aio.ServicerContext) -> None:
        """Refuse a client whose session ended with the last process; it joins again and is told."""
        refused = Refused(Cause.SESSION, "the server was restarted; join again")
        await abort_refused(context, refused, self._gate.now_ms())

    FetchTask = Deliver = GiveUp = OfferKeys = Watch = _join_first


class FailedRunServicer(v1_grpc.FederationServicer):
    """Refuses all calls to a run that has failed, on a server whose other runs go on."""

    def __init__(self, gate: RequestVerifier, name: str) -> None:
        self._gate, self._name = gate, name

    async def _refuse(self, _: object, context: grpc.aio.ServicerContext) -> None:
        refused = Refused(Cause.FAILED, f"the run {self._name} has failed; its operator must start it again")
        await abort_refused(context, refused, self._gate.now_ms())

    Join = FetchTask = Deliver = GiveUp = OfferKeys = Watch = _refuse


class FinishedRun:
    """A run that was over when the server began, beside others that go on."""

    def __init__(self, name: str, reason: str, linger_seconds: float, enrolled: Enrolled) -> None:
        self.name, self._linger_seconds = name, linger_seconds
        self.gate = RequestVerifier(EnrolledFor(enrolled, name))
        self.over: str | None = reason
        self.failed, self.concurrency = False, 1
        self.answering: v1_grpc.FederationServicer = FinishedRunServicer(self.gate, reason)
        self.calls: set[asyncio.Task[Any]] = set()

    def at_work(self) -> set[str]:
        """Return no clients."""
        return set()

    def has_work_for(self, client: str) -> bool:
        """Return False."""
        return False

    def has_ejected(self, client: str) -> bool:
        """Return False."""
        return False

    async def until_over(self, asked: asyncio.Future[None]) -> None:
        """Wait for the seconds in which clients are told at least, or until `asked` is done."""
        await asyncio.wait({asked}, timeout=self._linger_seconds)


async def tell_over(
    plan: RunPlan, endpoint: Endpoint, folder: Path, reason: str, listening: Callable[[int], None]
) -> None:
    """Listen for `linger_seconds`, as a server does after the end of its run, or until a signal asks to stop.
    `folder`: of the run. `listening` is called with the port."""
    asked = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, asked.set)
    if not plan.settings.linger_seconds:
        return
    gate = RequestVerifier(clients_of_run(endpoint.keys, folder))
    loop.add_signal_handler(signal.SIGHUP, gate.reload)
    server = Server(FinishedRunServicer(gate, reason))
    listening(await server.start(f"{endpoint.host}:{endpoint.port}", endpoint.credentials()))
    try:
        await asyncio.wait_for(asked.wait(), plan.settings.linger_seconds)
    except TimeoutError:
        pass
    finally:
        await server.stop(1.0)
