"""The log: one line for one record, whatever a client calls itself; and nothing secret in it."""

import asyncio
import base64
import io
import json
import logging
from dataclasses import replace

import grpc
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from service_harness import Puppet, app_of, fetched, serving
from test_metrics import CONFIG

from tardigrad.experiments.runs.simulation_assembly import build
from tardigrad.service.access.signed_requests import Signer
from tardigrad.service.client.client_trainer import ClientTrainer
from tardigrad.service.client.connection import Connection
from tardigrad.service.monitor.logs import LONGEST, JsonLines, TextLines, log_to_stderr
from tardigrad.service.protocol.refusals import Cause

FORGED = 'eve\n2026-01-01 ERROR all is lost \x1b[2J","level":"error'


@pytest.fixture(params=[JsonLines, TextLines])
def written(request):
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(request.param())
    log = logging.getLogger("tardigrad")
    level = log.level
    log.addHandler(handler)
    log.setLevel(logging.DEBUG)
    yield stream
    log.removeHandler(handler)
    log.setLevel(level)


def test_a_run_is_logged_without_secrets_and_nobody_forges_a_line(written, tmp_path):
    simulation = build(CONFIG)

    async def scene():
        async with serving(CONFIG, tmp_path) as running:
            async with running.connect("ann") as connection:
                puppet = Puppet(connection, ClientTrainer("ann", app_of(simulation, 0)), tmp_path / "state")
                await puppet.deliver(await puppet.fetch())
                session = connection._signer.session
            stranger = Signer(FORGED, Ed25519PrivateKey.generate())
            with pytest.raises(grpc.aio.AioRpcError):
                async with Connection(running.address, stranger, None):
                    pass
            return running.signers["ann"], session

    key, session = asyncio.run(scene())
    text = written.getvalue()
    lines = text.splitlines()
    assert len([line for line in lines if "all is lost" in line]) == 1
    assert all(c.isprintable() for line in lines for c in line)
    for secret in (key.private_bytes_raw(), session):
        assert secret.hex() not in text
        assert base64.b64encode(secret).decode() not in text
    if lines[0].startswith("{"):
        records = [json.loads(line) for line in lines]
        assert all({"time", "level", "event", "message"} <= set(record) for record in records)
        upload = next(record for record in records if record["event"] == "upload")
        assert (upload["client"], upload["trip"], upload["staleness"]) == ("ann", 0, 0)
        refused = next(record for record in records if record["event"] == "refused")
        assert (refused["why"], refused["level"]) == ("not enrolled", "warning")


LONG = "n" * 2**20


def test_long_names_are_neither_echoed_nor_logged(written, tmp_path):
    """Of clients, methods, runs and vectors, signed by a stranger and by a client."""
    simulation = build(CONFIG)

    async def details(call):
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await call
        error = caught.value
        assert error.code() not in (grpc.StatusCode.INTERNAL, grpc.StatusCode.UNKNOWN)
        told = [error.details(), *map(str, dict(error.trailing_metadata()).values())]
        return dict(error.trailing_metadata())["tardigrad-why"], max(map(len, told))

    async def scene():
        async with serving(CONFIG, tmp_path) as running, running.connect("ann") as ann:
            stranger = Signer(LONG, Ed25519PrivateKey.generate())
            found = [await details(Connection(running.address, stranger, None).__aenter__())]
            found.append(await details(ann._stub.Join(ann._signer.sign(LONG))))
            finished = ClientTrainer("ann", app_of(simulation, 0)).train(await fetched(ann), {})
            vectors = {LONG: finished.upload.vectors["delta"]}
            named = replace(finished, upload=replace(finished.upload, vectors=vectors))
            found.append(await details(ann.deliver(named)))
            run, ann.run = ann.run, LONG
            found.append(await details(ann.deliver(finished)))
            ann.run = run
            assert (await ann.deliver(finished)).accepted
            return found

    found = dict(asyncio.run(scene()))
    assert set(found) == {
        Cause.NOT_ENROLLED,
        Cause.MISDIRECTED,
        Cause.SHAPE,
        Cause.UNSOLICITED,
    }
    assert max(found.values()) < 600
    lines = written.getvalue().splitlines()
    assert sum("refused" in line for line in lines) >= 4
    assert max(map(len, lines)) < 1000


@pytest.mark.parametrize("lines", [JsonLines(), TextLines()])
def test_what_comes_from_outside_is_cut_and_escaped(lines):
    name = "\r\n\u2028\x1b" + "x" * 10_000
    record = logging.makeLogRecord({"msg": "of %s", "args": (name,), "client": name})
    line = lines.format(record)
    assert len(line) < 4 * LONGEST
    assert line.isprintable()
    assert r"\n" in line


def test_a_client_that_hangs_up_is_no_error(capsys):
    log_to_stderr()
    core = logging.getLogger("grpc._cython.cygrpc")
    core.error(
        "ExecuteBatchError raised in core by servicer method [%s]", "/tardigrad.v1.Federation/FetchTask"
    )
    core.error("Unexpected [ValueError] raised by servicer method [%s]", "/tardigrad.v1.Federation/FetchTask")
    (line,) = capsys.readouterr().err.splitlines()
    assert "ValueError" in line
