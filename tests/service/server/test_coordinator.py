"""The coordinator: stale and expired trips; and no 'exception was never retrieved' in the log, whatever is
refused and however a run fails."""

import asyncio
import contextlib
import errno
import gc
import logging
import os

import grpc
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from service_harness import PATIENCE, FakeClock, fetched, serving
from test_upload_checks import BAD
from upload_clients import CONFIG, code_of, trained, two_clients

from tardigrad.service.access.signed_requests import Signer
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


def test_refusals_leave_no_unretrieved_exception(complaints, tmp_path):
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


def test_full_disk_leaves_no_unretrieved_exception(complaints, tmp_path, monkeypatch):
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


def test_failed_run_leaves_no_unretrieved_exception(complaints, tmp_path):
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
            waiting = [
                asyncio.ensure_future(coordinator.check_in(name, frozenset(), PATIENCE))
                for name in ("cat", "dan", "eve")
            ]
            await asyncio.gather(*(c.deliver(f) for c, f in uploads), return_exceptions=True)
            await asyncio.wait_for(asyncio.wait({coordinator.ended}), PATIENCE)
            assert None in await asyncio.gather(*waiting)  # ann and bob left two places, if it came to that

    assert complaints(scene) == []


def test_stale_upload_does_not_count_and_its_client_is_told(tmp_path):
    async def scene():
        async with two_clients(tmp_path) as (_, ann, bob):
            late = await trained(bob, 1)
            for _ in range(2):
                assert (await ann.deliver(await trained(ann))).accepted
            answer = await bob.deliver(late)
            assert (answer.accepted, answer.reason, answer.staleness) == (False, "too stale", 1)
            assert await bob.deliver(late) == answer

    asyncio.run(scene())


def test_upload_after_ticket_expiry_is_refused(tmp_path):
    clock = FakeClock()

    async def scene():
        async with serving(CONFIG, tmp_path, clock=clock) as running, running.connect("ann", clock) as ann:
            finished = await trained(ann)
            clock.advance(running.coordinator.settings.ticket_seconds)
            while running.coordinator.run_state.given_up == 0:
                await asyncio.sleep(0.05)
            assert await code_of(ann.deliver(finished)) is grpc.StatusCode.NOT_FOUND
            again = await fetched(ann)
            assert again.task.trip == finished.trip + 1

    asyncio.run(scene())
