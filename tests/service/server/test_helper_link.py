"""The link to the helpers: envelopes to old keys, refusals by a helper, and disks that are full."""

import asyncio
import contextlib

import grpc
import pytest
from secure_federation import SecureFederation
from service_harness import PATIENCE, failed, trace_of

import tardigrad as td
from tardigrad.secure.helper_refusals import RESEAL
from tardigrad.service.access.enrolment import LIST
from tardigrad.service.store.contract import StoreError
from tardigrad.service.store.sqlite import SqliteStore

CONFIG = td.Config(
    algorithm=td.FedBuff(), data=td.Digits(partition=td.IID(clients=6)), model=td.MLP(hidden=()),
    pace=td.Asynchronous(concurrency=4), buffer=td.Buffer(size=3), secure=td.Secure(least_clients=2),
    stop=td.Stop(trips=24), local=td.Local(steps=1, lr=0.1),
    service={"requests_per_second": 10_000, "snapshot_seconds": 1e6},
)  # fmt: skip


@pytest.fixture(scope="module")
def simulation():
    return trace_of(CONFIG)[0]


@pytest.fixture
def federation(tmp_path, simulation):
    return SecureFederation(tmp_path, CONFIG, simulation, range(6))


@contextlib.asynccontextmanager
async def started(federation, clients=range(4), **options):
    """A server, a helper, and clients that are connected."""
    async with contextlib.AsyncExitStack() as stack:
        helper = await stack.enter_async_context(federation.helper())
        running = await stack.enter_async_context(federation.serving(**options))
        puppets = [await stack.enter_async_context(federation.client(running, client)) for client in clients]
        yield helper, running, puppets


def done(scene):
    return asyncio.run(asyncio.wait_for(scene, PATIENCE))


def test_upload_to_an_erased_key_is_sealed_again_and_counts(federation):
    async def scene():
        async with started(federation) as (_, running, (late, *others)):
            secure, book = running.coordinator.run_state.secure, running.coordinator.run_state.book
            trip = await late.fetch()
            finished = late.train(late.holding.pop(trip))
            old = late.secure.envelopes(finished, await late.connection.offered_keys())
            for _ in range(2):  # each release makes a new key
                for puppet in others:
                    assert (await puppet.deliver(await puppet.fetch())).accepted
            while secure.version < 2:
                await asyncio.sleep(0.001)
            answer = await late.connection.deliver(finished, old)
            assert (answer.accepted, answer.reason) == (False, RESEAL)
            assert trip in book.in_flight
            assert not secure.offers
            late.finished[trip] = finished
            answer = await late.deliver(trip)
            assert answer.accepted
            assert answer.staleness == 2

    done(scene())


def test_client_that_is_not_on_the_helpers_list_is_refused_in_the_helpers_words(federation):
    async def scene():
        async with started(federation) as (helper, running, puppets):
            trips = [await puppet.fetch() for puppet in puppets]
            rows = (helper.keys / LIST).read_text().splitlines(keepends=True)
            (helper.keys / LIST).write_text("".join(row for row in rows if not row.startswith("0 ")))
            answer = await puppets[0].deliver(trips[0])
            assert not answer.accepted
            assert answer.reason == "the client is not on the helper's own list"
            assert (await puppets[0].deliver(trips[0])).reason == answer.reason
            assert running.coordinator.run_state.refused == {"refused by a helper": 1}
            assert (await puppets[1].deliver(trips[1])).accepted

    done(scene())


def test_second_delivery_with_other_values_is_refused(federation):
    async def scene():
        async with started(federation, [0]) as (_, _, (puppet,)):
            trip = await puppet.fetch()
            assignment = puppet.holding[trip]
            assert (await puppet.deliver(trip)).accepted
            puppet.finished[trip] = puppet.train(assignment)  # masked anew
            assert await failed(puppet.deliver(trip)) is grpc.StatusCode.ALREADY_EXISTS

    done(scene())


def test_uploads_without_envelopes_are_refused_before_they_are_received(federation):
    async def scene():
        async with started(federation, [0]) as (_, running, (puppet,)):
            trip = await puppet.fetch()
            finished = puppet.train(puppet.holding.pop(trip))
            assert await failed(puppet.connection.deliver(finished)) is grpc.StatusCode.INVALID_ARGUMENT
            assert running.refusals["wrong envelopes"] == 1
            assert running.coordinator.counters.bytes_in == 0

    done(scene())


class FullDisk(SqliteStore):
    """A store whose disk is full for entries of some kinds, a number of times."""

    def __init__(self, folder):
        super().__init__(folder)
        self.faults = {"deliver": 2, "release": 2, "receipt": 2, "write": 1}

    def _fail(self, kind):
        if self.faults.get(kind):
            self.faults[kind] -= 1
            raise StoreError("the disk is full, on purpose")

    def append(self, entries):
        for entry in (entries := list(entries)):
            self._fail(entry.kind)
        return super().append(entries)

    def write(self, trip, payload):
        if trip == 1 and not self.faults["release"]:
            self._fail("write")
        return super().write(trip, payload)


async def delivered(puppet, trip):
    """Deliver as a client does: once more, if the server says that it cannot write now."""
    while True:
        try:
            return await puppet.deliver(trip)
        except grpc.aio.AioRpcError as error:
            if error.code() is not grpc.StatusCode.RESOURCE_EXHAUSTED:
                raise
            await asyncio.sleep(0.001)


def test_what_cannot_be_journaled_is_asked_of_the_helpers_again(federation, monkeypatch):
    monkeypatch.setattr("tardigrad.service.server.helper_link.DISK_WAIT", 0.01)

    async def scene():
        with contextlib.closing(FullDisk(federation.store)) as store:
            async with started(federation, store=store) as (_, running, puppets):
                trips = [await puppet.fetch() for puppet in puppets]
                for puppet, trip in zip(puppets, trips):
                    assert (await delivered(puppet, trip)).accepted
                secure = running.coordinator.run_state.secure
                while secure.version < 1:
                    assert not running.coordinator.ended.done()
                    await asyncio.sleep(0.001)
                return store.faults

    assert not any(done(scene()).values())
