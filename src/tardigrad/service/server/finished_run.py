"""A server for a run that is over: enrolled clients that come late are told why it ended."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable

import grpc

from tardigrad.service.access.enrolment import LIST, Enrolled
from tardigrad.service.access.signed_requests import RequestVerifier
from tardigrad.service.protocol.refusals import OVER, Cause, Refused
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
            told = (("tardigrad-time-ms", str(self._gate.now_ms())), ("tardigrad-why", refused.why.value))
            await context.abort(refused.status, refused.sentence, told)
        await context.abort(
            grpc.StatusCode.FAILED_PRECONDITION, f"the run is over ({self._reason})", ((OVER, self._reason),)
        )

    async def _join_first(self, _: object, context: grpc.aio.ServicerContext) -> None:
        """Refuse a client whose session ended with the last process; it joins again and is told."""
        refused = Refused(Cause.SESSION, "the server was restarted; join again")
        await context.abort(refused.status, refused.sentence, (("tardigrad-why", refused.why.value),))

    FetchTask = Deliver = GiveUp = OfferKeys = Watch = _join_first


async def tell_over(plan: RunPlan, endpoint: Endpoint, reason: str, listening: Callable[[int], None]) -> None:
    """Listen for `linger_seconds`, as a server does after the end of its run, or until a signal asks to stop.
    `listening` is called with the port."""
    asked = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, asked.set)
    if not plan.settings.linger_seconds:
        return
    gate = RequestVerifier(Enrolled(endpoint.keys / LIST))
    loop.add_signal_handler(signal.SIGHUP, gate.reload)
    server = Server(FinishedRunServicer(gate, reason))
    listening(await server.start(f"{endpoint.host}:{endpoint.port}", endpoint.credentials()))
    try:
        await asyncio.wait_for(asked.wait(), plan.settings.linger_seconds)
    except TimeoutError:
        pass
    finally:
        await server.stop(1.0)
