"""What a server finds when it starts: lost, damaged and restored files are said, and never passed over."""

import asyncio
import os
import shutil
import signal
import stat
import threading
from dataclasses import replace

import grpc
import pytest
import torch
from grpc_health.v1 import health_pb2, health_pb2_grpc
from service_harness import (
    PATIENCE,
    Memory,
    Puppet,
    app_of,
    enrolled_key,
    serving,
    settled,
    trace_of,
    two_puppets,
)

import tardigrad as td
from tardigrad.core.event_log import read_events
from tardigrad.core.events import ModelEvaluated, evaluations
from tardigrad.errors import RunError
from tardigrad.experiments.runs import run_folder as directory
from tardigrad.experiments.runs.run_folder import RunFolder
from tardigrad.experiments.runs.serve import serve
from tardigrad.experiments.runs.server_assembly import build_server
from tardigrad.privacy.keys import NoiseKeys
from tardigrad.service.client.client_trainer import ClientTrainer
from tardigrad.service.client.connection import Connection
from tardigrad.service.server.endpoint import Endpoint
from tardigrad.service.store.sqlite import SqliteStore

CONFIG = td.Config(
    algorithm=td.FedBuff(), data=td.Digits(partition=td.IID(clients=6)), model=td.MLP(hidden=(8,)),
    pace=td.Asynchronous(concurrency=4), buffer=td.Buffer(size=2),
    stop=td.Stop(trips=24), evaluation=td.Evaluation(every_steps=2),
    local=td.Local(batch_size=32, lr=0.1),
    service={"requests_per_second": 10_000, "linger_seconds": 0.2, "snapshot_seconds": 1e6},
)  # fmt: skip
PRIVATE = CONFIG.model_copy(
    update={
        "privacy": td.Participation(participations=12, separation=1, noise_multiplier=0.5),
        "stop": td.Stop(steps=12),
    }
)


class Folder:
    """A run's folder with a server that is stopped hard: what is on disk is what a kill leaves."""

    def __init__(self, path, config=CONFIG):
        self.path, self.config = path, config
        self.simulation, _, self.steps = trace_of(config)
        self.puppets, self.signers, self.done = {}, {}, 0

    async def visit(self, steps, accept_loss=False, snapshot_after=None):
        """Serve until so many steps of the trace are done; keep a copy of what a kill would then leave."""
        record = RunFolder(self.path, live=True, private=self.config.privacy is not None)
        run = build_server(self.config)
        try:
            snapshot = None
            if (self.path / "config.toml").exists():
                snapshot = record.reopen(
                    run.assembly.config, run.assembly.inputs(), accept_loss and self.config.privacy is None
                )
                record.go_on()
            else:
                record.create(run.assembly.config, run.assembly.inputs())
            async with serving(
                self.config, self.path, record, snapshot, keys=self.path.parent / "keys",
                noise=NoiseKeys(self.path / "noise.keys"), accept_loss=accept_loss, signers=self.signers,
            ) as running:  # fmt: skip
                for what, client, trip in self.steps[self.done : steps]:
                    name = str(client)
                    async with running.connect(name) as connection:
                        if client not in self.puppets:
                            trainee = ClientTrainer(name, app_of(self.simulation, client))
                            self.puppets[client] = Puppet(connection, trainee, self.path.parent / name)
                        puppet = self.puppets[client]
                        puppet.connection = connection
                        await (puppet.fetch() if what == "fetch" else getattr(puppet, what)(trip))
                    self.done += 1
                    if self.done == snapshot_after:
                        await running.coordinator.recovery.snapshot()
                await settled(running)
                shutil.rmtree(self.path.parent / "killed", ignore_errors=True)
                shutil.copytree(self.path, self.path.parent / "killed")
                return running.coordinator.run_state.state()
        finally:
            record.close()

    def killed(self):
        """Put the folder in the state that a kill would have left."""
        shutil.rmtree(self.path)
        shutil.copytree(self.path.parent / "killed", self.path)


def test_lost_write_ahead_log_is_reported_and_needs_a_flag(tmp_path):
    folder = Folder(tmp_path / "run")
    asyncio.run(folder.visit(20))
    folder.killed()
    for name in ("journal.sqlite-wal", "journal.sqlite-shm"):
        (folder.path / name).unlink()
    uploads = sorted(file.name for file in (folder.path / "uploads").iterdir())
    with pytest.raises(RunError, match=r"uploads were acknowledged and are in neither .* --accept-loss"):
        asyncio.run(folder.visit(20))
    assert sorted(file.name for file in (folder.path / "uploads").iterdir()) == uploads
    events = (folder.path / "events.jsonl").read_bytes()
    with pytest.raises(RunError, match="were acknowledged"):
        asyncio.run(folder.visit(20))
    assert (folder.path / "events.jsonl").read_bytes() == events, "a refusal changes nothing"
    assert not (folder.path / "events.before").exists()
    state = asyncio.run(folder.visit(20, accept_loss=True))
    assert state["trips"] == 0
    asyncio.run(folder.visit(20))  # what is lost was accepted once and for all


