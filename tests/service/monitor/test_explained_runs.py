"""Explanations of real servers: clients come over loopback, or do not, and the status says what is wrong."""

import asyncio
import json
import time
from dataclasses import replace

import grpc
import pytest
from failing_store import FailingStore
from service_harness import PATIENCE, Puppet, app_of, failed, serving, settled, two_puppets, with_limits
from test_metrics import CONFIG
from typer.testing import CliRunner

import tardigrad as td
from tardigrad.cli import app
from tardigrad.errors import RunError
from tardigrad.experiments.runs.simulation_assembly import build
from tardigrad.service.access.enrolment import make_key
from tardigrad.service.access.signed_requests import Signer
from tardigrad.service.client.client_trainer import ClientTrainer
from tardigrad.service.client.connection import Connection
from tardigrad.service.monitor import run_facts
from tardigrad.service.monitor.operator_following import told_status
from tardigrad.service.monitor.status import status_of, write_status
from tardigrad.service.store.memory import MemoryStore


def explained(running):
    return status_of(running.coordinator, running.server.servicer).explained()


def scene_of(config, folder, act, **options):
    """Serve a run, let `act` do something, and return what it returns."""

    async def scene():
        async with serving(config, folder, **options) as running:
            return await asyncio.wait_for(act(running), PATIENCE)

    return asyncio.run(scene())


def test_a_server_without_clients_says_so_in_its_folder(tmp_path):
    async def act(running):
        for name in ("ann", "bob"):
            running.signer(name)
        status = status_of(running.coordinator, running.server.servicer)
        write_status(tmp_path, replace(status, written=status.written + 1e6))  # it does not grow old

    scene_of(CONFIG, tmp_path, act)
    told = CliRunner().invoke(app, ["status", str(tmp_path), "--explain"]).stdout
    assert told.startswith("warning: No client has come since the server began. (for ")
    assert "tardigrad join" in told
    rows = CliRunner().invoke(app, ["status", str(tmp_path), "--explain", "--json"]).stdout
    assert json.loads(rows)[0]["severity"] == "warning"
    assert "No client has come" in CliRunner().invoke(app, ["status", str(tmp_path), "--once"]).stdout


def test_a_server_that_has_stopped_writing_is_not_running(tmp_path):
    async def act(running):
        return status_of(running.coordinator, running.server.servicer)

    status = scene_of(CONFIG, tmp_path, act)
    write_status(tmp_path, status)
    old = json.loads((tmp_path / "status.json").read_text()) | {"written": time.time() - 600}
    (tmp_path / "status.json").write_text(json.dumps(old))
    told = CliRunner().invoke(app, ["status", str(tmp_path), "--explain"]).stdout
    assert told.startswith("error: The server is not running")
    assert "10 min" in told
    (tmp_path / "status.json").write_text(json.dumps(old | {"over": "trips", "explanations": []}))
    told = CliRunner().invoke(app, ["status", str(tmp_path), "--explain"]).stdout
    assert told.startswith("info: The run is over (trips).")


def test_strangers_are_refused_and_then_a_client_comes(tmp_path):
    simulation = build(CONFIG)

    async def act(running):
        signer = Signer("zoe", make_key(tmp_path / "zoe.key"))
        for _ in range(3):
            stranger = Connection(running.address, signer, None)
            assert await failed(stranger.__aenter__()) is grpc.StatusCode.PERMISSION_DENIED
        running.signer("ann")
        running.signer("eve")
        alone = explained(running)
        async with two_puppets(running, simulation, ("ann", "eve")) as (ann, _):
            await ann.fetch()
            return alone, explained(running)

    alone, together = scene_of(CONFIG, tmp_path, act)
    assert alone[0].severity == "error"
    assert alone[0].sentence == (
        "All requests are refused: not enrolled (3 times; the last was Join, answered with \"client 'zoe' is "
        "not enrolled here; ask the server's operator for `tardigrad enroll`, or correct --name\")."
    )
    assert "tardigrad enroll" in alone[0].remedy
    assert 0 <= alone[0].since < PATIENCE
    assert together[0].severity == "warning"
    assert together[0].sentence.startswith("Some requests are refused: not enrolled")
    assert "1 trip is under way" in together[1].sentence


