"""A client's connection: the five calls, signed. What goes wrong is raised as gRPC's own error."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable
from dataclasses import dataclass
from types import TracebackType

import grpc
import numpy as np

from tardigrad.core.upload import Task
from tardigrad.errors import RunError
from tardigrad.service.access.signed_requests import Signer
from tardigrad.service.client.client_memory import TrainedUpload
from tardigrad.service.client.client_trainer import Assignment
from tardigrad.service.protocol.v1 import service_pb2 as v1
from tardigrad.service.protocol.v1 import service_pb2_grpc as v1_grpc
from tardigrad.service.protocol.wire import (
    CHUNK,
    LARGEST_MESSAGE,
    chunks,
    digest,
    empty,
    from_wire,
    layout_of,
    packed,
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
POLL_SECONDS = 120.0
"""Longer than any server lets its clients wait."""
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
    """One channel to a server, in one session of it."""

    def __init__(self, address: str, signer: Signer, authority: bytes | None) -> None:
        """Without an authority's certificate: without TLS."""
        self._signer = signer
        if authority is None:
            self._channel = grpc.aio.insecure_channel(address, OPTIONS)
        else:
            credentials = grpc.ssl_channel_credentials(authority)
            self._channel = grpc.aio.secure_channel(address, credentials, OPTIONS)
        self._stub = v1_grpc.FederationStub(self._channel)
        self.run = ""
        self.shapes: list[tuple[int, ...]] = []

    async def __aenter__(self) -> Connection:
        try:
            joined = await self._stub.Join(self._signer.sign("Join"), timeout=SHORT_SECONDS)
        except BaseException:
            await self._channel.close()
            raise
        self._signer.session = joined.session
        self.run = joined.run
        self.shapes = [tuple(shape.sizes) for shape in joined.shapes]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._channel.close()

    async def fetch(
        self, holding: Iterable[int] = (), begun: Callable[[int, int], None] = lambda trip, epoch: None
    ) -> Assignment | RetryLater | RunIsOver:
        """A task, if there is one. `holding`: trips that we are at work on; `begun`: told the trip and its
        epoch before its vectors are downloaded."""
        request = v1.FetchRequest(holding=list(holding)).SerializeToString()
        call = self._stub.FetchTask(self._signer.sign("FetchTask", request))
        try:
            first = await asyncio.wait_for(call.read(), POLL_SECONDS)
            if first is grpc.aio.EOF:
                await call.code()  # raises what the server said, if it said something
                raise RunError("the server ended its answer before it began")
            match first.WhichOneof("part"):
                case "wait":
                    return RetryLater(first.wait.seconds, first.wait.reason)
                case "over":
                    return RunIsOver(first.over.reason)
            header = first.header
            begun(header.trip, header.epoch)
            layout = from_wire(header.vectors)
            self._check(layout)
            room, place = empty(layout), 0
            while place < len(room):
                part = await asyncio.wait_for(call.read(), IDLE_SECONDS)
                if part is grpc.aio.EOF or not part.chunk or place + len(part.chunk) > len(room):
                    raise RunError("the server's task has another length than it said")
                room[place : place + len(part.chunk)] = np.frombuffer(part.chunk, np.uint8)
                place += len(part.chunk)
        finally:
            call.cancel()
        task = Task(header.trip, self._signer.client, header.version, unpacked(room, layout))
        return Assignment(task, header.seed, header.settings, header.evaluate, header.epoch)

    def _check(self, layout: tuple[tuple[str, int], ...]) -> None:
        """Before memory is taken: a task has the model, and nothing much larger."""
        size = sum(_product(shape) for shape in self.shapes)
        if (
            dict(layout).get("model") != size
            or any(length > size for _, length in layout)
            or len(layout) > 64
        ):
            raise RunError(f"the server's task has the vectors {dict(layout[:8])}, but the model has {size}")

    async def deliver(self, finished: TrainedUpload) -> v1.Answer:
        """An upload; what became of it."""
        upload = finished.upload
        room = packed(upload.vectors)
        header = v1.UploadHeader(
            run=self.run,
            trip=finished.trip,
            version=finished.version,
            vectors=to_wire(layout_of(upload.vectors)),
            digest=digest(room),
            examples=upload.examples,
            steps=upload.steps,
            loss=upload.loss,
            evaluated=finished.evaluated,
            metrics=finished.metrics,
            epoch=finished.epoch,
        )
        signed = self._signer.sign("Deliver", header.SerializeToString())

        async def parts() -> AsyncIterator[v1.UploadPart]:
            yield v1.UploadPart(header=signed)
            for chunk in chunks(room):
                yield v1.UploadPart(chunk=chunk)

        seconds = 4 * IDLE_SECONDS + len(room) / (CHUNK / 64)
        answer: v1.Answer = await self._stub.Deliver(parts(), timeout=seconds)
        return answer

    async def give_up(self, trip: int, epoch: int) -> bool:
        """We will not do this trip. Whether the server knew of it."""
        request = v1.GiveUpRequest(run=self.run, trip=trip, epoch=epoch).SerializeToString()
        answer = await self._stub.GiveUp(self._signer.sign("GiveUp", request), timeout=SHORT_SECONDS)
        return bool(answer.known)

    async def watch(self) -> AsyncIterator[v1.Progress]:
        """How the run gets on, whenever it does."""
        async for progress in self._stub.Watch(self._signer.sign("Watch")):
            yield progress


def _product(shape: tuple[int, ...]) -> int:
    size = 1
    for length in shape:
        size *= length
    return size
