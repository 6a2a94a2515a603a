"""Metrics for Prometheus: numbers alone, no client's name. Plain HTTP, on this machine by default."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Callable, Iterator, Mapping
from itertools import accumulate
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, ProcessCollector, start_http_server
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from tardigrad.errors import ConfigError
from tardigrad.service.monitor.counters import Histogram

if TYPE_CHECKING:
    from tardigrad.service.server.coordinator import Coordinator
    from tardigrad.service.server.rpc import Servicer

EVALUATED = ("accuracy", "loss")
"""Other metrics may have names that clients made up."""
PATIENCE = 5.0
"""Seconds that a scrape waits for a server which has much to do."""


class MetricsCollector(Collector):
    """What is told at each scrape. The numbers are put together where they are changed, in the event loop."""

    def __init__(
        self,
        coordinator: Coordinator,
        servicer: Servicer,
        folder: Path | None,
        certificates: Mapping[str, float] = MappingProxyType({}),
    ) -> None:
        """`certificates`: when each expires, in seconds since 1970."""
        self._coordinator, self._servicer, self._folder = coordinator, servicer, folder
        self._certificates = certificates
        self._loop = asyncio.get_running_loop()

    def collect(self) -> Iterator[Metric]:
        """For the thread that answers."""

        async def now() -> list[Metric]:
            return list(self._now())

        yield from asyncio.run_coroutine_threadsafe(now(), self._loop).result(PATIENCE)
        if self._folder is not None:  # here, because a disk may be slow
            yield _gauge("disk_free_bytes", "Where the folder is.", shutil.disk_usage(self._folder).free)

    def describe(self) -> list[Metric]:
        """Nothing before the first scrape."""
        return []

    def _now(self) -> Iterator[Metric]:
        coordinator, counters, servicer = self._coordinator, self._coordinator.counters, self._servicer
        run_state = coordinator.run_state
        refused = sum(run_state.refused.values())
        uploads = CounterMetricFamily(
            "tardigrad_uploads", "Uploads that came whole, by what became of them.", labels=["outcome"]
        )
        uploads.add_metric(["accepted"], run_state.trips - refused)
        for reason, count in run_state.refused.items():
            uploads.add_metric([reason], count)
        yield uploads
        requests = CounterMetricFamily(
            "tardigrad_requests_refused", "Requests that were refused, by why.", labels=["why"]
        )
        for why, count in servicer.refusals.counts.items():
            requests.add_metric([why], count)
        yield requests
        yield _counter("trips_given_up", "Tickets given back or expired.", run_state.given_up)
        yield _counter("tickets_expired", "Tickets that expired, in this process.", counters.expired)
        yield _counter(
            "steps_discarded", "Steps that did not move the model.", coordinator.model_state.discarded
        )
        yield _counter("metrics_dropped", "Of clients, in this process.", counters.metrics_dropped)
        yield _counter("received_bytes", "Vectors of uploads, in this process.", counters.bytes_in)
        yield _counter("sent_bytes", "Vectors of tasks, in this process.", counters.bytes_out)
        yield _gauge("version", "How many times the model has moved.", run_state.book.version)
        yield _gauge("run_over", "1 when the run is over.", run_state.over is not None)
        yield _gauge("tickets_in_flight", "Trips under way.", len(run_state.book.in_flight))
        yield _gauge("clients_waiting", "Clients that wait for a task.", coordinator.waiting)
        yield _gauge("clients_seen", "Different clients heard of, in this process.", counters.clients)
        yield _gauge("clients_active", "Clients heard of in the last five minutes.", counters.active)
        yield _gauge("reception_bytes", "Uploads held in memory.", servicer.reception.used)
        yield _gauge("reception_limit_bytes", "What it may be.", coordinator.settings.reception_bytes)
        yield _gauge("snapshot_age_seconds", "Since a snapshot, or the start.", coordinator.recovery.age)
        expiry = GaugeMetricFamily(
            "tardigrad_certificate_expiry_seconds", "Until the certificate expires.", labels=["file"]
        )
        for name, when in self._certificates.items():
            expiry.add_metric([name], when - coordinator.clock.wall())
        yield expiry
        found = coordinator.model_state.metrics or run_state.reports.metrics
        for name in EVALUATED:
            if name in found:
                yield _gauge(f"evaluation_{name}", "Of the last evaluation.", found[name])
        yield _histogram("staleness", "Of accepted uploads, in this process.", counters.staleness)
        yield _histogram("step_seconds", "To make the next version.", counters.step_seconds)
        yield _histogram("journal_commit_seconds", "To have entries on disk.", counters.commit_seconds)


def _gauge(name: str, text: str, value: float) -> Metric:
    return GaugeMetricFamily(f"tardigrad_{name}", text, value=float(value))


def _counter(name: str, text: str, value: float) -> Metric:
    return CounterMetricFamily(f"tardigrad_{name}", text, value=float(value))


def _histogram(name: str, text: str, spread: Histogram) -> Metric:
    bounds = [*(str(float(bound)) for bound in spread.bounds), "+Inf"]
    buckets = list(zip(bounds, map(float, accumulate(spread.counts)), strict=True))
    return HistogramMetricFamily(f"tardigrad_{name}", text, buckets=buckets, sum_value=spread.sum)


def publish(host: str, port: int, numbers: MetricsCollector) -> tuple[int, Callable[[], None]]:
    """Listen; the port, and what ends it."""
    registry = CollectorRegistry()
    registry.register(numbers)
    ProcessCollector(registry=registry)
    try:
        server, thread = start_http_server(port, host, registry)
    except OSError as error:
        raise ConfigError(f"--metrics-port {port}: cannot listen on {host} ({error})") from None

    def end() -> None:
        server.shutdown()
        server.server_close()
        thread.join()

    return server.server_port, end
