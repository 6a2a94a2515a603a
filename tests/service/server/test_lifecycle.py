"""A server that is asked to stop while the run ends, or fails."""

import asyncio
import gc
import logging
import os
import signal
import threading

import pytest
from service_harness import PATIENCE, Puppet, app_of, enrolled_key, trace_of

import tardigrad as td
from tardigrad.errors import RunError
from tardigrad.experiments.runs.run_folder import RunFolder
from tardigrad.experiments.runs.server_assembly import build_server
from tardigrad.service.access.signed_requests import Signer
from tardigrad.service.client.client_trainer import ClientTrainer
from tardigrad.service.client.connection import Connection
from tardigrad.service.server import run_server
from tardigrad.service.server.endpoint import Endpoint
from tardigrad.service.server.lifecycle import serve
from tardigrad.service.server.run_server import RunToServe

CONFIG = td.Config(
    data=td.Digits(partition=td.IID(clients=2)), model=td.MLP(hidden=()), pace=td.Asynchronous(concurrency=1),
    buffer=td.Buffer(size=1), stop=td.Stop(trips=1), local=td.Local(batch_size=32),
    service={"linger_seconds": 0.0},
)  # fmt: skip


def stopped_while_the_last_upload_is_written(tmp_path, monkeypatch, then):
    """Serve a run of one trip; SIGTERM comes while the upload is written to disk; `then` runs on the thread
    that adds it up. Return what was served and how often the run was finished."""
    simulation, _, _ = trace_of(CONFIG)
    key = enrolled_key(tmp_path / "keys", "0")
    run = build_server(CONFIG)
    writing, written, listening, finished = threading.Event(), threading.Event(), asyncio.Queue(), []
    write = run_server.SqliteStore.write_together

    def slow_write(store, payloads):
        writing.set()
        assert written.wait(PATIENCE)
        return write(store, payloads)

    add = run.plan.aggregator.add

    def adding(*given):
        then()
        add(*given)

    monkeypatch.setattr(run_server.SqliteStore, "write_together", slow_write)
    monkeypatch.setattr(run.plan.aggregator, "add", adding)

    async def client():
        port = await listening.get()
        async with Connection(f"127.0.0.1:{port}", Signer("0", key), None) as connection:
            puppet = Puppet(connection, ClientTrainer("0", app_of(simulation, 0)), tmp_path / "state")
            trip = await puppet.fetch()
            delivery = asyncio.ensure_future(puppet.deliver(trip))
            await asyncio.to_thread(writing.wait)
            os.kill(os.getpid(), signal.SIGTERM)
            while not stopping(connection):
                await asyncio.sleep(0)
            written.set()
            return await asyncio.gather(delivery, return_exceptions=True)

    coordinators = []
    coordinate = run_server.coordinate

    def coordinated(*given, **named):
        coordinators.append(coordinate(*given, **named))
        return coordinators[0]

    def stopping(connection):
        return coordinators[0].stopping

    monkeypatch.setattr(run_server, "coordinate", coordinated)

    async def scene():
        directory = RunFolder(tmp_path / "run", live=True)
        directory.create(run.assembly.config, run.assembly.inputs())
        place = Endpoint("127.0.0.1", 0, tmp_path / "keys", insecure=True)
        served = asyncio.ensure_future(
            serve(
                RunToServe("run", run.plan, tmp_path / "run", directory, None, finished.append),
                place,
                listening.put_nowait,
            )
        )
        both = await asyncio.gather(served, client(), return_exceptions=True)
        directory.close()
        return both[0]

    return asyncio.run(asyncio.wait_for(scene(), PATIENCE)), finished


def test_run_that_ends_while_the_server_stops_is_finished(tmp_path, monkeypatch, caplog):
    caplog.set_level(logging.INFO, "tardigrad.service")
    served, finished = stopped_while_the_last_upload_is_written(tmp_path, monkeypatch, lambda: None)
    assert served.reason == "trips"
    assert [one.trips for one in finished] == [1]
    ends = [record.getMessage() for record in caplog.records if getattr(record, "event", "") == "over"]
    assert [end.split(", ")[:2] for end in ends] == [["the run is over (trips): version 1", "1 trips"]]


def test_garbage_collector_skips_what_exists_from_the_start_while_the_server_runs(tmp_path, monkeypatch):
    skipped = []
    stopped_while_the_last_upload_is_written(
        tmp_path, monkeypatch, lambda: skipped.append(gc.get_freeze_count())
    )
    assert skipped[0] > 0
    assert gc.get_freeze_count() == 0  # `td.serve` leaves the caller's process as it was


def test_run_that_fails_while_the_server_stops_is_said_to_have_failed(tmp_path, monkeypatch):
    def fail():
        raise RunError("the disk has burnt")

    served, finished = stopped_while_the_last_upload_is_written(tmp_path, monkeypatch, fail)
    with pytest.raises(RunError, match="burnt"):
        raise served
    assert finished == []