def test_trips_under_way_and_clients_that_wait(tmp_path):
    simulation = build(CONFIG)

    async def act(running):
        async with (
            two_puppets(running, simulation, ("ann", "eve")) as (ann, eve),
            running.connect("bob") as bob,
        ):
            first = await ann.fetch()
            await eve.fetch()
            well = explained(running)
            waiting = asyncio.ensure_future(bob.fetch(()))
            while not running.coordinator.waiting:
                await asyncio.sleep(0.01)
            full = explained(running)
            status = status_of(running.coordinator, running.server.servicer)
            await ann.deliver(first)
            await waiting
            return well, full, status

    with_bob, full, status = scene_of(CONFIG, tmp_path, act)
    assert with_bob[0].sentence.startswith("Nothing is wrong: 2 trips are under way, and the next step needs")
    assert full[1].sentence == "The pace allows no more than these trips; 1 client waits for one to end."
    assert set(status.started) == set(status.at_work) == {"ann", "eve"}
    assert all(0 <= when <= status.time for when in status.started.values())


def test_silent_clients_are_named(tmp_path, monkeypatch):
    simulation = build(CONFIG)

    class LaterTime:
        """The monotonic clock, some time later."""

        ahead = 0.0

        @staticmethod
        def monotonic():
            return time.monotonic() + LaterTime.ahead

    async def act(running):
        async with two_puppets(running, simulation, ("ann", "eve")) as (ann, eve):
            await ann.fetch()
            await eve.fetch()
        LaterTime.ahead = 400.0
        monkeypatch.setattr(run_facts, "time", LaterTime)
        monkeypatch.setattr("tardigrad.service.monitor.counters.time", LaterTime)
        return explained(running)

    found = scene_of(CONFIG, tmp_path, act)
    assert found[0].severity == "warning"
    assert "silent: ann (7 min), eve (7 min)" in found[0].sentence
    assert found[0].since >= 400


def test_the_clients_that_came_have_given_their_share(tmp_path):
    changes = {
        "data": td.Digits(partition=td.IID(clients=4)),
        "buffer": td.Buffer(size=4, once_per_client=True),
    }
    config = CONFIG.model_copy(update=changes)
    simulation = build(config)

    async def act(running):
        async with two_puppets(running, simulation, ("ann", "eve")) as (ann, eve):
            for puppet in (ann, eve):
                await puppet.deliver(await puppet.fetch())
            too_few = explained(running)
            for name in ("bob", "kim"):
                running.signer(name)
            async with running.connect("bob") as bob:  # the server reads its list again
                await bob.give_up(99, 1)
            return too_few, explained(running)

    too_few, away = scene_of(config, tmp_path, act)
    assert too_few[0].severity == "error"
    assert "needs 2 more uploads, but the 2 enrolled clients may give only 0 to it" in too_few[0].sentence
    assert too_few[0].remedy.startswith("Enroll 2 more clients")
    assert away[0].severity == "warning"
    assert "It waits for others." in " ".join(one.sentence for one in away)


def test_uploads_that_are_not_finite_are_an_explanation(tmp_path):
    simulation = build(CONFIG)

    async def act(running):
        async with running.connect("ann") as connection:
            puppet = Puppet(connection, ClientTrainer("ann", app_of(simulation, 0)), tmp_path / "state")
            trip = await puppet.fetch()
            finished = puppet.train(puppet.holding[trip])
            finished.upload.vectors["delta"][0] = float("nan")
            assert await failed(puppet.send(finished)) is grpc.StatusCode.INVALID_ARGUMENT
            return explained(running)

    found = scene_of(CONFIG, tmp_path, act)
    assert found[0].severity == "error"
    assert found[0].sentence == (
        "All uploads are refused: not finite (1 time; the last was Deliver of ann, answered with "
        '"the vectors have numbers that are not finite").'
    )
    assert "local.lr" in found[0].remedy


def test_uploads_above_the_norm_are_an_explanation(tmp_path):
    simulation = build(CONFIG)

    async def act(running):
        running.coordinator.run_state.admission._largest = 1e-9
        async with running.connect("ann") as connection:
            puppet = Puppet(connection, ClientTrainer("ann", app_of(simulation, 0)), tmp_path / "state")
            answer = await puppet.deliver(await puppet.fetch())
            assert not answer.accepted
            return explained(running)

    found = scene_of(CONFIG, tmp_path, act)
    assert found[0].severity == "error"
    assert found[0].sentence == "All uploads are refused: norm too large (1 time; the last was of ann)."


