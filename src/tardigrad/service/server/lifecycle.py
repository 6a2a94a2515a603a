"""Serving a run: everything put together, from the first call to the last."""

from __future__ import annotations

import asyncio
import ipaddress
import signal
from collections.abc import Callable, Mapping
from contextlib import closing, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import grpc
import torch
from torch import Tensor

from tardigrad.algorithms.aggregator import Aggregator
from tardigrad.algorithms.algorithm import Algorithm
from tardigrad.core.bookkeeping import Bookkeeping
from tardigrad.core.draws import key
from tardigrad.core.pace import Asynchronous, Pace, Queued, Synchronous
from tardigrad.core.stop import Stop
from tardigrad.core.upload import Task
from tardigrad.data.evaluation import Evaluation
from tardigrad.errors import ConfigError
from tardigrad.learning.local import Local
from tardigrad.service.access.certificates import SERVER, SERVER_KEY, expiries
from tardigrad.service.access.enrolment import LIST, Enrolled
from tardigrad.service.access.signed_requests import RequestVerifier
from tardigrad.service.monitor.status import keep_status, status_of, write_status
from tardigrad.service.protocol.refusals import log
from tardigrad.service.protocol.task_settings import LocalNoise, to_json
from tardigrad.service.protocol.wire import Layout, layout_of, size_of
from tardigrad.service.server.clock import SYSTEM, Clock
from tardigrad.service.server.coordinator import Coordinator
from tardigrad.service.server.model_state import Evaluate, ModelState, Release
from tardigrad.service.server.norm_limits import Admission, largest_norm
from tardigrad.service.server.rpc import Server, Servicer, TaskFacts
from tardigrad.service.server.run_state import RunState
from tardigrad.service.server.service_settings import ServiceSettings
from tardigrad.service.server.upload_checks import most_examples
from tardigrad.service.store.contract import Store
from tardigrad.service.store.memory import MemoryStore
from tardigrad.service.store.recovery import RunLog, Snapshot
from tardigrad.service.store.sqlite import SqliteStore

GRACE = 30.0
"""Seconds for calls that are under way when the server is asked to stop."""
DAY = 86_400.0
EXPIRY_DAYS = 30
"""A certificate that expires sooner is warned of once a day."""


@dataclass(frozen=True)
class RunPlan:
    """A run to serve."""

    algorithm: Algorithm
    local: Local
    aggregator: Aggregator
    book: Bookkeeping
    stop: Stop
    evaluation: Evaluation
    evaluate: Evaluate | None
    """On central data, where the server has some."""
    shapes: list[tuple[int, ...]]
    """Of the model's parameters."""
    seed: int
    settings: ServiceSettings = field(default_factory=ServiceSettings)
    budget: int | None = None
    """Steps that privacy allows; without privacy, any number."""
    private: bool = False
    """Whether what clients report of themselves is nobody's business."""
    release: Release = lambda version, vectors: None
    """Called with each new version before it is published; a private run records it."""
    metrics: frozenset[str] = frozenset()
    """Names of metrics that clients may report."""
    local_noise: LocalNoise | None = None
    """What clients do to their uploads by themselves."""


@dataclass(frozen=True)
class Endpoint:
    """Where a server listens, and how careful it is."""

    host: str = "127.0.0.1"
    port: int = 0
    keys: Path = Path("keys")
    """The clients' list, and the server's certificate."""
    insecure: bool = False
    """Without TLS: on this machine only."""
    durable: bool = True
    """Whether uploads are on disk before they are acknowledged."""
    metrics_port: int | None = None
    """Where Prometheus finds metrics, over plain HTTP; 0 is any port that is free."""
    metrics_host: str = "127.0.0.1"

    def check(self) -> None:
        """A ConfigError if it is too careless."""
        if self.insecure and not _loopback(self.host):
            raise ConfigError(f"--insecure: without TLS only on this machine (127.0.0.1), not on {self.host}")
        if not self.durable and not self.insecure:
            raise ConfigError("--no-durability: is for measurements, and only together with --insecure")

    def credentials(self) -> grpc.ServerCredentials | None:
        """The server's certificate, unless it is insecure."""
        if self.insecure:
            return None
        try:
            private, public = (self.keys / SERVER_KEY).read_bytes(), (self.keys / SERVER).read_bytes()
        except OSError as error:
            raise ConfigError(
                f"--keys {self.keys}: no {SERVER} with its key is there ({error}); "
                "`tardigrad enroll` makes one"
            ) from None
        return grpc.ssl_server_credentials([(private, public)])


