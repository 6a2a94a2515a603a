"""A run to serve, and the parts of a server that follow from it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from tardigrad.algorithms.aggregator import Aggregator
from tardigrad.algorithms.algorithm import Algorithm
from tardigrad.core.bookkeeping import Bookkeeping
from tardigrad.core.draws import key
from tardigrad.core.pace import Asynchronous, Pace, Queued, Synchronous
from tardigrad.core.stop import Stop
from tardigrad.core.upload import bytes_of
from tardigrad.data.evaluation import Evaluation
from tardigrad.encodings.broadcasts import BroadcastEncoding, Float32Broadcast
from tardigrad.encodings.encoding import Encoding
from tardigrad.encodings.float32 import Float32
from tardigrad.errors import ConfigError
from tardigrad.learning.heads import Head
from tardigrad.learning.local import Local
from tardigrad.service.protocol.task_settings import LocalNoise, to_json
from tardigrad.service.server.clock import SYSTEM, Clock
from tardigrad.service.server.coordinator import Coordinator
from tardigrad.service.server.model_state import Evaluate, ModelState, NameParameters, Release
from tardigrad.service.server.norm_limits import Admission, largest_norm
from tardigrad.service.server.rpc import TaskFacts
from tardigrad.service.server.run_state import RunState
from tardigrad.service.server.secure_plan import SecurePlan
from tardigrad.service.server.secure_state import SecureState
from tardigrad.service.server.service_settings import ServiceSettings
from tardigrad.service.server.upload_body import memory_for
from tardigrad.service.server.upload_checks import most_examples
from tardigrad.service.server.upload_form import upload_form_of
from tardigrad.service.store.audit_log import AuditLog
from tardigrad.service.store.contract import Store
from tardigrad.service.store.recovery import RunLog


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
    """Evaluates a model on central data; None if the server has none."""
    shapes: list[tuple[int, ...]]
    """Shapes of the model's parameters."""
    seed: int
    frozen: bytes = b""
    """The digest of the frozen part of the model, which clients must have too; b"" if it is not compared."""
    settings: ServiceSettings = field(default_factory=ServiceSettings)
    budget: int | None = None
    """Steps that the privacy budget allows; None without privacy, for any number."""
    private: bool = False
    """Whether privacy is promised. Then what clients report about themselves is neither used nor kept."""
    release: Release = lambda version, vectors: None
    """Called with each new version before it is published; a private run records it."""
    metrics: frozenset[str] = frozenset()
    """Names of metrics that clients may report."""
    asked: tuple[str, ...] = ()
    """Metrics that clients are asked for besides those of their head."""
    head: Head | None = None
    """The loss and metrics of clients that have no head of their own; None if the config names none."""
    local_noise: LocalNoise | None = None
    """The noise that clients add to their uploads themselves, if they do."""
    encoding: Encoding = field(default_factory=Float32)
    """How clients encode their uploads."""
    broadcast: BroadcastEncoding = field(default_factory=Float32Broadcast)
    """How versions travel to the clients."""
    declaration: str = ""
    """The requirements for a client that has a table and no code, as JSON; "" if clients need code."""
    name_parameters: NameParameters = lambda model: {"model": model}
    """Returns a model, which is one flat vector, under the parameter names of its module."""
    secure: SecurePlan | None = None
    """The helpers and the policy of a secure run."""

    @property
    def untold(self) -> bool:
        """Whether clients report nothing about themselves: the run promises privacy, or is secure."""
        return self.private or self.secure is not None


def check_servable(algorithm: Algorithm, pace: Pace) -> None:
    """Raise a ConfigError if only a simulation can run this algorithm or this pace."""
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


def facts_of(plan: RunPlan) -> TaskFacts:
    """Return what all clients are told. The seed of a trip is the one that a simulation would use."""
    settings = to_json(
        plan.algorithm,
        plan.local,
        plan.private,
        plan.local_noise,
        plan.asked,
        plan.encoding,
        plan.broadcast,
        plan.head,
    )
    return TaskFacts(
        settings,
        plan.shapes,
        seed=lambda trip: key(plan.seed, "trip", trip),
        private=plan.untold,
        metrics=plan.metrics,
        declaration=plan.declaration,
        frozen=plan.frozen,
        encoded=not isinstance(plan.broadcast, Float32Broadcast),
    )


def coordinate(
    plan: RunPlan,
    store: Store,
    record: RunLog,
    after_snapshot: Callable[[], None] = lambda: None,
    clock: Clock = SYSTEM,
    audit: AuditLog | None = None,
) -> Coordinator:
    """Return the coordinator of a plan. The caller opens the store and closes it."""
    model_state = ModelState(
        plan.aggregator,
        record,
        plan.evaluate,
        tell_losses=not plan.untold,
        keep_finite=not plan.private,
        release=plan.release,
        temporary=store.temporary,
        name_parameters=plan.name_parameters,
    )
    uploads = upload_form_of(plan.aggregator)
    most = plan.settings.reception_bytes
    if (needed := memory_for(uploads.size, most)) > most:
        raise ConfigError(
            f"service.reception_bytes: an upload of {uploads.size} bytes needs {needed} of them; give at "
            f"least that, not {most}"
        )
    run_state = RunState(
        plan.book,
        plan.stop,
        plan.evaluation,
        plan.aggregator.download_sizes(),
        bytes_of(uploads.layout) + sum(layer.wire.extra_bytes for layer in plan.aggregator.layers),
        centrally=plan.evaluate is not None or plan.untold,
        admission=None if plan.untold else _admission(plan),
        budget=plan.budget,
        secure=None if plan.secure is None else SecureState(),
    )
    coordinator = Coordinator(
        run_state, model_state, store, record, plan.settings, uploads, after_snapshot, plan.untold, clock,
        audit,
    )  # fmt: skip
    if plan.secure is not None:
        coordinator.join_helpers(plan.secure.group(coordinator.run, facts_of(plan).settings))
    return coordinator


def _admission(plan: RunPlan) -> Admission:
    settings, book = plan.settings, plan.book
    largest = largest_norm(book.buffer, book.opening, most_examples(settings))
    return Admission(largest, settings.norm_bound, settings.norm_multiple)
