"""`tardigrad status`: from the folder with names, from the server without."""

import asyncio
import json

import pytest
from service_harness import serving, two_puppets
from test_metrics import CONFIG
from typer.testing import CliRunner

from tardigrad.cli import app
from tardigrad.errors import ConfigError, RunError
from tardigrad.experiments.run import build
from tardigrad.service.status import FILE, keep_status, read_status, status_of, watch_folder, write_status
from tardigrad.service.status_show import rows
from tardigrad.service.watching import watch_server


async def first(source):
    return await anext(source)


def test_folder_and_server_say_the_same(tmp_path):
    simulation = build(CONFIG)

    async def scene():
        async with serving(CONFIG, tmp_path) as running:
            async with two_puppets(running, simulation, ("ann", "eve")) as (ann, eve):
                early, late = await ann.fetch(), await eve.fetch()
                await ann.deliver(early)
                await eve.deliver(late)
                await ann.fetch()
            writing = asyncio.ensure_future(
                keep_status(tmp_path, running.coordinator, running.server.servicer)
            )
            while not (tmp_path / FILE).exists():
                await asyncio.sleep(0.01)
            here = await first(watch_folder(tmp_path))
            writing.cancel()
            there = await asyncio.wait_for(
                first(watch_server(running.address, running.signer("bob"), None)), 20
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


def test_the_command(tmp_path):
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


def test_wrong_places_are_named(tmp_path):
    with pytest.raises(ConfigError, match=r"status\.json"):
        read_status(tmp_path)
    (tmp_path / FILE).write_text("{}")
    with pytest.raises(RunError, match="damaged"):
        read_status(tmp_path)
    for words, said in ((["nowhere"], "neither"), (["localhost:1"], "--key")):
        with pytest.raises(ConfigError, match=said):
            CliRunner().invoke(app, ["status", *words], catch_exceptions=False)
