"""One record of progress: the status file, Watch, the metrics and the summary of a run agree with it."""

import asyncio

from service_harness import PATIENCE, FakeClock, serving, settled, two_puppets

import tardigrad as td
from tardigrad.experiments.runs.simulation_assembly import build
from tardigrad.service.monitor.metrics import MetricsCollector
from tardigrad.service.monitor.progress_record import progress_of, trips_per_second
from tardigrad.service.monitor.status import status_of
from tardigrad.service.monitor.watching import watch_server
from tardigrad.service.server.run_server import served_run_of

CONFIG = td.Config(
    data=td.Digits(partition=td.IID(clients=2)), model=td.MLP(hidden=()), algorithm=td.FedBuff(),
    pace=td.Asynchronous(concurrency=2), buffer=td.Buffer(size=1, staleness_bound=0), stop=td.Stop(trips=9),
    local=td.Local(steps=1), service={"requests_per_second": 1000, "poll_seconds": 0.5},
)  # fmt: skip


def test_status_watch_metrics_and_summary_agree(tmp_path):
    simulation, clock = build(CONFIG), FakeClock()

    async def scene():
        async with serving(CONFIG, tmp_path, clock=clock) as running:
            coordinator, servicer = running.coordinator, running.server.servicer
            async with two_puppets(running, simulation, ("ann", "eve")) as (ann, eve):
                early, late = await ann.fetch(), await eve.fetch()
                clock.advance(2.0)
                await ann.deliver(early)
                await eve.deliver(late)  # too stale
                await ann.fetch()
            await settled(running)
            clock.advance(30.0)
            watched = await asyncio.wait_for(
                anext(watch_server(running.address, running.signer("bob", clock), None)), PATIENCE
            )
            collector = MetricsCollector(coordinator, servicer, None)
            samples = {
                (sample.name, *sample.labels.values()): sample.value
                for metric in await asyncio.to_thread(lambda: list(collector.collect()))
                for sample in metric.samples
            }
            progress = progress_of(coordinator, servicer)
            return (
                progress,
                status_of(coordinator, servicer),
                watched,
                samples,
                served_run_of(coordinator, servicer),
            )

    progress, status, watched, samples, summary = asyncio.run(scene())
    assert (progress.version, progress.trips, progress.accepted, progress.in_flight) == (1, 2, 1, 1)
    assert progress.time == 32.0
    for other in (status, watched):
        assert (other.version, other.trips, other.time) == (1, 2, 32.0)
        assert (other.in_flight, other.waiting, other.given_up) == (1, 0, 0)
        assert other.uploads_refused == progress.refused == {"too stale": 1}
        assert other.metrics == progress.metrics
        assert other.staleness == progress.staleness
        assert other.over == ""
    assert samples["tardigrad_version",] == progress.version
    assert samples["tardigrad_uploads_total", "accepted"] == progress.accepted
    assert samples["tardigrad_uploads_total", "too stale"] == 1
    assert samples["tardigrad_tickets_in_flight",] == progress.in_flight
    assert samples["tardigrad_evaluation_accuracy",] == progress.metrics["accuracy"]
    assert {name: value for name, value in vars(summary).items() if name in vars(progress)} == vars(progress)
    assert summary.reason is None


def test_rate_without_time_is_zero():
    assert trips_per_second(3, 0.0) == 0.0
    assert trips_per_second(3, 1.5) == 2.0