def test_a_full_disk_is_an_explanation_until_there_is_room(tmp_path):
    simulation = build(CONFIG)
    store = FailingStore(MemoryStore(), "append", 10**9)

    async def act(running):
        with_limits(running, poll_seconds=PATIENCE)
        async with running.connect("ann") as connection:
            puppet = Puppet(connection, ClientTrainer("ann", app_of(simulation, 0)), tmp_path / "state")
            trip = await puppet.fetch()
            store._every = 1
            with pytest.raises(grpc.aio.AioRpcError):
                await puppet.deliver(trip)
            full = explained(running)
            store._every = 10**9
            await puppet.deliver(trip)
            return full, explained(running)

    full, room = scene_of(CONFIG, tmp_path, act, store=store)
    assert full[0].severity == "error"
    assert full[0].sentence.startswith("All uploads are refused: disk full")
    assert not any(one.severity == "error" for one in room)


def test_clients_of_a_private_run_rest_and_a_step_waits_for_others(tmp_path):
    config = CONFIG.model_copy(
        update={
            "data": td.Digits(partition=td.IID(clients=6)),
            "buffer": td.Buffer(size=2),
            "stop": td.Stop(trips=12),
            "privacy": td.Participation(epsilon=50.0, participations=2, separation=3, noise_from="seed"),
        }
    )
    simulation = build(config)

    async def act(running):
        async with two_puppets(running, simulation, ("ann", "eve")) as (ann, eve):
            for puppet in (ann, eve):
                await puppet.deliver(await puppet.fetch())
            await settled(running)
            assert running.coordinator.run_state.book.version == 1
            return explained(running)

    found = scene_of(config, tmp_path, act)
    assert found[0].severity == "error"
    assert found[0].sentence == (
        "The next step needs 2 more uploads, but the 2 enrolled clients may give only 0 to it (2 rest after "
        "a step (privacy.separation))."
    )


def test_a_paused_run_and_an_ejected_client(tmp_path):
    simulation = build(CONFIG)

    async def act(running):
        async with two_puppets(running, simulation, ("ann", "eve")) as (ann, _), running.operator() as root:
            await ann.fetch()
            await root.steer("pause", reason="a test")
            paused = explained(running)
            await root.steer("resume")
            await root.steer("eject", client="ann")
            await root.steer("eject", client="eve")
            assert await failed(ann.connection.give_up(99, 1)) is grpc.StatusCode.PERMISSION_DENIED
            return paused, explained(running)

    paused, ejected = scene_of(CONFIG, tmp_path, act)
    assert paused[0].sentence == (
        "The operator root has paused the run: no trip begins, and 1 trip under way may end."
    )
    assert ejected[0].severity == "error"
    assert ejected[0].sentence.startswith(
        "All requests are refused: ejected (1 time; the last was GiveUp of ann"
    )
    assert "tardigrad admin admit" in ejected[0].remedy


def test_an_ejected_client_that_still_comes_gives_nothing_to_the_buffer(tmp_path):
    changes = {
        "data": td.Digits(partition=td.IID(clients=4)),
        "buffer": td.Buffer(size=2, once_per_client=True),
    }
    config = CONFIG.model_copy(update=changes)

    async def act(running):
        running.signer("bob")  # enrolled, and away
        async with two_puppets(running, build(config), ("ann", "eve")) as (ann, eve):
            async with running.operator() as root:
                await eve.fetch()
                await ann.deliver(await ann.fetch())
                await root.steer("eject", client="eve")
            assert await failed(eve.connection.give_up(99, 1)) is grpc.StatusCode.PERMISSION_DENIED
            return explained(running)

    waits = [one.sentence for one in scene_of(config, tmp_path, act) if "It waits for others" in one.sentence]
    assert len(waits) == 1
    assert "the 1 client that came in the last minutes may give only 0 to it" in waits[0]


def test_a_status_of_an_operator_has_everything_and_that_of_a_client_no_names(tmp_path):
    simulation = build(CONFIG)
    (tmp_path / "config.toml").write_text("")

    async def act(running):
        async with two_puppets(running, simulation, ("ann", "eve")) as (ann, _), running.operator():
            await ann.fetch()
            told = []
            for name in ("root", "eve"):
                source = told_status(running.address, running.signer(name), None)
                told.append(await anext(source))
                await source.aclose()
            source = told_status(running.address, running.signer("eve"), None, run="another")
            with pytest.raises(RunError, match="eve is not enrolled for a run 'another' here"):
                await anext(source)
            return told

    operator, client = scene_of(CONFIG, tmp_path, act)
    assert list(operator.at_work) == ["ann"]
    assert operator.explained()[0].sentence.startswith("Nothing is wrong: 1 trip is under way")
    assert client.at_work == {}
    assert client.explained()[0].sentence == "1 trip is under way."