def _loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def check_servable(algorithm: Algorithm, pace: Pace) -> None:
    """A ConfigError if only a simulation can run it."""
    name = algorithm.name
    if algorithm.oracle:
        raise ConfigError(
            f"algorithm.kind: {name} as it is set uses what only a simulation can know (the staleness to "
            "come); set algorithm.expected_staleness"
        )
    if not isinstance(pace, Asynchronous | Synchronous | Queued):
        raise ConfigError(
            f"pace.kind: {pace.kind!r} decides when clients turn up, which real ones do themselves; serve "
            "takes 'asynchronous', 'synchronous' or 'queued'"
        )


def uploads_of(aggregator: Aggregator) -> Layout:
    """What clients of this algorithm upload: the upload of one that did nothing."""
    task = Task(-1, "", 0, aggregator.broadcast(), 0.0)
    rule = aggregator.algorithm.rule(task, {}, lr=1.0)
    with torch.no_grad():
        return layout_of(rule.finish(rule.start.clone(), 1, 1.0))


@dataclass(frozen=True)
class Served:
    """What a run came to."""

    reason: str | None
    """Why it ended; nothing if the server was stopped before."""
    model: Tensor
    trips: int
    version: int
    time: float
    bytes: int
    given_up: int
    refused: dict[str, int]
    metrics: dict[str, float]


async def serve(
    plan: RunPlan,
    endpoint: Endpoint,
    folder: Path,
    record: RunLog,
    snapshot: Snapshot | None,
    listening: Callable[[int], None],
    finish: Callable[[Served], None],
    after_snapshot: Callable[[], None] = lambda: None,
    accept_loss: bool = False,
) -> Served:
    """Serve until the run is over or somebody asks to stop. `listening` is told the port; `finish` is called
    when the run is over, before the clients are."""
    endpoint.check()
    credentials = endpoint.credentials()
    enrolled = Enrolled(endpoint.keys / LIST)
    loop = asyncio.get_running_loop()
    asked = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, asked.set)
    gate = RequestVerifier(enrolled)
    loop.add_signal_handler(signal.SIGHUP, gate.reload)
    certificates = {} if credentials is None else expiries(endpoint.keys)
    store: Store = SqliteStore(folder) if endpoint.durable else MemoryStore()
    with closing(store):
        coordinator = coordinate(plan, store, record, after_snapshot)
        server = Server(Servicer(coordinator, gate, facts_of(plan)))
        await coordinator.start(snapshot, accept_loss)
        return await _serve_until_over(
            plan, endpoint, folder, coordinator, server, asked, certificates, credentials, listening, finish
        )


async def _serve_until_over(
    plan: RunPlan,
    endpoint: Endpoint,
    folder: Path,
    coordinator: Coordinator,
    server: Server,
    asked: asyncio.Event,
    certificates: Mapping[str, float],
    credentials: grpc.ServerCredentials | None,
    listening: Callable[[int], None],
    finish: Callable[[Served], None],
) -> Served:
    """Serve with a coordinator that was started, until the run is over or `asked` is set; stop it."""
    status = asyncio.ensure_future(keep_status(folder, coordinator, server.servicer))
    warning = asyncio.ensure_future(warn_of_expiry(certificates))
    end_metrics = lambda: None  # noqa: E731
    finished = False
    try:
        if endpoint.metrics_port is not None:
            end_metrics = _publish(endpoint, coordinator, server.servicer, folder, certificates)
        port = await server.start(f"{endpoint.host}:{endpoint.port}", credentials)
        log.info("listening on %s:%d", endpoint.host, port, extra={"event": "listening"})
        listening(port)
        stop = asyncio.ensure_future(asked.wait())
        both: set[asyncio.Future[Any]] = {stop, coordinator.ended}
        await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
        if coordinator.ended.done():
            coordinator.ended.result()
            await asyncio.to_thread(finish, _served(coordinator))
            finished = True
            await asyncio.wait({stop}, timeout=plan.settings.linger_seconds)
        stop.cancel()
        coordinator.dismiss()
        await server.stop(GRACE)
    finally:
        await server.stop(0)
        await asyncio.to_thread(end_metrics)
        status.cancel()
        warning.cancel()
        await asyncio.gather(status, warning, return_exceptions=True)
        await coordinator.stop()
        with suppress(OSError):
            write_status(folder, status_of(coordinator, server.servicer))
        counts = dict(server.servicer.refusals.counts)
        log.info("stopped; refused: %s", counts or "nothing", extra={"event": "stopped"})
    if coordinator.ended.done() and not finished:  # the run ended, or failed, while the server was stopping
        coordinator.ended.result()
        await asyncio.to_thread(finish, _served(coordinator))
    return _served(coordinator)


