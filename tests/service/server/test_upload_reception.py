"""Receiving uploads: wrong lengths, silence, a full disk, a client that hangs up."""

import asyncio
import errno
import os
import threading

import grpc
import pytest
from service_harness import PATIENCE, serving, settled, with_limits
from upload_clients import (
    CONFIG,
    code_of,
    raising,
    trained,
    two_clients,
)

from tardigrad.service.protocol.refusals import Cause
from tardigrad.service.protocol.v1 import service_pb2 as v1
from tardigrad.service.store.contract import StoreError


def test_upload_of_another_length_or_without_progress_is_refused(where_large, tmp_path):
    async def scene():
        async with serving(CONFIG, tmp_path) as running, running.connect("ann") as ann:
            finished = await trained(ann)
            honest = ann._stub.Deliver

            def sending(edit):
                ann._stub.Deliver = lambda parts, timeout: honest(edit(parts), timeout=timeout)
                return ann.deliver(finished)

            async def too_short(parts):
                async for part in parts:
                    yield v1.UploadPart(chunk=part.chunk[:-4]) if part.chunk else part

            async def too_much(parts):
                async for part in parts:
                    yield part
                yield v1.UploadPart(chunk=b"more")

            async def silent(parts):
                yield await anext(parts)
                await asyncio.Event().wait()

            async def headless(parts):
                yield v1.UploadPart(chunk=b"1234")

            assert await code_of(sending(too_short)) is grpc.StatusCode.INVALID_ARGUMENT
            assert await code_of(sending(too_much)) is grpc.StatusCode.INVALID_ARGUMENT
            assert await code_of(sending(headless)) is grpc.StatusCode.INVALID_ARGUMENT
            with_limits(running, idle_seconds=0.5)
            assert await code_of(sending(silent)) is grpc.StatusCode.DEADLINE_EXCEEDED
            with_limits(running, idle_seconds=100.0)
            assert running.refusals == {Cause.LENGTH: 2, Cause.UNSIGNED: 1, Cause.SILENT: 1}
            assert running.server.servicer.reception.memory.used == 0
            assert list((tmp_path / "uploads").iterdir()) == []
            ann._stub.Deliver = honest
            assert (await ann.deliver(finished)).accepted

    asyncio.run(scene())


@pytest.mark.parametrize("where", ["upload", "journal"])
def test_a_full_disk_refuses_and_keeps_what_was_acknowledged(where, where_large, tmp_path, monkeypatch):
    async def scene():
        async with two_clients(tmp_path) as (running, ann, bob):
            assert (await ann.deliver(await trained(ann))).accepted
            finished = await trained(bob, 1)
            before = running.coordinator.run_state.state()
            files = sorted((tmp_path / "uploads").iterdir())
            with monkeypatch.context() as patch:
                full = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
                if where == "upload":
                    patch.setattr("tardigrad.service.store.upload_files.os.fsync", raising(full))
                else:
                    patch.setattr(running.coordinator._store, "append", raising(StoreError(full)))
                assert await code_of(bob.deliver(finished)) is grpc.StatusCode.RESOURCE_EXHAUSTED
            assert running.coordinator.run_state.state() == before
            await settled(running)  # the file of a refused upload is removed in the background
            assert sorted((tmp_path / "uploads").iterdir()) == files
            assert running.server.servicer.reception.memory.used == 0
            assert (await bob.deliver(finished)).accepted
            assert running.coordinator.run_state.book.version == 1
            return running.refusals

    assert asyncio.run(scene()) == {Cause.DISK: 1}


@pytest.mark.parametrize("method", ["write", "write_together"])
def test_complete_upload_is_applied_although_its_client_has_hung_up(method, tmp_path, monkeypatch):
    """Neither its ticket expires nor a second delivery begins until it counts."""
    if method == "write":
        monkeypatch.setattr("tardigrad.service.server.upload_reception.SMALL", 0)
    written, hung_up = threading.Event(), asyncio.Event()

    async def scene():
        async with two_clients(tmp_path) as (running, ann, _):
            coordinator = running.coordinator
            begun, loop = asyncio.Event(), asyncio.get_running_loop()
            write, end_arrival = getattr(coordinator._store, method), coordinator.busy.end_arrival

            def slowly(*given):
                loop.call_soon_threadsafe(begun.set)
                assert written.wait(PATIENCE)
                return write(*given)

            def first_call_ended(trip):
                end_arrival(trip)
                hung_up.set()

            monkeypatch.setattr(coordinator._store, method, slowly)
            monkeypatch.setattr(coordinator.busy, "end_arrival", first_call_ended)
            finished = await trained(ann)
            delivery = asyncio.ensure_future(ann.deliver(finished))
            await begun.wait()
            delivery.cancel()
            await hung_up.wait()  # the server has ended the call
            coordinator.settings = coordinator.settings.model_copy(update={"ticket_seconds": 1e-9})
            await coordinator._sweep()
            assert coordinator.run_state.given_up == 0
            assert finished.trip in coordinator.run_state.book.in_flight
            assert await code_of(ann.deliver(finished)) is grpc.StatusCode.ABORTED
            assert await code_of(ann.give_up(finished.trip, finished.epoch)) is grpc.StatusCode.ABORTED
            written.set()
            while coordinator.run_state.trips == 0:
                await asyncio.sleep(0.01)
            assert (await ann.deliver(finished)).accepted
            assert coordinator.run_state.trips == 1
            while coordinator.busy:  # with the first call, which nobody waits for
                await asyncio.sleep(0.01)

    try:
        asyncio.run(asyncio.wait_for(scene(), PATIENCE))
    finally:
        written.set()
