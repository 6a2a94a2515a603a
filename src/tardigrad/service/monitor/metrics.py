"""Metrics for Prometheus, over plain HTTP and on this machine by default. They contain no client's name."""

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

from tardigrad.core.outcomes import Reason
from tardigrad.errors import ConfigError
from tardigrad.service.monitor.counters import Histogram
from tardigrad.service.monitor.progress_record import progress_of
from tardigrad.service.protocol.refusals import Cause

if TYPE_CHECKING:
    from tardigrad.service.server.coordinator import Coordinator
    from tardigrad.service.server.rpc import Servicer

EVALUATED = ("accuracy", "loss")
"""Metrics of the last evaluation that are published."""
OUTCOMES = (
    Reason.CONTRIBUTED, Reason.LATE, Reason.STALE, Reason.NORM, Reason.OUTLIER, Reason.HELPER,
)  # fmt: skip
"""Why a complete upload may not count. Counters of refusals begin with 0, because Prometheus sees no increase
in the first value of a series."""
PATIENCE = 5.0
"""Seconds that a scrape waits for a busy event loop."""


class MetricsCollector(Collector):
    """Collects the metrics at each scrape. The numbers are read in the event loop, which changes them."""

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
        """Return the metrics as they are now. Called by the thread that answers the scrape."""

        async def now() -> list[Metric]:
            return list(self._now())

        yield from asyncio.run_coroutine_threadsafe(now(), self._loop).result(PATIENCE)
        if self._folder is not None:  # not in the event loop, because a disk may be slow
            yield _gauge(
                "disk_free_bytes",
                "Free space where the run's folder is.",
                shutil.disk_usage(self._folder).free,
            )

    def describe(self) -> list[Metric]:
        """Return no metrics before the first scrape."""
        return []

    def _now(self) -> Iterator[Metric]:
        coordinator, counters, servicer = self._coordinator, self._coordinator.counters, self._servicer
        progress = progress_of(coordinator, servicer)
        uploads = CounterMetricFamily(
            "tardigrad_uploads", "Uploads that were received completely, by outcome.", labels=["outcome"]
        )
        uploads.add_metric(["accepted"], progress.accepted)
        for reason, count in (dict.fromkeys(OUTCOMES, 0) | progress.refused).items():
            uploads.add_metric([reason], count)
        yield uploads
        yield _refusals(progress.requests_refused)
        yield _counter("trips_given_up", "Tickets given back or expired.", progress.given_up)
        yield _counter("tickets_expired", "Tickets that expired, in this process.", counters.expired)
        yield _counter("steps_discarded", "Steps that did not move the model.", progress.steps_discarded)
        yield _counter(
            "metrics_dropped",
            "Metrics of clients that were not taken, in this process.",
            progress.metrics_dropped,
        )
        yield _counter("received_bytes", "Bytes of uploads, in this process.", counters.bytes_in)
        yield _counter("sent_bytes", "Bytes of tasks, in this process.", counters.bytes_out)
        yield _gauge("version", "How many times the model has moved.", progress.version)
        yield _gauge("run_over", "1 when the run is over.", progress.over is not None)
        paused = coordinator.run_state.steering.paused is not None
        yield _gauge("run_paused", "1 while an operator has paused the run.", paused)
        yield _gauge("run_failed", "1 when the run has failed.", coordinator.failure is not None)
        yield _gauge("tickets_in_flight", "Trips under way.", progress.in_flight)
        yield _gauge("clients_waiting", "Clients that wait for a task.", progress.waiting)
        yield _gauge("clients_seen", "Different clients heard of, in this process.", counters.clients)
        yield _gauge("clients_active", "Clients heard of in the last five minutes.", counters.active)
        if coordinator.link is not None:
            away = progress.helper_away or 0.0
            yield _gauge("helper_away_seconds", "Seconds for which a helper could not be reached.", away)
        yield _gauge("reception_bytes", "Uploads held in memory.", servicer.reception.memory.used)
        yield _gauge(
            "reception_limit_bytes",
            "The limit of tardigrad_reception_bytes.",
            coordinator.settings.reception_bytes,
        )
        yield _gauge(
            "snapshot_age_seconds", "Seconds since the last snapshot or the start.", coordinator.recovery.age
        )
        expiry = GaugeMetricFamily(
            "tardigrad_certificate_expiry_seconds", "Seconds until the certificate expires.", labels=["file"]
        )
        for name, when in self._certificates.items():
            expiry.add_metric([name], when - coordinator.clock.wall())
        yield expiry
        for name in EVALUATED:
            if name in progress.metrics:
                yield _gauge(
                    f"evaluation_{name}", f"The {name} of the last evaluation.", progress.metrics[name]
                )
        yield _histogram("staleness", "Staleness of accepted uploads, in this process.", counters.staleness)
        yield _histogram("step_seconds", "Seconds to make the next version.", counters.step_seconds)
        yield _histogram(
            "journal_commit_seconds", "Seconds to journal a batch of entries.", counters.commit_seconds
        )


class RunsCollector(Collector):
    """Collects the metrics of several runs. Each has a label `run` with the run's name."""

    def __init__(self, runs: Mapping[str, MetricsCollector], refused: Mapping[str, int]) -> None:
        """`refused`: by cause, requests that came to no run; their label is ""."""
        self._runs, self._refused = runs, refused

    def collect(self) -> Iterator[Metric]:
        """Return the metrics as they are now. Called by the thread that answers the scrape."""
        families: dict[str, Metric] = {}
        found = [(run, metric) for run, collector in self._runs.items() for metric in collector.collect()]
        for run, metric in [*found, ("", _refusals(dict(self._refused)))]:
            family = families.setdefault(metric.name, Metric(metric.name, metric.documentation, metric.type))
            family.samples += [
                sample._replace(labels={**sample.labels, "run": run}) for sample in metric.samples
            ]
        yield from families.values()

    def describe(self) -> list[Metric]:
        """Return no metrics before the first scrape."""
        return []


def _refusals(counts: Mapping[str, int]) -> Metric:
    requests = CounterMetricFamily(
        "tardigrad_requests_refused", "Requests that were refused, by cause.", labels=["why"]
    )
    known: dict[str, int] = dict.fromkeys(Cause, 0)
    for why, count in (known | dict(counts)).items():
        requests.add_metric([why], count)
    return requests


def _gauge(name: str, text: str, value: float) -> Metric:
    return GaugeMetricFamily(f"tardigrad_{name}", text, value=float(value))


def _counter(name: str, text: str, value: float) -> Metric:
    return CounterMetricFamily(f"tardigrad_{name}", text, value=float(value))


def _histogram(name: str, text: str, histogram: Histogram) -> Metric:
    bounds = [*(str(float(bound)) for bound in histogram.bounds), "+Inf"]
    buckets = list(zip(bounds, map(float, accumulate(histogram.counts)), strict=True))
    return HistogramMetricFamily(f"tardigrad_{name}", text, buckets=buckets, sum_value=histogram.sum)


def publish(host: str, port: int, collector: Collector) -> tuple[int, Callable[[], None]]:
    """Listen, and return the port and a function that stops listening."""
    registry = CollectorRegistry()
    registry.register(collector)
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