async def warn_of_expiry(certificates: Mapping[str, float], clock: Clock = SYSTEM) -> None:
    """Log every day which certificates expire soon, or have expired; until cancelled."""
    while True:
        for name, when in certificates.items():
            days = (when - clock.wall()) / DAY
            if days < EXPIRY_DAYS:
                log.warning(
                    "%s %s on %s: renew it and restart the server", name,
                    "expires" if days > 0 else "has expired", datetime.fromtimestamp(when, UTC).date(),
                    extra={"event": "certificate"},
                )  # fmt: skip
        await asyncio.sleep(DAY)


def _publish(
    endpoint: Endpoint,
    coordinator: Coordinator,
    servicer: Servicer,
    folder: Path,
    certificates: Mapping[str, float],
) -> Callable[[], None]:
    from tardigrad.service.monitor.metrics import MetricsCollector, publish  # only where they are wanted

    assert endpoint.metrics_port is not None
    numbers = MetricsCollector(coordinator, servicer, folder, certificates)
    port, end = publish(endpoint.metrics_host, endpoint.metrics_port, numbers)
    log.info("metrics on http://%s:%d/metrics", endpoint.metrics_host, port, extra={"event": "metrics"})
    return end


def facts_of(plan: RunPlan) -> TaskFacts:
    """What clients are told; a trip's seed is the simulator's."""
    settings = to_json(plan.algorithm, plan.local, plan.private, plan.local_noise)
    return TaskFacts(
        settings,
        plan.shapes,
        seed=lambda trip: key(plan.seed, "trip", trip),
        private=plan.private,
        metrics=plan.metrics,
    )


def coordinate(
    plan: RunPlan,
    store: Store,
    record: RunLog,
    after_snapshot: Callable[[], None] = lambda: None,
    clock: Clock = SYSTEM,
) -> Coordinator:
    """Return the coordinator of a plan. The caller opens the store and closes it."""
    model_state = ModelState(
        plan.aggregator,
        record,
        plan.evaluate,
        tell_losses=not plan.private,
        keep_finite=not plan.private,
        release=plan.release,
    )
    uploads = uploads_of(plan.aggregator)
    if size_of(uploads) > plan.settings.reception_bytes:
        raise ConfigError(
            f"service.reception_bytes: one upload has {size_of(uploads)} bytes; give at least that, not "
            f"{plan.settings.reception_bytes}"
        )
    run_state = RunState(
        plan.book,
        plan.stop,
        plan.evaluation,
        size_of(layout_of(plan.aggregator.broadcast())),
        size_of(uploads),
        centrally=plan.evaluate is not None or plan.private,
        admission=None if plan.private else _admission(plan),
        budget=plan.budget,
    )
    return Coordinator(
        run_state, model_state, store, record, plan.settings, uploads, after_snapshot, plan.private, clock
    )


def _admission(plan: RunPlan) -> Admission:
    settings, book = plan.settings, plan.book
    largest = largest_norm(book.buffer, book.opening, most_examples(settings))
    return Admission(largest, settings.norm_bound, settings.norm_multiple)


def _served(coordinator: Coordinator) -> Served:
    run_state, model_state = coordinator.run_state, coordinator.model_state
    ended = coordinator.ended.done()
    return Served(
        reason=run_state.over if ended else None,
        model=model_state.aggregator.evaluated_model,
        trips=run_state.trips,
        version=run_state.book.version,
        time=run_state.time,
        bytes=run_state.bytes,
        given_up=run_state.given_up,
        refused=dict(run_state.refused),
        metrics=model_state.metrics or run_state.reports.metrics,
    )
