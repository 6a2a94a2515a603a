"""A client's connection to a server: the six calls, signed. Failures are raised as gRPC's errors."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from dataclasses import dataclass
from types import TracebackType

import grpc
import numpy as np

from tardigrad import __version__
from tardigrad.core.upload import Task
from tardigrad.encodings.broadcasts import BroadcastEncoding
from tardigrad.errors import RunError
from tardigrad.service.access.enrolment import NAME
from tardigrad.service.access.signed_requests import Signer
from tardigrad.service.client.client_memory import TrainedUpload
from tardigrad.service.client.client_trainer import Assignment
from tardigrad.service.client.downloads import Downloads
from tardigrad.service.client.pacing import RequestPace
from tardigrad.service.protocol.task_settings import broadcast_encoding
from tardigrad.service.protocol.v1 import service_pb2 as v1
from tardigrad.service.protocol.v1 import service_pb2_grpc as v1_grpc
from tardigrad.service.protocol.wire import (
    CHUNK,
    LARGEST_MESSAGE,
    REVISION,
    TYPES,
    Layout,
    chunks,
    described,
    empty,
    from_wire,
    layout_of,
    size_of,
    to_wire,
    unpacked,
)

OPTIONS = [
    ("grpc.max_receive_message_length", LARGEST_MESSAGE),
    ("grpc.max_send_message_length", LARGEST_MESSAGE),
    ("grpc.keepalive_time_ms", 30_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.use_local_subchannel_pool", 1),
]
SOFTWARE = f"tardigrad {__version__}"
"""The software and its version, which clients say when they join."""
POLL_SECONDS = 120.0
"""The time-out of a request for a task; longer than any server lets its clients wait."""
SHORT_SECONDS = 30.0
IDLE_SECONDS = 60.0


@dataclass(frozen=True)
class RunIsOver:
    """The run has ended."""

    reason: str


@dataclass(frozen=True)
class RetryLater:
    """There is no task now."""

    seconds: float
    reason: str


class Connection:
    """One channel to a server, for one session of the server process."""

    def __init__(
        self,
        address: str,
        signer: Signer,
        authority: bytes | None,
        pace: RequestPace | None = None,
        frozen: bytes = b"",
        run: str = "",
    ) -> None:
        """Make a connection, without TLS if no certificate of an authority is given.

        With a `pace`, requests are delayed so that the server's limit is kept; it can outlive the connection.
        `frozen`: the digest of the frozen part of the client's module, which the server compares.
        `run`: the name of the run that is wanted, on a server with several; "" for any.
        """
        self._signer, self._pace = signer, pace
        self._request = v1.JoinRequest(frozen=frozen, revision=REVISION, run=run, software=SOFTWARE)
        if authority is None:
            self._channel = grpc.aio.insecure_channel(address, OPTIONS)
        else:
            credentials = grpc.ssl_channel_credentials(authority)
            self._channel = grpc.aio.secure_channel(address, credentials, OPTIONS)
        self._stub = v1_grpc.FederationStub(self._channel)
        self.run = ""
        self.shapes: list[tuple[int, ...]] = []
        self.declaration = ""
        self.settings = ""
        self.joined = v1.Joined()
        """The server's answer to the first call, as it came."""
        self._downloads = Downloads()

    async def __aenter__(self) -> Connection:
        try:
            await self._keep_pace()
            signed = self._signer.sign("Join", self._request.SerializeToString())
            joined = await self._stub.Join(signed, timeout=SHORT_SECONDS)
            if not NAME.fullmatch(joined.run):  # it becomes the name of a folder here
                raise RunError(
                    f"the server's run has the identifier {joined.run[:64]!r}, which is not a name"
                )
        except BaseException:
            await self._channel.close()
            raise
        self._signer.session = joined.session
        self.joined = joined
        self.run = joined.run
        self.shapes = [tuple(shape.sizes) for shape in joined.shapes]
        self.declaration = joined.declaration
        self.settings = joined.settings
        if self._pace is not None:
            self._pace.limit(joined.requests_per_second)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._channel.close()

    async def _keep_pace(self) -> None:
        if self._pace is not None:
            await self._pace.wait()

    async def fetch(
        self, holding: Iterable[int] = (), begun: Callable[[int, int], None] = lambda trip, epoch: None
    ) -> Assignment | RetryLater | RunIsOver:
        """Return a task, if there is one.

        `holding` are the trips that this client is working on. `begun` is called with the trip and its epoch
        before the vectors are downloaded.
        """
        await self._keep_pace()
        request = v1.FetchRequest(holding=list(holding), has=self._downloads.has).SerializeToString()
        call = self._stub.FetchTask(self._signer.sign("FetchTask", request))
        try:
            async with asyncio.timeout(POLL_SECONDS):  # `wait_for` of Python 3.11 may swallow a cancellation
                first = await call.read()
            if first is grpc.aio.EOF:
                await call.code()  # raises the error of the call, if it has one
                raise RunError("the server ended its answer without a task")
            match first.WhichOneof("part"):
                case "wait":
                    return RetryLater(first.wait.seconds, first.wait.reason)
                case "over":
                    return RunIsOver(first.over.reason)
            header = first.header
            begun(header.trip, header.epoch)
            layout = from_wire(header.vectors)
            encoding = broadcast_encoding(header.settings)
            self._check(layout, encoding, header)
            payload, offset = empty(layout), 0
            while offset < len(payload):
                async with asyncio.timeout(IDLE_SECONDS):
                    part = await call.read()
                if part is grpc.aio.EOF or not part.chunk or offset + len(part.chunk) > len(payload):
                    raise RunError("the server's task has another length than its header says")
                payload[offset : offset + len(part.chunk)] = np.frombuffer(part.chunk, np.uint8)
                offset += len(part.chunk)
        finally:
            call.cancel()
        received = unpacked(payload, layout)
        vectors = self._downloads.vectors(encoding, header.since, header.version, received)
        task = Task(header.trip, self._signer.client, header.version, vectors)
        return Assignment(
            task, header.seed, header.settings, header.evaluate, header.epoch, tuple(header.receipts)
        )

    def _check(self, layout: Layout, encoding: BroadcastEncoding, header: v1.TaskHeader) -> None:
        """Check, before memory is allocated, that the task has the model and no larger vector, or the
        differences that lead to it."""
        if header.since:
            if layout != self._downloads.expected(encoding, header.since, header.version):
                raise RunError(
                    f"the server sends {described(layout)}, which are not the differences expected"
                )
            return
        size = sum(math.prod(shape) for shape in self.shapes)
        if unknown := {dtype for _, dtype, _ in layout} - {*TYPES}:
            raise RunError(f"the server's task has numbers of the type {sorted(unknown)[0]!r}; is it newer?")
        if (
            {name: length for name, _, length in layout}.get("model") != size
            or any(length > size for _, _, length in layout)
            or len(layout) > 64
        ):
            raise RunError(f"the server's task has {described(layout)}, but the model has {size} numbers")

    async def offered_keys(self) -> list[v1.OfferedKey]:
        """Return the keys that the helpers of a secure run offer now."""
        await self._keep_pace()
        offered = await self._stub.OfferKeys(self._signer.sign("OfferKeys"), timeout=SHORT_SECONDS)
        return list(offered.keys)

    async def deliver(self, finished: TrainedUpload, envelopes: Sequence[v1.Envelope] = ()) -> v1.Answer:
        """Deliver an upload, and return the server's answer. `envelopes`: in a secure run, its seeds."""
        await self._keep_pace()
        upload = finished.upload
        layout = layout_of(upload.vectors)
        header = v1.UploadHeader(
            run=self.run,
            trip=finished.trip,
            version=finished.version,
            vectors=to_wire(layout),
            digest=finished.digest,
            examples=upload.examples,
            steps=upload.steps,
            loss=upload.loss,
            evaluated=finished.evaluated,
            metrics=finished.metrics,
            epoch=finished.epoch,
            encoding=finished.encoding,
            envelopes=envelopes,
        )
        signed = self._signer.sign("Deliver", header.SerializeToString())

        async def parts() -> AsyncIterator[v1.UploadPart]:
            yield v1.UploadPart(header=signed)
            for chunk in chunks(upload.vectors):
                yield v1.UploadPart(chunk=chunk)

        seconds = 4 * IDLE_SECONDS + size_of(layout) / (CHUNK / 64)
        answer: v1.Answer = await self._stub.Deliver(parts(), timeout=seconds)
        return answer

    async def give_up(self, trip: int, epoch: int) -> bool:
        """Give this trip back, and return whether the server knew it."""
        request = v1.GiveUpRequest(run=self.run, trip=trip, epoch=epoch).SerializeToString()
        answer = await self._stub.GiveUp(self._signer.sign("GiveUp", request), timeout=SHORT_SECONDS)
        return bool(answer.known)

    async def watch(self) -> AsyncIterator[v1.Progress]:
        """Yield the progress of the run whenever the server reports it."""
        async for progress in self._stub.Watch(self._signer.sign("Watch")):
            yield progress
