"""What may count, and what may not; and that the disk may be full."""

import asyncio
import contextlib
import errno
import os
import threading
from dataclasses import replace

import grpc
import pytest
import torch
from service_harness import app_of, serving

import tardigrad as td
from tardigrad.experiments.runs.simulation_assembly import build
from tardigrad.service.client.client_trainer import ClientTrainer
from tardigrad.service.protocol.refusals import Cause
from tardigrad.service.protocol.v1 import service_pb2 as v1
from tardigrad.service.store.contract import StoreError

SERVICE = {
    "requests_per_second": 1000, "poll_seconds": 0.2, "idle_seconds": 0.5, "examples_bound": 10_000,
    "linger_seconds": 0.0,
}  # fmt: skip
CONFIG = td.Config(
    data=td.Digits(partition=td.IID(clients=4)), model=td.MLP(hidden=(4,)),
    pace=td.Asynchronous(concurrency=2), buffer=td.Buffer(size=2, staleness_bound=0), stop=td.Stop(trips=20),
    service=SERVICE,
)  # fmt: skip
SIMULATION = build(CONFIG)


async def trained(connection, client=0):
    found = await connection.fetch()
    return ClientTrainer(str(client), app_of(SIMULATION, client)).train(found, {})


@contextlib.asynccontextmanager
async def two_clients(folder):
    async with serving(CONFIG, folder) as running, running.connect("0") as ann, running.connect("1") as bob:
        yield running, ann, bob


async def code_of(call):
    try:
        await call
    except grpc.aio.AioRpcError as error:
        return error.code()
    return grpc.StatusCode.OK


def changed(finished, **changes):
    return replace(finished, upload=replace(finished.upload, **changes))


def with_delta(finished, value):
    delta = finished.upload.vectors["delta"].clone()
    delta[3] = value
    return changed(finished, vectors={"delta": delta})


BAD = {
    "not a number": (lambda f: with_delta(f, float("nan")), Cause.VALUES),
    "infinite": (lambda f: with_delta(f, float("inf")), Cause.VALUES),
    "another shape": (lambda f: changed(f, vectors={"delta": torch.zeros(3)}), Cause.SHAPE),
    "huge": (lambda f: changed(f, vectors={"delta": torch.zeros(10_000_000)}), Cause.SHAPE),
    "another name": (lambda f: changed(f, vectors={"gift": f.upload.vectors["delta"]}), Cause.SHAPE),
    "no examples": (lambda f: changed(f, examples=0), Cause.NUMBERS),
    "too many examples": (lambda f: changed(f, examples=10_001), Cause.NUMBERS),
    "a loss that is none": (lambda f: changed(f, loss=float("nan")), Cause.VALUES),
    "another version": (lambda f: replace(f, version=7), Cause.VERSION),
    "a trip that never was": (lambda f: replace(f, trip=77), Cause.UNSOLICITED),
}


@pytest.mark.parametrize("what", BAD)
def test_a_bad_upload_is_refused_counted_and_changes_nothing(what, tmp_path):
    spoil, why = BAD[what]

    async def scene():
        async with serving(CONFIG, tmp_path) as running, running.connect("ann") as ann:
            finished = await trained(ann)
            before = running.coordinator.run_state.state()
            code = await code_of(ann.deliver(spoil(finished)))
            codes = {grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.NOT_FOUND}
            if what == "huge":  # the server hangs up while we write: gRPC may lose its word on the way
                codes.add(grpc.StatusCode.INTERNAL)
            assert code in codes
            assert running.refusals == {why: 1}
            assert running.coordinator.run_state.state() == before
            assert list((tmp_path / "uploads").iterdir()) == []
            assert running.server.servicer.reception.used == 0
            assert (await ann.deliver(finished)).accepted  # the ticket is as good as before

    asyncio.run(scene())


def test_too_short_too_much_and_silence(tmp_path):
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
                await asyncio.sleep(30)

            async def headless(parts):
                yield v1.UploadPart(chunk=b"1234")

            assert await code_of(sending(too_short)) is grpc.StatusCode.INVALID_ARGUMENT
            assert await code_of(sending(too_much)) is grpc.StatusCode.INVALID_ARGUMENT
            assert await code_of(sending(headless)) is grpc.StatusCode.INVALID_ARGUMENT
            assert await code_of(sending(silent)) is grpc.StatusCode.DEADLINE_EXCEEDED
            assert running.refusals == {Cause.LENGTH: 2, Cause.UNSIGNED: 1, Cause.SILENT: 1}
            assert running.server.servicer.reception.used == 0
            ann._stub.Deliver = honest
            assert (await ann.deliver(finished)).accepted

    asyncio.run(scene())


