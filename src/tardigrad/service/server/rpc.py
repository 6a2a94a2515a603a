"""The calls of the protocol: authenticate the client, check the request, and pass it to the coordinator."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TypeVar

import grpc
from google.protobuf.message import DecodeError, Message

from tardigrad.service.access.signed_requests import RequestVerifier
from tardigrad.service.monitor.progress_record import RunProgress, progress_of
from tardigrad.service.protocol.refusals import LONGEST_NAME, PAUSED, Cause, Refusals, Refused, abort_refused
from tardigrad.service.protocol.v1 import service_pb2 as v1
from tardigrad.service.protocol.v1 import service_pb2_grpc as v1_grpc
from tardigrad.service.protocol.wire import KNOWS_ENCODINGS, to_wire
from tardigrad.service.server.coordinator import Coordinator
from tardigrad.service.server.limits import Rates, unless_silent
from tardigrad.service.server.secure_replies import SecureReplies
from tardigrad.service.server.task_broadcast import Broadcast
from tardigrad.service.server.upload_checks import check_header, wrong_encoding
from tardigrad.service.server.upload_reception import UploadReception
from tardigrad.service.store.contract import RecordedAnswer

LARGEST_KEPT = 2**26
"""Bytes of the largest version of which a second copy is kept in memory, as messages."""
WATCH_SECONDS = 2.0
"""The longest time between two messages to a client that watches."""

M = TypeVar("M", bound=Message)


@dataclass(frozen=True)
class TaskFacts:
    """The facts about a run's tasks that the server tells its clients; they are the same for all trips."""

    settings: str
    """Algorithm and local training as JSON."""
    shapes: list[tuple[int, ...]]
    """Shapes of the model's parameters."""
    seed: Callable[[int], int]
    """Returns the seed of a trip."""
    private: bool = False
    """Whether privacy is promised. Then what clients report about themselves is neither checked nor kept."""
    metrics: frozenset[str] = frozenset()
    """Names of metrics that clients may report."""
    declaration: str = ""
    """The requirements for a client that has a table and no code, as JSON; "" if clients need code."""
    frozen: bytes = b""
    """The digest of the frozen part of the model; b"" if it is not compared."""
    encoded: bool = False
    """Whether versions are encoded, which older clients do not know."""


@dataclass
class Call:
    """A call that is being answered."""

    method: str
    client: str = ""
    """The client's name, once its signature was verified."""
    refused: bool = False
    """Whether it was refused in its answer, without a gRPC status."""


