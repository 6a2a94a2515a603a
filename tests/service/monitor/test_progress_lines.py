"""Lines about the progress of a run in the server's log."""

import asyncio
import logging

import pytest
from service_harness import PATIENCE, serving, two_puppets

import tardigrad as td
from tardigrad.experiments.runs.simulation_assembly import build
from tardigrad.service.monitor.progress_lines import log_progress, progress_line
from tardigrad.service.monitor.progress_record import RunProgress

CONFIG = td.Config(
    data=td.Digits(partition=td.IID(clients=2)), model=td.MLP(hidden=()), pace=td.Asynchronous(concurrency=2),
    buffer=td.Buffer(size=1), stop=td.Stop(trips=2), local=td.Local(steps=1),
    service={"requests_per_second": 1000},
)  # fmt: skip


@pytest.fixture
def progress_lines(caplog):
    """The progress lines that were logged so far."""
    caplog.set_level(logging.INFO, "tardigrad.service")
    return lambda: [r.getMessage() for r in caplog.records if getattr(r, "event", None) == "progress"]


def test_lines_are_logged_until_the_run_is_over(tmp_path, progress_lines):
    simulation = build(CONFIG)

    async def logged(start):
        while not any(line.startswith(start) for line in progress_lines()):
            await asyncio.sleep(0.01)

    async def scene():
        async with serving(CONFIG, tmp_path) as running:
            logging_lines = asyncio.ensure_future(
                log_progress(running.coordinator, running.server.servicer, seconds=0.01)
            )
            async with two_puppets(running, simulation, ("ann", "eve")) as (ann, eve):
                await logged("version 0, 0 trips, 0.0 trips/s, 0 in flight, staleness 0.0, loss ")
                first, second = await ann.fetch(), await eve.fetch()
                await ann.deliver(first)
                await logged("version 1, 1 trips, ")
                await eve.deliver(second)
                await running.coordinator.ended
            await logging_lines  # it returns by itself
            assert not any(line.startswith("version 2") for line in progress_lines())

    asyncio.run(asyncio.wait_for(scene(), PATIENCE))


def test_rate_is_that_since_the_last_line():
    before = RunProgress(trips=10, time=100.0)
    now = RunProgress(version=2, trips=40, time=110.0, staleness=1.25)
    assert progress_line(now, before) == "version 2, 40 trips, 3.0 trips/s, 0 in flight, staleness 1.2"
