"""What the server of a secure run stores and receives holds no unmasked upload, nor its client's numbers."""

import asyncio
import contextlib
import logging

import numpy as np
import pytest
from secure_federation import SecureFederation
from service_harness import PATIENCE, Puppet, app_of, serving, trace_of
from test_secure_served import CONFIG as SHORT

import tardigrad as td
from tardigrad.experiments.runs.simulation_assembly import build
from tardigrad.service.client.client_trainer import ClientTrainer
from tardigrad.service.protocol.wire import packed
from tardigrad.service.server.upload_reception import UploadReception

CONFIG = SHORT.model_copy(update={"stop": td.Stop(trips=24)})
WINDOW = 32
"""Bytes that are searched for, in a row."""
PIECES = 8
"""Pieces of each upload that are searched for."""


def windows(payload):
    """Pieces of an upload that do not occur elsewhere by chance."""
    starts = np.linspace(0, len(payload) - WINDOW, PIECES).astype(int)
    pieces = {bytes(payload[start : start + WINDOW]) for start in starts}
    return {piece for piece in pieces if len(set(piece)) > WINDOW // 2}


def found_in(everything, uploads):
    """How many of these uploads occur in what was stored, at least in part."""
    return sum(any(window in everything for window in windows(packed(one))) for one in uploads)


def stored(folder, record):
    """All bytes in a folder and in snapshots."""
    files = [file.read_bytes() for file in folder.rglob("*") if file.is_file() and file.suffix != ".state"]
    tensors = [t.numpy().tobytes() for tensors, _ in record.snapshots for t in tensors.values()]
    return b"".join(files + tensors) + str([d for _, d in record.snapshots]).encode()


@pytest.fixture
def received(monkeypatch):
    """The headers of uploads that a server receives."""
    headers, original = [], UploadReception.receive

    async def receive(self, client, header, *given):
        headers.append(header)
        return await original(self, client, header, *given)

    monkeypatch.setattr(UploadReception, "receive", receive)
    return headers


def test_server_stores_and_receives_nothing_of_an_unmasked_upload(tmp_path, caplog, received):
    simulation, _, steps = trace_of(CONFIG)
    federation = SecureFederation(tmp_path, CONFIG, simulation, range(6))
    caplog.set_level(logging.DEBUG)

    async def scene():
        async with federation.helper(), federation.serving() as running:
            await federation.replay(running, steps[: len(steps) // 2])
            everything = stored(federation.store, federation.record)
            await running.coordinator.recovery.snapshot()
            await federation.replay(running, steps[len(steps) // 2 : -8])
            return everything

    everything = asyncio.run(asyncio.wait_for(scene(), PATIENCE))  # and a last snapshot at the end
    everything += stored(federation.store, federation.record) + caplog.text.encode()
    assert len(federation.record.snapshots) == 2
    trips = [(puppet, trip) for puppet in federation.puppets.values() for trip in puppet.finished]
    assert len(trips) > 10
    assert found_in(everything, [puppet.plain[trip].upload.vectors for puppet, trip in trips]) == 0
    assert found_in(everything, [puppet.finished[trip].upload.vectors for puppet, trip in trips]) > 5
    for header in received:
        told = (header.examples, header.steps, header.loss, header.evaluated, dict(header.metrics))
        assert told == (1, 1, 0.0, 0, {})
    seeds = [seed for puppet, trip in trips for seed in puppet.finished[trip].seeds]
    assert not any(seed in everything for seed in seeds)


def test_the_search_finds_uploads_that_are_not_masked(tmp_path):
    """The control: the same numbers on the grid of the secure run, without masks."""
    grid = build(CONFIG).config.encoding
    config = CONFIG.model_copy(update={"secure": None, "encoding": grid})
    simulation, _, steps = trace_of(config)
    puppets = {}

    async def scene():
        async with serving(config, tmp_path) as running, contextlib.AsyncExitStack() as stack:
            for what, client, trip in steps[:12]:
                if client not in puppets:
                    connection = await stack.enter_async_context(running.connect(str(client)))
                    trainee = ClientTrainer(str(client), app_of(simulation, client))
                    puppets[client] = Puppet(connection, trainee, tmp_path / f"{client}.state")
                await getattr(puppets[client], what)(*[trip] * (what != "fetch"))
            return stored(tmp_path, running.record)

    everything = asyncio.run(asyncio.wait_for(scene(), PATIENCE))
    uploads = [one.upload.vectors for puppet in puppets.values() for one in puppet.finished.values()]
    assert found_in(everything, uploads) == len(uploads) > 3
