"""`tardigrad status`: from the folder with names, from the server without."""

import asyncio
import json

import grpc
import pytest
from service_harness import PATIENCE, serving, settled, two_puppets
from test_metrics import CONFIG
from typer.testing import CliRunner

from tardigrad.cli import app, main
from tardigrad.errors import ConfigError, RunError
from tardigrad.experiments.runs.simulation_assembly import build
from tardigrad.service.monitor.status import (
    FILE,
    keep_status,
    read_status,
    status_of,
    watch_folder,
    write_status,
)
from tardigrad.service.monitor.status_table import rows
from tardigrad.service.monitor.watching import watch_server
from tardigrad.service.server.service_settings import ServiceSettings


async def first(source):
    return await anext(source)


def test_status_of_folder_and_server_agree(tmp_path):
    simulation = build(CONFIG)

    async def scene():
        async with serving(CONFIG, tmp_path) as running:
            async with two_puppets(running, simulation, ("ann", "eve")) as (ann, eve):
                early, late = await ann.fetch(), await eve.fetch()
                await ann.deliver(early)
                await eve.deliver(late)
                await ann.fetch()
            await settled(running)
            writing = asyncio.ensure_future(
                keep_status(tmp_path, running.coordinator, running.server.servicer)
            )
            while not (tmp_path / FILE).exists():
                await asyncio.sleep(0.01)
            here = await first(watch_folder(tmp_path))
            writing.cancel()
            there = await asyncio.wait_for(
                first(watch_server(running.address, running.signer("bob"), None)), PATIENCE
            )
            return here, there

    here, there = asyncio.run(scene())
    for status in (here, there):
        assert (status.version, status.trips, status.in_flight, status.waiting) == (1, 2, 1, 0)
        assert status.uploads_refused == {"too stale": 1}
        assert status.over == ""
        assert "accuracy" in status.metrics
    assert list(here.last_seen) == ["ann", "eve"]
    assert "ann" not in repr(there)
    told = dict(rows(here, None))
    assert told["uploads refused"] == "too stale: 1"
    assert told["seen last"].startswith("ann (")


def test_status_command_reads_the_folder(tmp_path):
    async def scene():
        async with serving(CONFIG, tmp_path) as running:
            return status_of(running.coordinator, running.server.servicer)

    status = asyncio.run(scene())
    write_status(tmp_path, status)
    told = CliRunner().invoke(app, ["status", str(tmp_path), "--once", "--json"])
    assert json.loads(told.stdout)["version"] == 0
    assert "waiting" in CliRunner().invoke(app, ["status", str(tmp_path), "--once"]).stdout

    old = json.loads((tmp_path / FILE).read_text()) | {"written": status.written - 60}
    (tmp_path / FILE).write_text(json.dumps(old))
    assert "is it running?" in dict(rows(read_status(tmp_path), None))["run"]
    (tmp_path / FILE).write_text(json.dumps(old | {"over": "trips"}))
    assert "over (trips)" in CliRunner().invoke(app, ["status", str(tmp_path)]).stdout


def test_folder_or_address_without_a_server_is_named(tmp_path):
    with pytest.raises(ConfigError, match=r"status\.json"):
        read_status(tmp_path)
    for words, said in ((["nowhere"], "neither"), (["localhost:1"], "--key")):
        with pytest.raises(ConfigError, match=said):
            CliRunner().invoke(app, ["status", *words], catch_exceptions=False)


GOOD = {
    "version": 1, "trips": 2, "time": 3, "in_flight": 0, "waiting": 0, "staleness": 0.5, "given_up": 0,
    "uploads_refused": {}, "metrics": {"loss": float("nan")}, "over": "", "written": 5.0,
}  # fmt: skip


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("{}", "version: Field required"),
        ("[]", ""),
        ("{", "Invalid JSON"),
        (json.dumps(GOOD | {"time": "3"}), "time: "),
        (json.dumps(GOOD | {"trips": 1.5}), "trips: "),
        (json.dumps(GOOD | {"metrics": {":100:": "high"}}), "metrics: Input should be a valid number"),
        (json.dumps(GOOD | {"last_seen": None}), "last_seen: "),
    ],
)
def test_a_damaged_file_is_named_in_one_sentence(text, fault, tmp_path):
    (tmp_path / FILE).write_text(json.dumps(GOOD))
    assert read_status(tmp_path).trips == 2
    (tmp_path / FILE).write_text(text)
    with pytest.raises(RunError, match=rf"status\.json is damaged \({fault}") as caught:
        CliRunner().invoke(app, ["status", str(tmp_path), "--once"], catch_exceptions=False)
    assert "__init__" not in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("address", "said"),
    [
        ("localhost:abc", "'abc' is not a port"),
        ("localhost:99999", "'99999' is not a port"),
        ("localhost:0", "'0' is not a port"),
        ("localhost:", "'' is not a port"),
        ("localhost:" + "9" * 200, "is not a port"),
        (":7433", "'' is not a host"),
        ("::1:7433", "must be in brackets"),
        ("localhost:100:x", "'x' is not a port"),
    ],
)
def test_a_wrong_address_is_named_in_plain_letters(address, said, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["tardigrad", "status", address, "--key", str(tmp_path / "ann.key")])
    with pytest.raises(SystemExit) as caught:
        main()
    told = capsys.readouterr().err
    assert caught.value.code == 2
    assert said in told
    assert told.isascii()


async def ask_for_ever(connection):
    while True:
        await asyncio.gather(*(connection.give_up(99, 1) for _ in range(8)))


def test_status_waits_while_the_client_with_its_key_is_busy(tmp_path):
    """The key's own client has used up its requests: the status comes a little later, not never."""
    config = CONFIG.model_copy(update={"service": ServiceSettings(requests_per_second=1.0)})

    async def scene():
        async with serving(config, tmp_path / "run") as running:
            async with running.connect("ann") as connection:
                with pytest.raises(grpc.aio.AioRpcError, match="RESOURCE_EXHAUSTED"):
                    await ask_for_ever(connection)
            return await anext(watch_server(running.address, running.signer("ann"), None))

    assert asyncio.run(asyncio.wait_for(scene(), PATIENCE)).version == 0