def test_delivered_again_it_is_the_same_answer_and_counts_once(tmp_path):
    async def scene():
        async with serving(CONFIG, tmp_path) as running, running.connect("ann") as ann:
            finished = await trained(ann)
            answers = [await ann.deliver(finished) for _ in range(3)]
            assert answers[0] == answers[1] == answers[2]
            await running.coordinator.recovery.snapshot()  # the answer is kept elsewhere from now on
            assert await ann.deliver(finished) == answers[0]
            other = with_delta(finished, 1.0)
            assert await code_of(ann.deliver(other)) is grpc.StatusCode.ALREADY_EXISTS
            assert running.coordinator.run_state.trips == 1

    asyncio.run(scene())


def test_too_stale_does_not_count_and_the_client_hears_why(tmp_path):
    async def scene():
        async with two_clients(tmp_path) as (_, ann, bob):
            late = await trained(bob, 1)
            for _ in range(2):
                assert (await ann.deliver(await trained(ann))).accepted
            answer = await bob.deliver(late)
            assert (answer.accepted, answer.reason, answer.staleness) == (False, "too stale", 1)
            assert await bob.deliver(late) == answer

    asyncio.run(scene())


def test_an_expired_ticket_is_somebody_elses_turn(tmp_path):
    quick = td.Config(**(dict(CONFIG) | {"service": SERVICE | {"ticket_seconds": 0.3}}))

    async def scene():
        async with serving(quick, tmp_path) as running, running.connect("ann") as ann:
            finished = await trained(ann)
            while running.coordinator.run_state.given_up == 0:
                await asyncio.sleep(0.05)
            assert await code_of(ann.deliver(finished)) is grpc.StatusCode.NOT_FOUND
            again = await ann.fetch()
            assert again.task.trip == finished.trip + 1

    asyncio.run(scene())


@pytest.mark.parametrize("where", ["upload", "journal"])
def test_a_full_disk_refuses_and_keeps_what_was_acknowledged(where, tmp_path, monkeypatch):
    async def scene():
        async with two_clients(tmp_path) as (running, ann, bob):
            assert (await ann.deliver(await trained(ann))).accepted
            finished = await trained(bob, 1)
            before = running.coordinator.run_state.state()
            files = sorted((tmp_path / "uploads").iterdir())
            with monkeypatch.context() as patch:
                full = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
                if where == "upload":
                    patch.setattr("tardigrad.service.store.upload_files.os.fsync", _raising(full))
                else:
                    patch.setattr(running.coordinator._store, "append", _raising(StoreError(full)))
                assert await code_of(bob.deliver(finished)) is grpc.StatusCode.RESOURCE_EXHAUSTED
            assert running.coordinator.run_state.state() == before
            assert sorted((tmp_path / "uploads").iterdir()) == files
            assert running.server.servicer.reception.used == 0
            assert (await bob.deliver(finished)).accepted
            assert running.coordinator.run_state.book.version == 1
            return running.refusals

    assert asyncio.run(scene()) == {Cause.DISK: 1}


def test_who_waits_for_a_task_hears_that_the_disk_is_full(tmp_path, monkeypatch):
    async def scene():
        async with two_clients(tmp_path) as (running, ann, _):
            full = StoreError(os.strerror(errno.ENOSPC))
            with monkeypatch.context() as patch:
                patch.setattr(running.coordinator._store, "append", _raising(full))
                found = await ann.fetch()
            assert "No space left" in found.reason
            assert found.seconds >= 5
            assert running.refusals == {Cause.DISK: 1}
            assert (await ann.fetch()).task.trip == 0

    asyncio.run(scene())


def test_who_waits_for_a_task_hears_that_there_is_no_room(tmp_path):
    async def scene():
        async with two_clients(tmp_path) as (running, ann, bob), running.connect("2") as eve:
            await ann.fetch()
            await bob.fetch()
            assert (await eve.fetch()).reason == "there is no room"
            assert running.refusals == {}

    asyncio.run(scene())


def test_an_upload_that_is_being_counted_is_guarded_though_its_client_has_hung_up(tmp_path, monkeypatch):
    """Neither its ticket expires nor a second delivery begins until it counts."""
    written, hung_up = threading.Event(), asyncio.Event()

    async def scene():
        async with two_clients(tmp_path) as (running, ann, _):
            coordinator = running.coordinator
            begun, loop = asyncio.Event(), asyncio.get_running_loop()
            write, arrived = coordinator.write, coordinator.arrived

            def slowly(trip, room):
                loop.call_soon_threadsafe(begun.set)
                assert written.wait(30)
                return write(trip, room)

            def first_arrived(trip):
                arrived(trip)
                hung_up.set()

            monkeypatch.setattr(coordinator, "write", slowly)
            monkeypatch.setattr(coordinator, "arrived", first_arrived)
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
            assert not coordinator._arriving

    try:
        asyncio.run(scene())
    finally:
        written.set()


def _raising(error):
    def raising(*_):
        raise error

    return raising
