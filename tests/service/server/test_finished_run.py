"""What a client hears that comes late, and what a folder of a served run says."""

import asyncio
import socket
from dataclasses import replace

import grpc
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from service_harness import PATIENCE, enrolled_key, serving
from test_participant import ALONE, participant

import tardigrad as td
from tardigrad.core.events import ModelMoved, RunPosition
from tardigrad.errors import ConfigError
from tardigrad.experiments.runs.run_folder import RunFolder
from tardigrad.experiments.runs.serve import serve
from tardigrad.experiments.runs.simulation_assembly import build
from tardigrad.service.access.signed_requests import Signer
from tardigrad.service.client.connection import Connection
from tardigrad.service.protocol.refusals import Cause
from tardigrad.service.server.endpoint import Endpoint
from tardigrad.service.server.finished_run import tell_over


def lingering(plan):
    """Return the plan with some seconds in which clients are told of the end."""
    return replace(plan, settings=plan.settings.model_copy(update={"linger_seconds": PATIENCE}))


def test_client_that_was_away_is_told_that_the_run_is_over(tmp_path):
    simulation = build(ALONE)

    async def scene():
        seen = []
        async with serving(ALONE, tmp_path) as running:
            client = participant(running, "0", 0, simulation, seen.append)
            work = asyncio.ensure_future(client.take_part())
            while len(seen) < 2:
                await asyncio.sleep(0.01)
        endpoint, port = (
            Endpoint(keys=running.keys, insecure=True),
            asyncio.get_running_loop().create_future(),
        )
        telling = asyncio.ensure_future(
            tell_over(lingering(running.run.plan), endpoint, tmp_path, "somebody said so", port.set_result)
        )
        client._address = f"127.0.0.1:{await port}"
        assert await asyncio.wait_for(work, PATIENCE) == "somebody said so"
        before = Connection(client._address, running.signer("0"), None)  # its session is of before
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await before.give_up(0, 0)
        assert dict(caught.value.trailing_metadata())["tardigrad-why"] == Cause.SESSION
        with pytest.raises(grpc.aio.AioRpcError, match="not enrolled"):
            async with Connection(client._address, Signer("eve", Ed25519PrivateKey.generate()), None):
                pass
        telling.cancel()
        await asyncio.gather(telling, return_exceptions=True)

    asyncio.run(scene())


def test_port_in_use_is_named(tmp_path):
    async def scene():
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            taken.listen()
            port = taken.getsockname()[1]
            async with serving(ALONE, tmp_path) as running:
                endpoint = Endpoint(port=port, keys=running.keys, insecure=True)
                with pytest.raises(ConfigError, match=f"--port {port}: cannot listen there"):
                    await tell_over(lingering(running.run.plan), endpoint, tmp_path, "trips", print)

    asyncio.run(scene())


def test_client_that_leaves_during_the_download_gives_its_ticket_back(tmp_path):
    simulation = build(ALONE)

    async def scene():
        async with serving(ALONE, tmp_path) as running:
            client = participant(running, "0", 0, simulation)
            begin = client._begin

            def begin_and_leave(trip, epoch):
                begin(trip, epoch)
                work.cancel()

            client._begin = begin_and_leave
            work = asyncio.ensure_future(client.take_part())
            with pytest.raises(asyncio.CancelledError):
                await asyncio.wait_for(work, PATIENCE)
            assert running.coordinator.run_state.given_up == 1
            assert not running.coordinator.run_state.book.in_flight

    asyncio.run(scene())


def begun(folder, **changed):
    directory = RunFolder(folder, live=True)
    config = td.Config(**(dict(ALONE) | changed))
    try:
        if folder.exists():
            directory.reopen(config, {})
            directory.go_on()
        else:
            directory.create(config, {})
        directory.record([ModelMoved(*RunPosition())])
        return (folder / "events.jsonl").read_text()  # at once, though it is still open
    finally:
        directory.close()


def test_limits_may_change_between_starts_but_not_the_algorithm(tmp_path):
    folder = tmp_path / "live"
    assert '"step"' in begun(folder, service={"population": 3})
    begun(folder, service={"population": 3, "ticket_seconds": 5.0})
    assert "ticket_seconds = 5.0" in (folder / "config.toml").read_text()
    with pytest.raises(ConfigError, match=r"service\.population") as caught:
        begun(folder, service={"population": 4})
    assert "--resume" not in str(caught.value)
    with pytest.raises(ConfigError, match="seed"):
        begun(folder, service={"population": 3}, seed=9)


def test_folder_with_other_files_is_refused(tmp_path):
    out, keys = tmp_path / "run", tmp_path / "keys"
    out.mkdir()
    keys.mkdir()
    enrolled_key(keys, "ann")
    (out / "notes.txt").write_text("mine")
    with pytest.raises(ConfigError, match="already holds something") as caught:
        serve(ALONE, out=out, endpoint=Endpoint(keys=keys, insecure=True))
    assert "--resume" not in str(caught.value)
