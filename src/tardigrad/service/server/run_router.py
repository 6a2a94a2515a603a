"""The calls of a server with several runs: each is passed on to the run that it belongs to.

The first call of a client says which run it wants, or any. Every later one has the session of a run in its
claim. The claim is read before it is verified, only to choose the run: the run's own verifier then checks
everything, as on a server with one run.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NoReturn, Protocol, cast

import grpc

from tardigrad.service.access.signed_requests import RequestVerifier, claim_of
from tardigrad.service.monitor.logs import served_run
from tardigrad.service.protocol.refusals import Cause, Refusals, Refused, abort_over, abort_refused
from tardigrad.service.protocol.v1 import service_pb2 as v1
from tardigrad.service.protocol.v1 import service_pb2_grpc as v1_grpc
from tardigrad.service.server.limits import unless_silent
from tardigrad.service.server.rpc import no_such_run, parsed_content

FIRST_SECONDS = 30.0
"""Seconds that a client has to send the header of an upload."""
JOINED_SECONDS = 60.0
"""Seconds for which a client that has joined counts as one at work, though it may not have a task yet."""


class RoutedRun(Protocol):
    """A run that the router knows: one that is served, or one that is over."""

    name: str
    gate: RequestVerifier
    calls: set[asyncio.Task[Any]]

    @property
    def answering(self) -> v1_grpc.FederationServicer:
        """The servicer that answers the calls now."""

    @property
    def over(self) -> str | None:
        """Why the run has ended; None while it goes on."""

    @property
    def failed(self) -> bool:
        """Whether the run has ended with an error."""

    @property
    def concurrency(self) -> int:
        """How many clients may be at work."""

    def at_work(self) -> set[str]:
        """Return the clients that are at work."""

    def has_work_for(self, client: str) -> bool:
        """Return whether this client could get a task."""

    def has_ejected(self, client: str) -> bool:
        """Return whether an operator has ejected this client from the run."""


class RunRouter(v1_grpc.FederationServicer):
    """The six calls of the protocol, for several runs."""

    def __init__(self, runs: Sequence[RoutedRun], front: RequestVerifier) -> None:
        """`front`: verifies the first call of a client, so that strangers learn nothing of the runs, and no
        such call is made twice, whatever run it goes to."""
        self._runs = {run.name: run for run in runs}
        self._sessions = {run.gate.session: run for run in runs}
        self._front = front
        self._joined: dict[str, tuple[str, float]] = {}  # by client: its last run, and when it joined
        self.refusals = Refusals()
        """Requests that came to no run."""

    async def Join(self, request: v1.Signed, context: grpc.aio.ServicerContext) -> v1.Joined:
        """Pass a client on to the run that it wants, or to one that has room for it."""
        client, run = "", None
        try:
            client, content = await self._front.admitted(request, "Join")
            run = self._wanted(client, parsed_content(v1.JoinRequest(), content).run)
        except Refused as refused:
            await self._refuse(context, client, "Join", refused)
        if run is None:
            mine = [f"{one.name}: {one.over}" for one in self._of(client)]
            await abort_over(context, "; ".join(mine))
            raise AssertionError("`abort` raises")
        self._joined[client] = run.name, time.monotonic()
        with _under_way(run):
            return cast(v1.Joined, await run.answering.Join(request, context))

    def _of(self, client: str) -> list[RoutedRun]:
        """Return the runs that a client is enrolled for."""
        return [run for run in self._runs.values() if run.gate.knows(client)]

    def _wanted(self, client: str, name: str) -> RoutedRun | None:
        """Return the run of this name, or if that is "" the one that the client is best sent to; None if all
        its runs are over. Raise `Refused` if there is none for it."""
        mine = self._of(client)
        if name:
            for run in mine:
                if run.name == name:
                    return run
            raise no_such_run(client, name)
        if not mine:
            raise Refused(
                Cause.NOT_ENROLLED,
                f"client {client} is enrolled for no run that is served here; ask the server's operator for "
                "`tardigrad enroll`",
            )
        going_on = [run for run in mine if run.over is None and not run.failed]
        welcome = [run for run in going_on if not run.has_ejected(client)]
        if welcome:
            return min(welcome, key=lambda run: self._load(run, client))
        if going_on:
            raise Refused(
                Cause.EJECTED,
                f"{client} was ejected by the operator from all its runs that go on; ask for "
                "`tardigrad admin admit`",
            )
        if any(run.failed for run in mine):
            raise Refused(Cause.FAILED, "the runs of this client have failed or are over; ask the operator")
        return None

    def _load(self, run: RoutedRun, client: str) -> tuple[bool, bool, float]:
        """Return what makes a run less fit for a client: not having its trip, having no work for it, and
        having many clients for its concurrency."""
        since = time.monotonic() - JOINED_SECONDS
        busy = run.at_work()
        new = {name for name, (where, when) in self._joined.items() if where == run.name and when >= since}
        others = (busy | new) - {client}
        return client not in busy, not run.has_work_for(client), len(others) / run.concurrency

    async def FetchTask(self, request: v1.Signed, context: grpc.aio.ServicerContext) -> None:
        """Pass the call on to the run of its session."""
        with _under_way(await self._run_of(request, "FetchTask", context)) as run:
            await run.answering.FetchTask(request, context)

    async def GiveUp(self, request: v1.Signed, context: grpc.aio.ServicerContext) -> v1.GivenUp:
        """Pass the call on to the run of its session."""
        with _under_way(await self._run_of(request, "GiveUp", context)) as run:
            return cast(v1.GivenUp, await run.answering.GiveUp(request, context))

    async def OfferKeys(self, request: v1.Signed, context: grpc.aio.ServicerContext) -> v1.OfferedKeys:
        """Pass the call on to the run of its session."""
        with _under_way(await self._run_of(request, "OfferKeys", context)) as run:
            return cast(v1.OfferedKeys, await run.answering.OfferKeys(request, context))

    async def Watch(self, request: v1.Signed, context: grpc.aio.ServicerContext) -> None:
        """Pass the call on to the run of its session."""
        with _under_way(await self._run_of(request, "Watch", context)) as run:
            await run.answering.Watch(request, context)

    async def Deliver(self, _: AsyncIterator[v1.UploadPart], context: grpc.aio.ServicerContext) -> v1.Answer:
        """Pass the call on to the run of the session in the upload's header."""
        try:
            first = await unless_silent(context.read(), FIRST_SECONDS)
        except Refused as refused:
            await self._refuse(context, "", "Deliver", refused)
        except Exception:
            if not context.done():
                raise
            return v1.Answer()  # the client has hung up, so nobody is told
        begins = isinstance(first, v1.UploadPart) and first.WhichOneof("part") == "header"
        header = first.header if begins else v1.Signed()
        with _under_way(await self._run_of(header, "Deliver", context)) as run:
            return cast(v1.Answer, await run.answering.Deliver(_, _Begun(first, context)))

    async def _run_of(self, request: v1.Signed, method: str, context: grpc.aio.ServicerContext) -> RoutedRun:
        """Return the run whose session is in a claim, which is not verified here."""
        try:
            run = self._sessions.get(claim_of(request).session)
            if run is None:
                raise Refused(Cause.SESSION, "signed for another session of the server; join again")
        except Refused as refused:
            await self._refuse(context, "", method, refused)
        return run

    async def _refuse(
        self, context: grpc.aio.ServicerContext, client: str, method: str, refused: Refused
    ) -> NoReturn:
        self.refusals.note(client, method, refused)
        await abort_refused(context, refused, self._front.now_ms())


@contextmanager
def _under_way(run: RoutedRun) -> Iterator[RoutedRun]:
    """Let the present call be one of this run: in its log lines, and when the run is stopped."""
    call = asyncio.current_task()
    assert call is not None
    served_run.set(run.name)
    run.calls.add(call)
    try:
        yield run
    finally:
        run.calls.discard(call)


class _Begun:
    """The context of an upload whose first message was read already."""

    def __init__(self, first: object, context: grpc.aio.ServicerContext) -> None:
        self._first: object | None = first
        self._context = context

    async def read(self) -> object:
        """Return the first message again, and then those that follow."""
        if self._first is not None:
            first, self._first = self._first, None
            return first
        return await self._context.read()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._context, name)