def test_a_server_killed_behind_the_first_snapshot_after_recovery_starts_again(tmp_path, monkeypatch):
    """Recovery has put the events aside; beside the new snapshot, which has them, they would look lost."""
    folder = Folder(tmp_path / "run")
    asyncio.run(folder.visit(12))
    folder.killed()
    written = directory.write_snapshot

    def write_and_copy(*given):
        written(*given)
        shutil.rmtree(tmp_path / "killed", ignore_errors=True)
        shutil.copytree(folder.path, tmp_path / "killed")

    with monkeypatch.context() as patch:
        patch.setattr(directory, "write_snapshot", write_and_copy)
        recovered = asyncio.run(folder.visit(12))
    folder.killed()
    assert (folder.path / "snapshot.safetensors").exists()
    assert asyncio.run(folder.visit(12))["trips"] == recovered["trips"]


def test_lost_write_ahead_log_behind_a_snapshot(tmp_path):
    folder = Folder(tmp_path / "run")
    asyncio.run(folder.visit(24, snapshot_after=12))
    folder.killed()
    for name in ("journal.sqlite-wal", "journal.sqlite-shm"):
        (folder.path / name).unlink()
    with pytest.raises(RunError, match="but the journal at 0"):
        asyncio.run(folder.visit(24))
    state = asyncio.run(folder.visit(24, accept_loss=True))
    assert 0 < state["trips"] < 12


def test_older_snapshot_against_a_newer_journal_is_refused(tmp_path):
    folder = Folder(tmp_path / "run")
    asyncio.run(folder.visit(10))  # the end of a visit writes a snapshot
    shutil.copy(folder.path / "snapshot.safetensors", tmp_path)
    asyncio.run(folder.visit(20))
    shutil.copy(tmp_path / "snapshot.safetensors", folder.path)
    with pytest.raises(RunError, match=r"snapshot ends at entry 10, but the journal begins behind 20"):
        asyncio.run(folder.visit(20))
    assert asyncio.run(folder.visit(20, accept_loss=True))["trips"] < 10
    folder.done = len(folder.steps)
    again = asyncio.run(folder.visit(0))  # it was made whole with a new snapshot
    assert again["trips"] < 10


@pytest.mark.parametrize("lose", ["journal.sqlite", "older snapshot"])
def test_private_run_takes_no_flag(tmp_path, lose):
    folder = Folder(tmp_path / "run", PRIVATE)
    asyncio.run(folder.visit(10))
    shutil.copy(folder.path / "snapshot.safetensors", tmp_path)
    asyncio.run(folder.visit(20))
    if lose == "journal.sqlite":
        (folder.path / lose).unlink()
    else:
        shutil.copy(tmp_path / "snapshot.safetensors", folder.path)
    for accept_loss in (False, True):
        with pytest.raises(RunError, match="a private run must not be repeated") as caught:
            asyncio.run(folder.visit(20, accept_loss=accept_loss))
        assert "--accept-loss" not in str(caught.value)


def test_damaged_event_is_reported_once_and_needs_a_flag(tmp_path):
    folder = Folder(tmp_path / "run")
    asyncio.run(folder.visit(20))
    lines = folder.path.joinpath("events.jsonl").read_bytes().splitlines(keepends=True)
    lines[3] = b"\x00" * (len(lines[3]) - 1) + b"\n"
    folder.path.joinpath("events.jsonl").write_bytes(b"".join(lines))
    with pytest.raises(RunError, match=r"events.jsonl, line 4: not an event.*--accept-loss"):
        asyncio.run(folder.visit(30))
    asyncio.run(folder.visit(30, accept_loss=True))
    told = list(read_events(folder.path / "events.jsonl"))
    assert len(told) > len(lines)
    assert b"\x00" in (folder.path / "events.damaged").read_bytes()
    rows = (folder.path / "metrics.csv").read_text().splitlines()
    assert len(rows) - 1 == len(evaluations(told))


def test_events_that_are_cut_off(tmp_path):
    folder = Folder(tmp_path / "run")
    asyncio.run(folder.visit(20))
    os.truncate(folder.path / "events.jsonl", 200)
    with pytest.raises(RunError, match=r"shorter than the snapshot says; --accept-loss"):
        asyncio.run(folder.visit(20))
    asyncio.run(folder.visit(24, accept_loss=True))
    assert list(read_events(folder.path / "events.jsonl"))


