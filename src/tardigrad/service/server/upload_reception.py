"""Receiving an upload: its chunks, its checks, its way to the disk and into the journal."""

from __future__ import annotations

import asyncio
import json
from collections import deque
from collections.abc import Callable

import grpc

from tardigrad.service.protocol.refusals import Cause, Refused
from tardigrad.service.protocol.v1 import service_pb2 as v1
from tardigrad.service.protocol.wire import CHUNK
from tardigrad.service.server.coordinator import Coordinator
from tardigrad.service.server.limits import SLOWEST, UploadMemory, unless_silent
from tardigrad.service.server.payload_buffers import PayloadBuffers
from tardigrad.service.server.upload_body import (
    MOST_CHUNKS,
    SMALL,
    TOGETHER,
    BodyInFile,
    BodyInMemory,
    Chunks,
    UploadBody,
    memory_for,
)
from tardigrad.service.server.upload_checks import Reported, check_body
from tardigrad.service.store.contract import JournalEntry, RecordedAnswer, StoreError


class UploadReception:
    """Receives uploads whose headers were checked. `memory` limits how much is received at once."""

    def __init__(self, coordinator: Coordinator, private: bool) -> None:
        self._coordinator, self._private = coordinator, private
        self.memory = UploadMemory(coordinator.settings.reception_bytes)
        self._buffers = PayloadBuffers(coordinator.uploads.size)
        # what waits for the helpers of a secure run is stored before it is journaled
        self._small = coordinator.uploads.size <= SMALL and coordinator.link is None

    async def receive(
        self,
        client: str,
        header: v1.UploadHeader,
        reported: Reported,
        context: grpc.aio.ServicerContext,
        signed: bytes = b"",
    ) -> RecordedAnswer | None:
        """Receive an upload, store it and have it applied. Return its answer, or None if the run was over
        first. `signed`: in a secure run, the header as the client has signed it."""
        coordinator, size = self._coordinator, self._coordinator.uploads.size
        needed = memory_for(size, coordinator.settings.reception_bytes)
        coordinator.busy.begin_arrival(header.trip)
        try:
            await self.memory.take(needed, coordinator.settings.idle_seconds)
            try:
                body, rest = await self._received(header.trip, context, in_file=needed < size)
            except BaseException:
                self.memory.give_back(needed)
                raise
            coordinator.counters.bytes_in += size
            # the upload is complete: it is applied even if the client hangs up now
            coordinator.busy.begin_arrival(header.trip)
            applying = asyncio.ensure_future(
                self._apply(client, header, reported, body, rest, needed, signed)
            )
            applying.add_done_callback(lambda _: coordinator.busy.end_arrival(header.trip))
            applying.add_done_callback(lambda done: done.cancelled() or done.exception())  # retrieved
            return await asyncio.shield(applying)
        finally:
            coordinator.busy.end_arrival(header.trip)

    async def _received(
        self, trip: int, context: grpc.aio.ServicerContext, in_file: bool
    ) -> tuple[UploadBody, Chunks]:
        """Return the bytes of an upload when all have come, and those of them that the body does not have
        yet."""
        coordinator = self._coordinator
        if not in_file:
            body: UploadBody = BodyInMemory(
                coordinator.uploads, self._buffers, lambda payload: coordinator.write(trip, payload)
            )
            return body, await self._fill(body, context)
        body = BodyInFile(coordinator.uploads, lambda: coordinator.receive(trip), coordinator.discard)
        try:
            return body, await self._fill(body, context)
        except BaseException as error:
            await _to_the_end(body.drop)
            if isinstance(error, StoreError):
                raise _disk(error) from None
            raise

    async def _fill(self, body: UploadBody, context: grpc.aio.ServicerContext) -> Chunks:
        """Read the chunks, which must have exactly the size of an upload; return the last ones, which are
        not in the body yet."""
        now = asyncio.get_running_loop().time
        idle, size = self._coordinator.settings.idle_seconds, self._coordinator.uploads.size
        deadline = now() + idle + size / SLOWEST
        offset = given = 0
        chunks: Chunks = deque()
        while True:
            part = await unless_silent(context.read(), min(idle, deadline - now()))
            if part is grpc.aio.EOF:
                break
            chunk = part if isinstance(part, memoryview) else part.chunk
            end = offset + len(chunk)
            if not chunk or len(chunk) > CHUNK or end > size:
                raise Refused(
                    Cause.LENGTH, f"a chunk of {len(chunk)} bytes at {offset} of {size} that were declared"
                )
            chunks.append(chunk)
            offset = end
            if offset < size and (offset - given >= TOGETHER or len(chunks) >= MOST_CHUNKS):
                await asyncio.to_thread(body.put, chunks)
                given = offset
        if offset != size:
            raise Refused(Cause.LENGTH, f"{offset} bytes came, but {size} were declared")
        return chunks

    async def _apply(
        self,
        client: str,
        header: v1.UploadHeader,
        reported: Reported,
        body: UploadBody,
        rest: Chunks,
        taken: int,
        signed: bytes,
    ) -> RecordedAnswer | None:
        """Check the values, store them, and have the upload journaled and applied."""
        reserved = [taken]

        def release() -> None:
            if reserved:
                self.memory.give_back(reserved.pop())
                body.close()

        file, payload = "", None
        try:
            if self._small and isinstance(body, BodyInMemory):
                norm, refusal = self._checked(body, rest, header)
                payload = None if refusal else body.payload
            else:
                file, norm, refusal = await asyncio.to_thread(self._store, body, rest, header)
        except BaseException:
            release()
            raise
        entry = JournalEntry(
            "deliver", 0.0, client, header.trip, file, reported.examples, reported.steps, reported.loss,
            header.digest, reported.evaluated, json.dumps(reported.metrics), norm=norm, refusal=refusal,
            epoch=header.epoch, signed=signed,
        )  # fmt: skip
        return await self._coordinator.deliver(entry, body.vectors, release, payload)

    def _store(self, body: UploadBody, rest: Chunks, header: v1.UploadHeader) -> tuple[str, float, str]:
        """Check the values as `_checked` does, and store them; in a thread. Return the name of their file
        besides. Values that do not count are not stored."""
        try:
            norm, refusal = self._checked(body, rest, header)
            if not refusal:
                return body.store(), norm, ""
            body.drop()
            return "", norm, refusal
        except BaseException as error:
            body.drop()
            if isinstance(error, StoreError):
                raise _disk(error) from None
            raise

    def _checked(self, body: UploadBody, rest: Chunks, header: v1.UploadHeader) -> tuple[float, str]:
        """Put the rest of the bytes into the body and check the values. Return their norm, and why they do
        not count or ""."""
        body.put(rest)
        norm = check_body(body, header.digest, self._coordinator.uploads, self._private)
        admission = self._coordinator.run_state.admission
        return norm, (None if admission is None else admission.refusal(norm)) or ""


def _disk(error: StoreError) -> Refused:
    return Refused(Cause.DISK, f"the server cannot write ({error}); come again later", retry_after=5.0)


async def _to_the_end(work: Callable[[], None]) -> None:
    """Do work in a thread, and wait for its end although the call was cancelled."""
    await asyncio.shield(asyncio.to_thread(work))
