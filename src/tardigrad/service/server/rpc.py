"""The gRPC server: who asks, is it allowed, what is it; then it is the coordinator's."""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import grpc
import numpy as np
from google.protobuf.message import DecodeError
from grpc_health.v1 import health, health_pb2, health_pb2_grpc

from tardigrad.core.upload import Vectors
from tardigrad.errors import ConfigError
from tardigrad.service.access.certificates import SERVER, SERVER_KEY
from tardigrad.service.access.signed_requests import RequestVerifier
from tardigrad.service.protocol.refusals import Cause, Refusals, Refused
from tardigrad.service.protocol.v1 import service_pb2 as v1
from tardigrad.service.protocol.v1 import service_pb2_grpc as v1_grpc
from tardigrad.service.protocol.wire import CHUNK, LARGEST_MESSAGE, chunks, empty, received, size_of, to_wire
from tardigrad.service.server.coordinator import Coordinator
from tardigrad.service.server.limits import Rates, UploadMemory
from tardigrad.service.server.model_state import Broadcast
from tardigrad.service.server.upload_checks import Reported, check_body, check_header
from tardigrad.service.store.contract import JournalEntry, RecordedAnswer, StoreError

NAME = "tardigrad.v1.Federation"
SLOWEST = 16 * 1024
"""Bytes a second below which an upload is cut off, for it keeps memory that others wait for."""
WATCH_SECONDS = 2.0
"""Who watches hears something at least so often."""
OPTIONS = [
    ("grpc.max_receive_message_length", LARGEST_MESSAGE),
    ("grpc.max_send_message_length", LARGEST_MESSAGE),
    ("grpc.so_reuseport", 0),
    ("grpc.max_concurrent_streams", 16),  # of one connection
    ("grpc.keepalive_time_ms", 30_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.http2.min_recv_ping_interval_without_data_ms", 10_000),
    ("grpc.keepalive_permit_without_calls", 1),
]

Message = Any


@dataclass(frozen=True)
class TaskFacts:
    """What the server tells its clients, the same for all trips."""

    settings: str
    """JSON: algorithm, local."""
    shapes: list[tuple[int, ...]]
    seed: Callable[[int], int]
    """Of a trip."""
    private: bool = False
    """Whether privacy is promised: then what clients say of themselves is neither judged nor kept."""
    metrics: frozenset[str] = frozenset()
    """Names of metrics that clients may report."""


class Servicer(v1_grpc.FederationServicer):
    """The five calls."""

    def __init__(self, coordinator: Coordinator, gate: RequestVerifier, facts: TaskFacts) -> None:
        self._coordinator, self._gate, self._facts = coordinator, gate, facts
        self.refusals = Refusals()
        self._rates = Rates(coordinator.settings.requests_per_second, coordinator.clock)
        self.reception = UploadMemory(coordinator.settings.reception_bytes)
        self._packed: tuple[int, list[bytes]] = (-1, [])

    @asynccontextmanager
    async def _answering(self, method: str, context: grpc.aio.ServicerContext) -> AsyncIterator[list[str]]:
        """A refusal becomes a gRPC status with one sentence, and is counted."""
        client = [""]
        try:
            yield client
        except Refused as refused:
            self.refusals.note(client[0], method, refused)
            trailing = [("tardigrad-time-ms", str(self._gate.now_ms())), ("tardigrad-why", refused.why.value)]
            if refused.retry_after is not None:
                trailing.append(
                    ("tardigrad-retry-after", f"{refused.retry_after * random.uniform(1, 2):.3f}")
                )
            await context.abort(refused.status, refused.sentence, tuple(trailing))
        except Exception:
            if not context.done():
                raise
            # who asked has hung up: nobody is left to hear of it

    async def _admit(self, signed: v1.Signed, method: str, client: list[str]) -> bytes:
        name, content = await self._gate.admitted(signed, method)
        client[0] = name
        self._coordinator.counters.heard(name)
        self._rates.take(name)
        return content

    async def Join(self, request: v1.Signed, context: grpc.aio.ServicerContext) -> v1.Joined:
        """What a client must know before anything else."""
        async with self._answering("Join", context) as client:
            await self._admit(request, "Join", client)
            shapes = [v1.Shape(sizes=shape) for shape in self._facts.shapes]
            rate = self._coordinator.settings.requests_per_second
            return v1.Joined(
                run=self._coordinator.run,
                session=self._gate.session,
                shapes=shapes,
                requests_per_second=rate,
            )

    async def FetchTask(self, request: v1.Signed, context: grpc.aio.ServicerContext) -> None:
        """A task, or that there is none."""
        coordinator = self._coordinator
        async with self._answering("FetchTask", context) as client:
            content = await self._admit(request, "FetchTask", client)
            fetch = _parsed(v1.FetchRequest(), content)
            seconds = coordinator.settings.poll_seconds * random.uniform(0.75, 1.25)
            try:
                ticket = await coordinator.check_in(client[0], frozenset(fetch.holding), seconds)
            except Refused as refused:  # the disk is full
                self.refusals.note(client[0], "FetchTask", refused)
                wait = (refused.retry_after or 0.0) * random.uniform(1, 2)
                await context.write(v1.TaskPart(wait=v1.Wait(seconds=wait, reason=refused.sentence)))
                return
            if ticket is None:
                await context.write(self._no_task())
                return
            epoch = coordinator.run_state.epochs.get(ticket.trip, 0)
            broadcast = await coordinator.broadcast(ticket.version)
            header = v1.TaskHeader(
                trip=ticket.trip,
                version=ticket.version,
                seed=self._facts.seed(ticket.trip),
                settings=self._facts.settings,
                vectors=to_wire(broadcast.layout),
                evaluate=coordinator.run_state.wants_reports(ticket.version),
                epoch=epoch,
            )
            await self._within(context.write(v1.TaskPart(header=header)))
            for part in self._parts(ticket.version, broadcast):
                await self._within(context.write(part))
            coordinator.counters.bytes_out += len(broadcast.room)

    def _parts(self, version: int, broadcast: Broadcast) -> list[bytes]:
        """A version's chunks as they travel. Many clients are given the same one, one after the other."""
        if self._packed[0] != version:
            parts = [v1.TaskPart(chunk=chunk).SerializeToString() for chunk in chunks(broadcast.room)]
            self._packed = version, parts
        return self._packed[1]

    def _no_task(self) -> v1.TaskPart:
        over = self._coordinator.run_state.over
        if over is not None:
            return v1.TaskPart(over=v1.Over(reason=over))
        if self._coordinator.stopping:
            return v1.TaskPart(
                wait=v1.Wait(seconds=random.uniform(0.5, 1.5), reason="the server is stopping")
            )
        return v1.TaskPart(wait=v1.Wait(seconds=random.uniform(0.0, 0.5), reason="there is no room"))

    async def _within(self, waiting: Awaitable[Message], seconds: float | None = None) -> Message:
        """What the client does, unless it is silent for too long."""
        limit = max(0.0, self._coordinator.settings.idle_seconds if seconds is None else seconds)
        try:
            async with asyncio.timeout(limit):  # unlike wait_for, it takes no task of its own
                return await waiting
        except TimeoutError:
            raise Refused(
                Cause.SILENT,
                f"nothing moved for {limit:g} s, or it was slower than {SLOWEST} bytes a second",
            ) from None

    async def Deliver(self, _: AsyncIterator[v1.UploadPart], context: grpc.aio.ServicerContext) -> v1.Answer:
        """An upload: acknowledged when it is safe."""
        coordinator = self._coordinator
        async with self._answering("Deliver", context) as client:
            if coordinator.stopping:
                raise Refused(Cause.STOPPING, "the server is about to stop; deliver again", retry_after=1.0)
            first = await self._within(context.read())
            if not isinstance(first, v1.UploadPart) or first.WhichOneof("part") != "header":
                raise Refused(Cause.UNSIGNED, "an upload must begin with its signed header")
            header = _parsed(v1.UploadHeader(), await self._admit(first.header, "Deliver", client))
            if header.run != coordinator.run:
                raise Refused(Cause.UNSOLICITED, "this is an upload to another run")
            recorded = await coordinator.expect(
                client[0], header.trip, header.epoch, header.version, header.digest
            )
            if recorded is not None:
                return self._answer(recorded)
            if coordinator.run_state.over is not None:
                return v1.Answer(reason="the run is over", over=coordinator.run_state.over)
            facts, wanted = self._facts, coordinator.run_state.wants_reports(header.version)
            reported = check_header(
                header, coordinator.upload_layout, coordinator.settings, facts.private,
                facts.metrics if wanted else frozenset(),
            )  # fmt: skip
            coordinator.counters.dropped(client[0], reported.dropped)
            return await self._receive(client[0], header, reported, context)

    async def _receive(
        self,
        client: str,
        header: v1.UploadHeader,
        reported: Reported,
        context: grpc.aio.ServicerContext,
    ) -> v1.Answer:
        coordinator, layout = self._coordinator, self._coordinator.upload_layout
        size = size_of(layout)
        coordinator.arriving(header.trip)
        try:
            await self.reception.take(size, coordinator.settings.idle_seconds)
            try:
                room = empty(layout)
                await self._fill(room, context)
            except BaseException:
                self.reception.give_back(size)
                raise
            coordinator.counters.bytes_in += size
            # it is all here: what the client does from now on changes nothing
            coordinator.arriving(header.trip)
            counting = asyncio.ensure_future(self._count(client, header, reported, room))
            counting.add_done_callback(lambda _: coordinator.arrived(header.trip))
            return await asyncio.shield(counting)
        finally:
            coordinator.arrived(header.trip)

    async def _count(
        self, client: str, header: v1.UploadHeader, reported: Reported, room: np.ndarray
    ) -> v1.Answer:
        """Look at it, write it down, and make it count."""
        coordinator = self._coordinator
        kept = [len(room)]

        def release() -> None:
            if kept:
                self.reception.give_back(kept.pop())

        try:
            vectors, file, norm, refusal = await asyncio.to_thread(self._keep, room, header)
            entry = JournalEntry(
                "deliver", 0.0, client, header.trip, file, reported.examples, reported.steps, reported.loss,
                header.digest, reported.evaluated, json.dumps(reported.metrics), norm=norm, refusal=refusal,
                epoch=header.epoch,
            )  # fmt: skip
            recorded = await coordinator.deliver(entry, vectors, release)
        except BaseException:
            release()
            raise
        return self._over() if recorded is None else self._answer(recorded)

    async def _fill(self, room: np.ndarray, context: grpc.aio.ServicerContext) -> None:
        """The chunks, one after the other; never more than there is room for."""
        now = asyncio.get_running_loop().time
        idle = self._coordinator.settings.idle_seconds
        deadline = now() + idle + len(room) / SLOWEST
        place = 0
        while True:
            part = await self._within(context.read(), min(idle, deadline - now()))
            if part is grpc.aio.EOF:
                break
            chunk = part if isinstance(part, memoryview) else part.chunk
            end = place + len(chunk)
            if not chunk or len(chunk) > CHUNK or end > len(room):
                raise Refused(
                    Cause.LENGTH,
                    f"a chunk of {len(chunk)} bytes at {place} of {len(room)} that were declared",
                )
            room[place:end] = np.frombuffer(chunk, np.uint8)
            place = end
        if place != len(room):
            raise Refused(Cause.LENGTH, f"{place} bytes came, but {len(room)} were declared")

    def _keep(self, room: np.ndarray, header: v1.UploadHeader) -> tuple[Vectors, str, float, str]:
        """Look at the values and put them on disk; in a thread. Return the vectors, the name of their file,
        their norm, and why they do not count; if they do not, there is no file."""
        coordinator, admission = self._coordinator, self._coordinator.run_state.admission
        vectors, norm = check_body(room, header, coordinator.upload_layout, self._facts.private)
        refusal = None if admission is None else admission.refusal(norm)
        if refusal is not None:
            return vectors, "", norm, refusal
        try:
            return vectors, coordinator.write(header.trip, room), norm, ""
        except StoreError as error:
            raise Refused(
                Cause.DISK, f"the server cannot write ({error}); come again later", retry_after=5.0
            ) from None

    def _answer(self, recorded: RecordedAnswer) -> v1.Answer:
        return v1.Answer(**recorded.answer, over=self._coordinator.run_state.over or "")

    def _over(self) -> v1.Answer:
        return v1.Answer(reason="the run is over", over=self._coordinator.run_state.over or "")

    async def GiveUp(self, request: v1.Signed, context: grpc.aio.ServicerContext) -> v1.GivenUp:
        """The client will not do this trip."""
        async with self._answering("GiveUp", context) as client:
            wanted = _parsed(v1.GiveUpRequest(), await self._admit(request, "GiveUp", client))
            known = wanted.run == self._coordinator.run and await self._coordinator.give_up(
                client[0], wanted.trip, wanted.epoch
            )
            return v1.GivenUp(known=known)

    async def Watch(self, request: v1.Signed, context: grpc.aio.ServicerContext) -> None:
        """How the run gets on."""
        coordinator = self._coordinator
        async with self._answering("Watch", context) as client:
            await self._admit(request, "Watch", client)
            while True:
                run_state = coordinator.run_state
                await self._within(context.write(v1.Progress(
                    version=run_state.book.version, trips=run_state.trips, time=run_state.time,
                    in_flight=len(run_state.book.in_flight), over=run_state.over or "",
                    metrics=coordinator.model_state.metrics or run_state.reports.metrics,
                    waiting=coordinator.waiting, given_up=run_state.given_up, refused=run_state.refused,
                    staleness=coordinator.counters.staleness.mean,
                )))  # fmt: skip
                if run_state.over is not None or coordinator.stopping:
                    return
                async with coordinator.moved:
                    with contextlib.suppress(TimeoutError):
                        await asyncio.wait_for(coordinator.moved.wait(), WATCH_SECONDS)


def _parsed(message: Any, content: bytes) -> Any:
    try:
        message.ParseFromString(content)
    except DecodeError:
        raise Refused(Cause.UNSIGNED, f"the request's content is not a {type(message).__name__}") from None
    return message


def _signed(data: bytes) -> v1.Signed:
    """A request as it came; what is none is one that nobody has signed."""
    try:
        return v1.Signed.FromString(data)
    except DecodeError:
        return v1.Signed()


def _sent(part: v1.TaskPart | bytes) -> bytes:
    return part if isinstance(part, bytes) else part.SerializeToString()


def _handlers(servicer: Servicer) -> grpc.GenericRpcHandler:
    """The calls by their names. gRPC's own way of reading requests would log a traceback for each that is
    malformed, and copy chunks."""
    return grpc.method_handlers_generic_handler(NAME, {
        "Join": grpc.unary_unary_rpc_method_handler(
            servicer.Join, _signed, v1.Joined.SerializeToString),
        "FetchTask": grpc.unary_stream_rpc_method_handler(
            servicer.FetchTask, _signed, _sent),
        "Deliver": grpc.stream_unary_rpc_method_handler(
            servicer.Deliver, received, v1.Answer.SerializeToString),
        "GiveUp": grpc.unary_unary_rpc_method_handler(
            servicer.GiveUp, _signed, v1.GivenUp.SerializeToString),
        "Watch": grpc.unary_stream_rpc_method_handler(
            servicer.Watch, _signed, v1.Progress.SerializeToString),
    })  # fmt: skip


def _fault(host: str, port: int) -> str:
    """Why nobody can listen there; nothing if it can be done. gRPC itself does not say."""
    if not host:
        return "no host was given"
    fault = ""
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (OSError, UnicodeError) as error:
        return getattr(error, "strerror", None) or str(error)
    for family, kind, protocol, _, place in found:
        try:
            with socket.socket(family, kind, protocol) as trial:
                trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                trial.bind(place)
                return ""
        except OSError as error:
            fault = error.strerror or str(error)
    return fault


class Server:
    """Listens until it is stopped."""

    def __init__(self, servicer: Servicer) -> None:
        self.servicer = servicer
        self._server = grpc.aio.server(options=OPTIONS)
        self._health = health.aio.HealthServicer()
        self._server.add_generic_rpc_handlers((_handlers(servicer),))
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self._server)

    async def start(self, address: str, credentials: grpc.ServerCredentials | None) -> int:
        """Listen; the port, which the system chooses if 0 was given. Without credentials: without TLS."""
        host, _, number = address.rpartition(":")
        host = host.removeprefix("[").removesuffix("]")
        where = f"--host {host or repr(host)} --port {number}"
        if fault := await asyncio.to_thread(_fault, host, int(number)):
            raise ConfigError(
                f"{where}: cannot listen there ({fault}); give an address of this machine and a free port"
            )
        address = f"[{host}]:{number}" if ":" in host else f"{host}:{number}"
        try:
            if credentials is None:
                port = self._server.add_insecure_port(address)
            else:
                port = self._server.add_secure_port(address, credentials)
        except RuntimeError:
            if credentials is None:
                raise ConfigError(f"{where}: cannot listen there; give another port") from None
            raise ConfigError(  # there was nothing wrong with the address
                f"--keys: {SERVER} and {SERVER_KEY} cannot be used to listen with {where}; they must be a "
                "certificate in PEM and the key that belongs to it"
            ) from None
        await self._server.start()
        for name in ("", NAME):
            await self._health.set(name, health_pb2.HealthCheckResponse.SERVING)
        return port

    async def stop(self, grace: float) -> None:
        """Take no new calls; those that are under way may end within so many seconds."""
        await self._health.enter_graceful_shutdown()
        await self._server.stop(grace)