def test_killed_while_it_recovers_the_loss_is_still_known(tmp_path):
    folder = Folder(tmp_path / "run")
    asyncio.run(folder.visit(20))
    folder.killed()
    record = RunFolder(folder.path, live=True)
    run = build_server(CONFIG)
    record.reopen(run.assembly.config, run.assembly.inputs())
    record.go_on()
    record._log.close()  # it is killed here: the events are cut back
    record._log = None
    record.close()
    for name in ("journal.sqlite-wal", "journal.sqlite-shm"):
        (folder.path / name).unlink()
    with pytest.raises(RunError, match="were acknowledged"):
        asyncio.run(folder.visit(20))


def test_metrics_table_is_appended_to_and_not_read_again(tmp_path, monkeypatch):
    folder = Folder(tmp_path / "run")
    asyncio.run(folder.visit(20))
    before = (folder.path / "metrics.csv").read_text()

    async def reads():
        record = RunFolder(folder.path, live=True)
        run = build_server(CONFIG)
        record.reopen(run.assembly.config, run.assembly.inputs())
        record.go_on()
        monkeypatch.setattr(directory, "read_events", None)  # nobody reads the events from now on
        for extra in ({}, {"f1": 0.25}):
            metrics = {"loss": 1.0, "accuracy": 0.5} | extra
            record.record([ModelEvaluated(version=99, trips=1, time=0.0, bytes=1, metrics=metrics)])
            record.snapshot({"x": torch.zeros(1)}, {})
        record.close()

    asyncio.run(reads())
    header, *rows = (folder.path / "metrics.csv").read_text().splitlines()
    assert header.endswith("accuracy,f1")
    assert len(rows) == len(before.splitlines()) + 1
    assert rows[-2:] == ["99,1,0.0,1,1.0,0.5,", "99,1,0.0,1,1.0,0.5,0.25"]


def test_only_the_owner_can_read_what_clients_uploaded(tmp_path):
    old = os.umask(0)
    try:
        folder = Folder(tmp_path / "run")
        asyncio.run(folder.visit(8))
        folder.killed()
    finally:
        os.umask(old)
    modes = {file.name: stat.S_IMODE(file.stat().st_mode) for file in folder.path.rglob("*")}
    assert stat.S_IMODE(folder.path.stat().st_mode) == 0o700
    assert {name for name in modes if name.startswith("journal.sqlite")} >= {"journal.sqlite"}
    for name, mode in modes.items():
        if name.startswith(("journal.sqlite", "snapshot")) or name[0].isdigit():
            assert mode == 0o600, name


class Held(Memory):
    """A record whose snapshots wait until they are let go."""

    def __init__(self):
        super().__init__()
        self.begun, self.let_go = threading.Event(), threading.Event()

    def snapshot(self, tensors, document):
        self.begun.set()
        assert self.let_go.wait(PATIENCE)
        super().snapshot(tensors, document)


def test_keys_of_steps_that_are_made_while_a_snapshot_is_written_are_kept(tmp_path):
    """A step waits behind the snapshot on the values thread; its key must outlive the snapshot."""
    simulation = trace_of(PRIVATE)[0]
    keys = NoiseKeys(tmp_path / "noise.keys")
    record = Held()

    async def scene():
        async with serving(PRIVATE, tmp_path / "run", record, noise=keys) as running:
            coordinator = running.coordinator
            forget, stepped = coordinator._store.forget, threading.Event()

            def forget_after_the_step(position):  # the journal's thread is slow
                assert stepped.wait(PATIENCE)
                forget(position)

            coordinator._store.forget = forget_after_the_step
            async with two_puppets(running, simulation, ("0", "1")) as puppets:
                for puppet in puppets:
                    await puppet.fetch()
                await puppets[0].deliver(0)
                snapshot = asyncio.ensure_future(coordinator.recovery.snapshot())
                await asyncio.to_thread(record.begun.wait)
                await puppets[1].deliver(1)  # fills the buffer: its step is behind the snapshot
                record.let_go.set()
                await coordinator.broadcast(1)
                stepped.set()
                await snapshot
                return (tmp_path / "noise.keys").read_text().split()[0]

    assert asyncio.run(scene()) == "0"


