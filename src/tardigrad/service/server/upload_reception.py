"""Receiving an upload: its chunks into memory, its checks, its way to the disk and into the journal."""

from __future__ import annotations

import asyncio
import json

import grpc
import numpy as np

from tardigrad.core.upload import Vectors
from tardigrad.service.protocol.refusals import Cause, Refused
from tardigrad.service.protocol.v1 import service_pb2 as v1
from tardigrad.service.protocol.wire import CHUNK, empty, size_of
from tardigrad.service.server.coordinator import Coordinator
from tardigrad.service.server.limits import SLOWEST, UploadMemory, unless_silent
from tardigrad.service.server.upload_checks import Reported, check_body
from tardigrad.service.store.contract import JournalEntry, RecordedAnswer, StoreError


class UploadReception:
    """Receives uploads whose headers were checked. `memory` limits how much is received at once."""

    def __init__(self, coordinator: Coordinator, private: bool) -> None:
        self._coordinator, self._private = coordinator, private
        self.memory = UploadMemory(coordinator.settings.reception_bytes)

    async def receive(
        self,
        client: str,
        header: v1.UploadHeader,
        reported: Reported,
        context: grpc.aio.ServicerContext,
    ) -> RecordedAnswer | None:
        """Receive an upload, store it and have it applied. Return its answer, or None if the run was over
        first."""
        coordinator, layout = self._coordinator, self._coordinator.upload_layout
        size = size_of(layout)
        coordinator.busy.begin_arrival(header.trip)
        try:
            await self.memory.take(size, coordinator.settings.idle_seconds)
            try:
                payload = empty(layout)
                await self._fill(payload, context)
            except BaseException:
                self.memory.give_back(size)
                raise
            coordinator.counters.bytes_in += size
            # the upload is complete: it is applied even if the client hangs up now
            coordinator.busy.begin_arrival(header.trip)
            applying = asyncio.ensure_future(self._apply(client, header, reported, payload))
            applying.add_done_callback(lambda _: coordinator.busy.end_arrival(header.trip))
            return await asyncio.shield(applying)
        finally:
            coordinator.busy.end_arrival(header.trip)

    async def _fill(self, payload: np.ndarray, context: grpc.aio.ServicerContext) -> None:
        """Read the chunks into the payload, which they must fill exactly."""
        now = asyncio.get_running_loop().time
        idle = self._coordinator.settings.idle_seconds
        deadline = now() + idle + len(payload) / SLOWEST
        offset = 0
        while True:
            part = await unless_silent(context.read(), min(idle, deadline - now()))
            if part is grpc.aio.EOF:
                break
            chunk = part if isinstance(part, memoryview) else part.chunk
            end = offset + len(chunk)
            if not chunk or len(chunk) > CHUNK or end > len(payload):
                raise Refused(
                    Cause.LENGTH,
                    f"a chunk of {len(chunk)} bytes at {offset} of {len(payload)} that were declared",
                )
            payload[offset:end] = np.frombuffer(chunk, np.uint8)
            offset = end
        if offset != len(payload):
            raise Refused(Cause.LENGTH, f"{offset} bytes came, but {len(payload)} were declared")

    async def _apply(
        self, client: str, header: v1.UploadHeader, reported: Reported, payload: np.ndarray
    ) -> RecordedAnswer | None:
        """Check the values, store them, and have the upload journaled and applied."""
        reserved = [len(payload)]

        def release() -> None:
            if reserved:
                self.memory.give_back(reserved.pop())

        try:
            vectors, file, norm, refusal = await asyncio.to_thread(self._store, payload, header)
            entry = JournalEntry(
                "deliver", 0.0, client, header.trip, file, reported.examples, reported.steps, reported.loss,
                header.digest, reported.evaluated, json.dumps(reported.metrics), norm=norm, refusal=refusal,
                epoch=header.epoch,
            )  # fmt: skip
            return await self._coordinator.deliver(entry, vectors, release)
        except BaseException:
            release()
            raise

    def _store(self, payload: np.ndarray, header: v1.UploadHeader) -> tuple[Vectors, str, float, str]:
        """Check the values and store them; in a thread. Return the vectors, the name of their file, their
        norm, and why they do not count or "". Values that do not count are not stored."""
        coordinator, admission = self._coordinator, self._coordinator.run_state.admission
        vectors, norm = check_body(payload, header, coordinator.upload_layout, self._private)
        refusal = None if admission is None else admission.refusal(norm)
        if refusal is not None:
            return vectors, "", norm, refusal
        try:
            return vectors, coordinator.write(header.trip, payload), norm, ""
        except StoreError as error:
            raise Refused(
                Cause.DISK, f"the server cannot write ({error}); come again later", retry_after=5.0
            ) from None
