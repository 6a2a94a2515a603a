"""The log has no 'exception was never retrieved', whatever is refused and however a run fails."""

import asyncio
import contextlib
import errno
import gc
import logging
import os

import grpc
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from service_harness import app_of, serving
from test_upload_checks import BAD, CONFIG, SIMULATION

from tardigrad.service.access.signed_requests import Signer
from tardigrad.service.client.client_trainer import ClientTrainer
from tardigrad.service.client.connection import Connection
from tardigrad.service.store.contract import StoreError

FULL = errno.ENOSPC, os.strerror(errno.ENOSPC)


def raising(kind, *said):
    def raise_it(*_):
        raise kind(*said)

    return raise_it


@pytest.fixture
def complaints():
    """Run a scene, and return what asyncio complains of up to its end."""
    told = []

    class Listening(logging.Handler):
        def emit(self, record):
            told.append(record.getMessage())

    # pytest would keep the errors that are logged, and asyncio complains only of those that nobody keeps
    silenced = {name: logging.getLogger(name).level for name in ("tardigrad", "grpc")}
    for name in silenced:
        logging.getLogger(name).setLevel(logging.CRITICAL + 1)
    handler = Listening()
    logging.getLogger("asyncio").addHandler(handler)

    def run(scene):
        asyncio.run(scene())
        gc.collect()
        return told

    yield run
    logging.getLogger("asyncio").removeHandler(handler)
    for name, level in silenced.items():
        logging.getLogger(name).setLevel(level)


async def trained(connection, client=0):
    return ClientTrainer(str(client), app_of(SIMULATION, client)).train(await connection.fetch(), {})


def test_refusals(complaints, tmp_path):
    async def scene():
        async with serving(CONFIG, tmp_path) as running, running.connect("ann") as ann:
            finished = await trained(ann)
            for spoil, _ in BAD.values():
                with pytest.raises(grpc.aio.AioRpcError):
                    await ann.deliver(spoil(finished))
            with pytest.raises(grpc.aio.AioRpcError):
                async with Connection(running.address, Signer("eve", Ed25519PrivateKey.generate()), None):
                    pass
            leaving = asyncio.ensure_future(ann.deliver(finished))
            await asyncio.sleep(0)
            leaving.cancel()
            await asyncio.gather(leaving, return_exceptions=True)

    assert complaints(scene) == []


def test_a_full_disk(complaints, tmp_path, monkeypatch):
    """Neither the journal nor the snapshot can be written; the client is told, hears it or not."""

    async def scene():
        async with serving(CONFIG, tmp_path) as running, running.connect("ann") as ann:
            finished, coordinator = await trained(ann), running.coordinator
            with monkeypatch.context() as patch:
                patch.setattr(coordinator._store, "append", raising(StoreError, *FULL))
                with pytest.raises(grpc.aio.AioRpcError):
                    await ann.deliver(finished)
                await coordinator.give_up("ann", finished.trip, finished.epoch + 1)
                with contextlib.suppress(Exception):
                    await coordinator.give_up("ann", finished.trip, finished.epoch)
            with monkeypatch.context() as patch:
                patch.setattr(coordinator._store, "remember", raising(StoreError, "full"))
                patch.setattr(running.record, "snapshot", raising(OSError, *FULL))
                await coordinator.recovery.snapshot()
            assert (await ann.deliver(finished)).accepted

    assert complaints(scene) == []


def test_a_run_that_fails(complaints, tmp_path):
    """While uploads and check-ins are in the queue, and with nobody who waits for its end."""

    async def scene():
        async with (
            serving(CONFIG, tmp_path) as running,
            running.connect("ann") as ann,
            running.connect("bob") as bob,
        ):
            coordinator = running.coordinator
            uploads = [(ann, await trained(ann)), (bob, await trained(bob, 1))]
            coordinator.model_state.do = raising(ValueError, "a bug")
            waiting = asyncio.ensure_future(coordinator.check_in("eve", frozenset(), 20.0))
            await asyncio.gather(*(c.deliver(f) for c, f in uploads), return_exceptions=True)
            await asyncio.wait_for(asyncio.wait({coordinator.ended}), 20)
            assert await waiting is None

    assert complaints(scene) == []
