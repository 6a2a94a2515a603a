"""Metrics: what Prometheus is told, over HTTP, is what happened; and it names nobody."""

import asyncio
import socket
import urllib.request
from dataclasses import replace
from pathlib import Path

import grpc
import pytest
from prometheus_client.parser import text_string_to_metric_families
from service_harness import PATIENCE, serving, settled, two_puppets

import tardigrad as td
from tardigrad.errors import ConfigError
from tardigrad.experiments.runs.simulation_assembly import build
from tardigrad.service.monitor.counters import Counters
from tardigrad.service.monitor.metrics import MetricsCollector, publish

NAMES = ("the-name-of-one", "the-name-of-another")
CONFIG = td.Config(
    data=td.Digits(partition=td.IID(clients=2)), model=td.MLP(hidden=(4,)), algorithm=td.FedBuff(),
    pace=td.Asynchronous(concurrency=2), buffer=td.Buffer(size=1, staleness_bound=0), stop=td.Stop(trips=9),
    local=td.Local(steps=1), service={"requests_per_second": 1000, "poll_seconds": 0.5},
)  # fmt: skip


def scrape(port):
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=PATIENCE) as answer:
        text = answer.read().decode()
    found = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            found[sample.name, *sample.labels.values()] = sample.value
    return text, found


def test_scraped_metrics_are_those_of_the_run(tmp_path):
    simulation = build(CONFIG)

    async def scene():
        async with serving(CONFIG, tmp_path) as running:
            port, end = publish(
                "127.0.0.1", 0, MetricsCollector(running.coordinator, running.server.servicer, tmp_path)
            )
            async with two_puppets(running, simulation, NAMES) as (one, other):
                early, late = await one.fetch(), await other.fetch()
                before = await asyncio.to_thread(scrape, port)
                assert (await one.deliver(early)).accepted
                assert not (await other.deliver(late)).accepted  # too stale
                await one.give_up(await one.fetch())
                one.finished[99] = replace(one.finished[early], trip=99)
                with pytest.raises(grpc.aio.AioRpcError, match="not under way"):
                    await one.deliver(99)
                await settled(running)
                after = await asyncio.to_thread(scrape, port)
            await asyncio.to_thread(end)
            size = running.coordinator.uploads.size
            return before, after, size, running.run.assembly.flat.vector.nbytes

    (_, before), (text, after), upload, download = asyncio.run(scene())
    assert before["tardigrad_tickets_in_flight",] == 2
    assert after["tardigrad_tickets_in_flight",] == 0
    assert after["tardigrad_uploads_total", "accepted"] == 1
    assert after["tardigrad_uploads_total", "too stale"] == 1
    assert after["tardigrad_requests_refused_total", "unknown or ended trip"] == 1
    assert after["tardigrad_trips_given_up_total",] == 1
    assert after["tardigrad_version",] == 1
    assert after["tardigrad_received_bytes_total",] == 2 * upload
    assert after["tardigrad_sent_bytes_total",] == 3 * download
    assert after["tardigrad_reception_bytes",] == 0
    assert after["tardigrad_clients_seen",] == after["tardigrad_clients_active",] == 2
    assert after["tardigrad_staleness_bucket", "0.0"] == after["tardigrad_staleness_count",] == 1
    assert after["tardigrad_step_seconds_count",] == 1
    assert after["tardigrad_journal_commit_seconds_count",] >= 4
    assert after["tardigrad_journal_commit_seconds_sum",] > 0
    assert after["tardigrad_disk_free_bytes",] > 0
    assert after["tardigrad_snapshot_age_seconds",] > 0
    assert "process_resident_memory_bytes" in text
    described = (Path(__file__).parents[3] / "docs" / "deployment.md").read_text()
    told = {line.split()[2] for line in text.splitlines() if line.startswith("# HELP tardigrad_")}
    assert [name for name in told if f"`{name}" not in described] == []
    assert not any(name in text for name in NAMES)


def test_a_port_that_is_taken_is_named(tmp_path):
    async def scene():
        async with serving(CONFIG, tmp_path) as running:
            numbers = MetricsCollector(running.coordinator, running.server.servicer, None)
            with socket.socket() as taken:
                taken.bind(("127.0.0.1", 0))
                taken.listen()
                port = taken.getsockname()[1]
                with pytest.raises(ConfigError, match=f"--metrics-port {port}"):
                    publish("127.0.0.1", port, numbers)

    asyncio.run(scene())


def test_last_seen_clients_are_sorted_by_time():
    counters = Counters()
    for name in ("ann", "bob", "eve", "ann"):
        counters.heard(name)
    assert list(counters.last_seen(2)) == ["ann", "eve"]
    assert (counters.clients, counters.active) == (3, 3)