class Servicer(v1_grpc.FederationServicer):
    """The six calls of the protocol."""

    def __init__(
        self,
        coordinator: Coordinator,
        gate: RequestVerifier,
        facts: TaskFacts,
        name: str = "",
        alone: bool = True,
    ) -> None:
        """`name`: of the run. `alone`: whether it is the only run of the server, so that clients need not
        know its name."""
        self._coordinator, self._gate, self._facts = coordinator, gate, facts
        self._name, self._alone = name, alone
        self.enrolled = gate.enrolled
        self.refusals = Refusals()
        self._rates = Rates(coordinator.settings.requests_per_second, coordinator.clock)
        self.reception = UploadReception(coordinator, facts.private)
        link, secure = coordinator.link, coordinator.run_state.secure
        self._secure = None if link is None or secure is None else SecureReplies(secure, link)
        self._serialized: tuple[tuple[int, int], list[bytes]] = ((-1, 0), [])  # a download's chunks

    @asynccontextmanager
    async def _answering(self, method: str, context: grpc.aio.ServicerContext) -> AsyncIterator[Call]:
        """Turn `Refused` into a gRPC status with one sentence, and count it."""
        call = Call(method)
        try:
            yield call
            if not call.refused:
                self.refusals.answered(method)
        except Refused as refused:
            self.refusals.note(call.client, method, refused)
            nobody_waits = refused.why is Cause.HELPER_AWAY  # for the upload, if the run is over
            over = self._coordinator.run_state.over if nobody_waits else None
            await abort_refused(context, refused, self._gate.now_ms(), over)
        except Exception:
            if not context.done():
                raise
            # the client has hung up, so nobody can be told

    async def _admit(self, signed: v1.Signed, call: Call) -> bytes:
        """Return the content of a request that is signed by an enrolled client and within its rate."""
        call.client, content = await self._gate.admitted(signed, call.method)
        self._coordinator.counters.heard(call.client)
        self._coordinator.acts.check_not_ejected(call.client)
        self._rates.take(call.client, self._coordinator.settings.requests_per_second)
        return content

    def knows(self, client: str) -> bool:
        """Return whether this client is enrolled."""
        return self._gate.knows(client)

    async def Join(self, request: v1.Signed, context: grpc.aio.ServicerContext) -> v1.Joined:
        """Tell a client the run, its session and the shapes of the model's parameters."""
        async with self._answering("Join", context) as call:
            join = parsed_content(v1.JoinRequest(), await self._admit(request, call))
            if join.run not in ("", self._name):
                raise no_such_run(call.client, join.run)
            self._coordinator.counters.uses(call.client, join.software)
            if join.frozen and self._facts.frozen and join.frozen != self._facts.frozen:
                raise Refused(
                    Cause.FROZEN,
                    "the frozen parameters or buffers of this client's module differ from the server's, and "
                    "they do not travel; build the same module with the same values, as from one file (if "
                    "the server serves a Flower app: join with --flower)",
                )
            encoding = self._coordinator.uploads.kind
            if encoding and join.revision < KNOWS_ENCODINGS:
                raise Refused(Cause.TOO_OLD, wrong_encoding("", encoding))
            if self._facts.encoded and join.revision < KNOWS_ENCODINGS:
                raise Refused(Cause.TOO_OLD, "this run sends encoded versions; upgrade this client")
            content, signatures = (b"", ()) if self._secure is None else self._secure.policy(join.revision)
            shapes = [v1.Shape(sizes=shape) for shape in self._facts.shapes]
            rate = self._coordinator.settings.requests_per_second
            return v1.Joined(
                run=self._coordinator.run,
                session=self._gate.session,
                shapes=shapes,
                requests_per_second=rate,
                declaration=self._facts.declaration,
                settings=self._facts.settings,
                policy=content,
                policy_signatures=signatures,
                name="" if self._alone else self._name,
            )

    async def OfferKeys(self, request: v1.Signed, context: grpc.aio.ServicerContext) -> v1.OfferedKeys:
        """Tell a client of a secure run the keys that it seals its seeds to."""
        async with self._answering("OfferKeys", context) as call:
            await self._admit(request, call)
            if self._secure is None:
                raise Refused(Cause.UNSOLICITED, "this run is not secure, so that it has no helpers")
            return v1.OfferedKeys(keys=self._secure.keys())

    async def FetchTask(self, request: v1.Signed, context: grpc.aio.ServicerContext) -> None:
        """Send a task, or why there is none now."""
        coordinator, idle = self._coordinator, self._coordinator.settings.idle_seconds
        async with self._answering("FetchTask", context) as call:
            content = await self._admit(request, call)
            fetch = parsed_content(v1.FetchRequest(), content)
            seconds = coordinator.settings.poll_seconds * random.uniform(0.75, 1.25)
            try:
                ticket = await coordinator.check_in(call.client, frozenset(fetch.holding), seconds)
            except Refused as refused:  # the disk is full
                call.refused = True
                self.refusals.note(call.client, call.method, refused)
                wait = (refused.retry_after or 0.0) * random.uniform(1, 2)
                await context.write(v1.TaskPart(wait=v1.Wait(seconds=wait, reason=refused.sentence)))
                return
            if ticket is None:
                await context.write(self._no_task())
                return
            epoch = coordinator.run_state.epochs.get(ticket.trip, 0)
            broadcast, since = await coordinator.download(ticket.version, fetch.has)
            header = v1.TaskHeader(
                trip=ticket.trip,
                version=ticket.version,
                seed=self._facts.seed(ticket.trip),
                settings=self._facts.settings,
                vectors=to_wire(broadcast.layout),
                evaluate=coordinator.run_state.wants_reports(ticket.version),
                epoch=epoch,
                since=since,
                receipts=[] if self._secure is None else self._secure.receipts(ticket.version),
            )
            await unless_silent(context.write(v1.TaskPart(header=header)), idle)
            for part in self._parts((ticket.version, since), broadcast):
                await unless_silent(context.write(part), idle)
            coordinator.counters.bytes_out += broadcast.size

    def _parts(self, what: tuple[int, int], broadcast: Broadcast) -> Iterable[bytes]:
        """Return the chunks of a download as messages. Those of one are kept, because many clients download
        the same, unless they are large. `what`: the version, and `TaskHeader.since`."""
        parts = (v1.TaskPart(chunk=chunk).SerializeToString() for chunk in broadcast.chunks())
        if broadcast.size > LARGEST_KEPT:
            return parts
        if self._serialized[0] != what:
            self._serialized = what, list(parts)
        return self._serialized[1]

    def _no_task(self) -> v1.TaskPart:
        over = self._coordinator.run_state.over
        if over is not None:
            return v1.TaskPart(over=v1.Over(reason=over))
        if self._coordinator.stopping:
            return v1.TaskPart(
                wait=v1.Wait(seconds=random.uniform(0.5, 1.5), reason="the server is stopping")
            )
        reason = "enough clients are at work, or this one must wait for the next step"
        if self._coordinator.run_state.steering.paused is not None:
            reason = PAUSED
        return v1.TaskPart(wait=v1.Wait(seconds=random.uniform(0.0, 0.5), reason=reason))

    async def Deliver(self, _: AsyncIterator[v1.UploadPart], context: grpc.aio.ServicerContext) -> v1.Answer:
        """Receive an upload, and acknowledge it when it is journaled."""
        coordinator = self._coordinator
        async with self._answering("Deliver", context) as call:
            if coordinator.stopping:
                raise Refused(Cause.STOPPING, "the server is about to stop; deliver again", retry_after=1.0)
            first = await unless_silent(context.read(), coordinator.settings.idle_seconds)
            if not isinstance(first, v1.UploadPart) or first.WhichOneof("part") != "header":
                raise Refused(Cause.UNSIGNED, "an upload must begin with its signed header")
            header = parsed_content(v1.UploadHeader(), await self._admit(first.header, call))
            if header.run != coordinator.run:
                raise Refused(Cause.UNSOLICITED, "this is an upload to another run")
            recorded = await coordinator.expect(
                call.client, header.trip, header.epoch, header.version, header.digest
            )
            if recorded is not None or coordinator.run_state.over is not None:
                return self._answer(recorded)
            facts, wanted = self._facts, coordinator.run_state.wants_reports(header.version)
            reported = check_header(
                header, coordinator.uploads, coordinator.settings, facts.private,
                facts.metrics if wanted else frozenset(),
            )  # fmt: skip
            coordinator.counters.dropped(call.client, reported.dropped)
            signed = b"" if self._secure is None else self._secure.signed(header, first.header)
            return self._answer(await self.reception.receive(call.client, header, reported, context, signed))

    def _answer(self, recorded: RecordedAnswer | None) -> v1.Answer:
        """Return the answer to an upload; None stands for an upload that came after the end of the run."""
        over = self._coordinator.run_state.over or ""
        if recorded is None:
            return v1.Answer(reason="the run is over", over=over)
        return v1.Answer(**recorded.answer, over=over)

    async def GiveUp(self, request: v1.Signed, context: grpc.aio.ServicerContext) -> v1.GivenUp:
        """End a trip without an upload."""
        async with self._answering("GiveUp", context) as call:
            wanted = parsed_content(v1.GiveUpRequest(), await self._admit(request, call))
            known = wanted.run == self._coordinator.run and await self._coordinator.give_up(
                call.client, wanted.trip, wanted.epoch
            )
            return v1.GivenUp(known=known)

    async def Watch(self, request: v1.Signed, context: grpc.aio.ServicerContext) -> None:
        """Send the progress of the run whenever the version changes, and every few seconds."""
        coordinator, idle = self._coordinator, self._coordinator.settings.idle_seconds
        async with self._answering("Watch", context) as call:
            await self._admit(request, call)
            while True:
                coordinator.acts.check_not_ejected(call.client)
                progress = progress_of(coordinator, self)
                await unless_silent(context.write(_progress_message(progress)), idle)
                if progress.over is not None or coordinator.stopping:
                    return
                async with coordinator.moved:
                    with contextlib.suppress(TimeoutError):
                        await asyncio.wait_for(coordinator.moved.wait(), WATCH_SECONDS)
                await self._gate.check_still_known(call.client)


def _progress_message(progress: RunProgress) -> v1.Progress:
    return v1.Progress(
        version=progress.version, trips=progress.trips, time=progress.time, in_flight=progress.in_flight,
        metrics=progress.metrics, over=progress.over or "", waiting=progress.waiting,
        given_up=progress.given_up, refused=progress.refused, staleness=progress.staleness,
    )  # fmt: skip


def no_such_run(client: str, run: str) -> Refused:
    """Return the refusal of a client that asks for a run that it is not enrolled for, or that is not served.
    It does not say which of both, so that a client learns nothing of runs that it may not see."""
    return Refused(
        Cause.NOT_ENROLLED,
        f"client {client} is not enrolled for a run {run[:LONGEST_NAME]!r} here; ask the server's operator "
        f"for `tardigrad enroll {client} --run NAME`, or join without --run",
    )


def parsed_content(message: M, content: bytes) -> M:
    """Fill an empty message from these bytes; raise `Refused` if they are malformed."""
    try:
        message.ParseFromString(content)
    except DecodeError:
        raise Refused(Cause.UNSIGNED, f"the request's content is not a {type(message).__name__}") from None
    return message