def test_snapshot_does_not_hold_up_the_event_loop(tmp_path):
    """File operations of the snapshot block until they are released; meanwhile clients are answered."""
    simulation = trace_of(CONFIG)[0]
    record = Held()
    removing, removed = threading.Event(), threading.Event()

    async def scene():
        async with serving(CONFIG, tmp_path / "run", record) as running:
            store = running.coordinator._store
            recycle = store.recycle

            def slow_recycle(names):
                removing.set()
                assert removed.wait(PATIENCE)
                recycle(names)

            store.recycle = slow_recycle
            async with two_puppets(running, simulation, ("0", "1")) as puppets:
                await puppets[0].fetch()
                await puppets[0].deliver(0)
                snapshot = asyncio.ensure_future(running.coordinator.recovery.snapshot())
                await asyncio.to_thread(record.begun.wait)
                trip = await puppets[1].fetch()
                assert (await puppets[1].deliver(trip)).accepted
                record.let_go.set()
                await asyncio.wait_for(snapshot, PATIENCE)
                await asyncio.to_thread(removing.wait)
                trip = await puppets[1].fetch()
                assert (await puppets[1].deliver(trip)).accepted
                await health(running.address)
                removed.set()

    asyncio.run(asyncio.wait_for(scene(), PATIENCE))


def test_reading_the_list_of_clients_does_not_hold_up_the_event_loop(tmp_path):
    reading, read = threading.Event(), threading.Event()

    async def scene():
        async with serving(CONFIG, tmp_path / "run") as running:
            enrolled = running.server.servicer._gate._enrolled
            refresh = enrolled.refresh

            def slow_refresh():
                reading.set()
                assert read.wait(PATIENCE)
                refresh()

            enrolled.refresh = slow_refresh
            signer = running.signer("new")  # unknown until the list is read again
            joining = asyncio.ensure_future(Connection(running.address, signer, None).__aenter__())
            await asyncio.to_thread(reading.wait)
            await health(running.address)
            assert not joining.done()
            read.set()
            connection = await joining
            await connection.__aexit__(None, None, None)

    asyncio.run(asyncio.wait_for(scene(), PATIENCE))


async def health(address):
    async with grpc.aio.insecure_channel(address) as channel:
        answer = await health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest())
    assert answer.status == health_pb2.HealthCheckResponse.SERVING


def test_upload_that_is_not_finite_counts_as_zeros_in_a_private_run(tmp_path):
    """Who is in a buffer must not depend on values: the upload is accepted and the model stays finite."""
    simulation = trace_of(PRIVATE)[0]

    async def scene():
        async with (
            serving(PRIVATE, tmp_path / "run") as running,
            two_puppets(running, simulation, ("0", "1")) as puppets,
        ):
            for puppet in puppets:
                trip = await puppet.fetch()
                finished = puppet.trainee.train(puppet.holding[trip], {})
                if puppet is puppets[0]:
                    for vector in finished.upload.vectors.values():
                        vector[::3] = float("nan")
                    finished = replace(finished, upload=replace(finished.upload, loss=float("nan")))
                puppet.finished[trip] = finished
                assert (await puppet.deliver(trip)).accepted
            await running.coordinator.broadcast(1)
            return running.coordinator.model_state.aggregator.evaluated_model, dict(running.refusals)

    model, refusals = asyncio.run(scene())
    assert torch.isfinite(model).all()
    assert refusals == {}


def test_a_server_that_refused_to_start_can_be_started_again_in_the_same_process(tmp_path):
    keys, out = tmp_path / "keys", tmp_path / "run"
    enrolled_key(keys, "ann")
    endpoint = Endpoint("127.0.0.1", 0, keys, insecure=True)

    def stop_at_once(line):
        os.kill(os.getpid(), signal.SIGTERM)

    assert serve(CONFIG, out=out, endpoint=endpoint, say=stop_at_once) is None
    (out / "journal.sqlite").unlink()
    SqliteStore(out).close()  # an empty journal
    with pytest.raises(RunError, match="the journal of the run is gone; --accept-loss") as refused:
        serve(CONFIG, out=out, endpoint=endpoint, say=stop_at_once)
    assert refused.tb is not None  # its frames are still alive, and the store in them is closed
    assert serve(CONFIG, out=out, endpoint=endpoint, say=stop_at_once, accept_loss=True) is None


def test_copied_folder_of_a_private_server_is_refused(tmp_path):
    keys, out = tmp_path / "keys", tmp_path / "run"
    enrolled_key(keys, "ann")
    endpoint = Endpoint("127.0.0.1", 0, keys, insecure=True)

    def stop_at_once(line):
        os.kill(os.getpid(), signal.SIGTERM)

    assert serve(PRIVATE, out=out, endpoint=endpoint, say=stop_at_once) is None
    shutil.copytree(out, tmp_path / "copy")
    with pytest.raises(td.ConfigError, match="copied or put back from a backup"):
        serve(PRIVATE, out=tmp_path / "copy", endpoint=endpoint, say=stop_at_once)
    assert serve(PRIVATE, out=tmp_path / "copy", endpoint=endpoint, say=stop_at_once, moved=True) is None
    assert serve(PRIVATE, out=out, endpoint=endpoint, say=stop_at_once) is None
