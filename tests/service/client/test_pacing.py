"""Clients keep their request rate below the server's limit."""

import asyncio

import pytest
from service_harness import PATIENCE, FakeClock, app_of, serving

import tardigrad as td
from tardigrad.experiments.runs.simulation_assembly import build
from tardigrad.service.client.client_trainer import ClientTrainer
from tardigrad.service.client.pacing import RequestPace
from tardigrad.service.client.participant import Participant
from tardigrad.service.server.limits import Rates


@pytest.mark.parametrize("per_second", [0.3, 0.8, 1.0, 20.0])
def test_a_paced_client_is_never_above_the_servers_limit(per_second):
    clock = FakeClock()
    rates, pace = Rates(per_second, clock), RequestPace(clock.monotonic)
    rates.take("ann")  # the first request tells the limit
    pace.limit(per_second)
    for _ in range(200):
        clock.advance(pace.reserve())
        rates.take("ann")


def test_a_short_burst_is_not_delayed_and_a_reconnection_does_not_allow_another():
    clock = FakeClock()
    pace = RequestPace(clock.monotonic)
    assert pace.reserve() == 0.0  # unknown limit
    pace.limit(20.0)
    assert [pace.reserve() for _ in range(19)] == [0.0] * 19
    assert pace.reserve() > 0.0
    pace.limit(20.0)
    assert pace.reserve() > 0.0
    clock.advance(10.0)
    assert pace.reserve() == 0.0


def test_a_fast_client_is_never_refused_for_its_rate(tmp_path):
    config = td.Config(
        data=td.Digits(partition=td.Central()), model=td.MLP(hidden=(4,)), algorithm=td.FedBuff(),
        pace=td.Asynchronous(concurrency=1), buffer=td.Buffer(size=2), stop=td.Stop(trips=40),
        local=td.Local(steps=1), service={"requests_per_second": 20, "linger_seconds": 0.0},
    )  # fmt: skip

    async def scene():
        async with serving(config, tmp_path) as running:
            trainer = ClientTrainer("0", app_of(build(config), 0))
            client = Participant(running.address, running.signer("0"), None, trainer, tmp_path / "state")
            assert await asyncio.wait_for(client.take_part(), PATIENCE) == "trips"
            return running.refusals

    assert asyncio.run(scene()) == {}
