"""Staying up: rates, memory, waiting clients, watchers, health."""

import asyncio

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from service_harness import FakeClock, app_of, serving

import tardigrad as td
from tardigrad.errors import ConfigError
from tardigrad.experiments.runs.simulation_assembly import build
from tardigrad.service.client.client_trainer import ClientTrainer
from tardigrad.service.client.connection import RetryLater, RunIsOver
from tardigrad.service.protocol.refusals import Cause, Refused
from tardigrad.service.server.lifecycle import check_servable
from tardigrad.service.server.limits import Rates, UploadMemory

CONFIG = td.Config(
    data=td.Digits(partition=td.IID(clients=4)), model=td.MLP(hidden=(4,)),
    pace=td.Asynchronous(concurrency=2), buffer=td.Buffer(size=2), stop=td.Stop(trips=4),
    service={"requests_per_second": 1000, "poll_seconds": 0.5},
)  # fmt: skip
SIMULATION = build(CONFIG)


def test_a_client_has_so_many_requests_a_second():
    clock = FakeClock()
    rates = Rates(2.0, clock)
    for _ in range(4):
        rates.take("ann")
    with pytest.raises(Refused) as caught:
        rates.take("ann")
    assert caught.value.why is Cause.RATE
    assert caught.value.retry_after == pytest.approx(0.5)
    rates.take("bob")
    clock.advance(0.5)
    rates.take("ann")


def test_uploads_wait_for_memory_in_their_order():
    async def scene():
        reception = UploadMemory(10)
        await reception.take(6, 1.0)
        order = []

        async def one(name, size):
            await reception.take(size, 1.0)
            order.append(name)

        large, small = asyncio.ensure_future(one("large", 8)), asyncio.ensure_future(one("small", 2))
        await asyncio.sleep(0)
        assert order == []  # the small one would fit, but came later
        reception.give_back(6)
        await asyncio.gather(large, small)
        assert order == ["large", "small"]
        assert reception.used == 10
        with pytest.raises(Refused) as caught:
            await reception.take(1, 0.01)
        assert caught.value.why is Cause.FULL
        reception.give_back(10)
        assert reception.used == 0

    asyncio.run(scene())


def test_a_thousand_waiting_clients_are_cheap_and_served_in_their_order(tmp_path):
    async def scene():
        async with serving(CONFIG, tmp_path) as running:
            coordinator = running.coordinator
            first = [await coordinator.check_in(name, frozenset(), 5.0) for name in ("a", "b")]
            waiting = [
                asyncio.ensure_future(coordinator.check_in(f"c{n}", frozenset(), 20.0)) for n in range(1000)
            ]
            await asyncio.sleep(0.05)
            assert not any(one.done() for one in waiting)
            assert len(coordinator._store.entries(0)) == 2  # who waits is not written down
            for ticket in first:
                await coordinator.give_up(ticket.client, ticket.trip, coordinator.epoch)
            done = await asyncio.gather(*waiting[:2])
            assert [ticket.trip for ticket in done] == [2, 3]
            assert sum(one.done() for one in waiting) == 2
            coordinator.dismiss()
            assert (await asyncio.gather(*waiting))[2:] == [None] * 998

    asyncio.run(scene())


def test_no_room_then_the_same_ticket_again_then_over(tmp_path):
    async def scene():
        async with (
            serving(CONFIG, tmp_path) as running,
            running.connect("0") as ann,
            running.connect("1") as bob,
            running.connect("2") as eve,
        ):
            tasks = [await ann.fetch(), await bob.fetch()]
            assert isinstance(await eve.fetch(), RetryLater)
            again = await ann.fetch()  # it lost its task, and gets the same
            assert (again.task.trip, again.seed) == (tasks[0].task.trip, tasks[0].seed)
            assert isinstance(await ann.fetch([again.task.trip]), RetryLater)  # one at a time
            progress = []

            async def watch():
                async for one in eve.watch():
                    progress.append(one)

            watching = asyncio.ensure_future(watch())
            for _ in range(2):
                for client, connection in enumerate((ann, bob)):
                    trainee = ClientTrainer(str(client), app_of(SIMULATION, client))
                    answer = await connection.deliver(trainee.train(await connection.fetch(), {}))
                    assert answer.accepted
            assert answer.over == "trips"
            assert await eve.fetch() == RunIsOver("trips")
            await asyncio.wait_for(watching, 5)
            assert progress[-1].over == "trips"
            assert progress[-1].version == 2

    asyncio.run(scene())


def test_health(tmp_path):
    async def scene():
        async with (
            serving(CONFIG, tmp_path) as running,
            grpc.aio.insecure_channel(running.address) as channel,
        ):
            request = health_pb2.HealthCheckRequest(service="tardigrad.v1.Federation")
            return (await health_pb2_grpc.HealthStub(channel).Check(request)).status

    assert asyncio.run(scene()) == health_pb2.HealthCheckResponse.SERVING


@pytest.mark.parametrize(
    ("algorithm", "pace", "said"),
    [
        (td.WeightPrediction(), td.Asynchronous(), "expected_staleness"),
        (td.FedBuff(), td.Arrivals(), "'arrivals' decides when clients turn up"),
        (td.FedBuff(), td.SampledStaleness(), "'sampled_staleness' decides"),
        (td.FedBuff(), td.Scripted(trips=((0.0, 1.0, 0),)), "'scripted' decides"),
        (td.FedAvg(), td.Poisson(), "'poisson' decides"),
    ],
)
def test_what_only_a_simulation_can_do_is_refused(algorithm, pace, said):
    with pytest.raises(ConfigError, match=said):
        check_servable(algorithm, pace)


def test_memory_must_hold_at_least_one_upload(tmp_path):
    small = td.Config(**(dict(CONFIG) | {"service": {"reception_bytes": 10}}))

    async def scene():
        async with serving(small, tmp_path):
            pass

    with pytest.raises(ConfigError, match=r"service\.reception_bytes"):
        asyncio.run(scene())
