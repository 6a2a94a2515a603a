"""The model of a run on a server: the aggregator, the versions that clients may start from, evaluation.

All methods are called on the model thread, in the order of the entries. Evaluation has a thread of its own;
its results are put into the log at the place where the evaluation began.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import NotRequired, Protocol, TypedDict

from torch import Tensor

from tardigrad.algorithms.aggregator import Aggregator, AggregatorState
from tardigrad.core.events import Event, ModelEvaluated, ModelMoved, RunEnded, RunPosition
from tardigrad.core.outcomes import Accepted
from tardigrad.core.upload import Upload, Vectors
from tardigrad.errors import RunError
from tardigrad.service.protocol.refusals import log
from tardigrad.service.server.released_masks import masked_layer, released_masks
from tardigrad.service.server.run_state import Effects
from tardigrad.service.server.task_broadcast import Broadcast
from tardigrad.service.store.contract import StoreError
from tardigrad.service.store.payload_file import PayloadFile

LARGE = 2**26
"""Bytes of a version from which on old ones are kept on disk."""
MOST_EVALUATIONS = 4
"""Models that wait to be evaluated. If there are more, the model thread waits for the evaluator."""

Evaluate = Callable[[Tensor, int], dict[str, float]]
Release = Callable[[int, Vectors], None]
NameParameters = Callable[[Tensor], dict[str, Tensor]]


class EventLog(Protocol):
    """The log of events."""

    def record(self, events: list[Event]) -> None:
        """Append events."""


@dataclass(frozen=True, slots=True)
class ClosedStep:
    """A full buffer whose step is not made yet."""

    where: RunPosition
    """How far the run had come when the buffer was filled."""
    evaluate: bool
    """Whether the model is evaluated after the step."""
    losses: list[float]
    """Training losses of the buffer's uploads."""


class PositionDocument(TypedDict):
    """A `RunPosition` as JSON."""

    version: int
    trips: int
    time: float
    bytes: int


class ModelDocument(TypedDict):
    """The part of a snapshot that is JSON."""

    aggregator: AggregatorState
    losses: list[float]
    closed: list[tuple[PositionDocument, bool, list[float]]]
    """The fields of each `ClosedStep`."""
    metrics: dict[str, float]
    evaluated: int
    discarded: NotRequired[int]
    early: NotRequired[list[int]]
    """Versions that nobody will start from, and that are not made yet."""


class ModelState:
    """The model and the algorithm's state, and the events that describe their changes."""

    def __init__(
        self,
        aggregator: Aggregator,
        log: EventLog,
        evaluate: Evaluate | None,
        tell_losses: bool,
        keep_finite: bool,
        release: Release = lambda version, vectors: None,
        temporary: Callable[[], PayloadFile] | None = None,
        name_parameters: NameParameters = lambda model: {"model": model},
    ) -> None:
        """`keep_finite`: discard a step after which the state would not be finite. `release` is called with
        each new version before it is published; it may raise to prevent that. `temporary`: returns files for
        old versions of large models. `name_parameters`: returns a model under the names of its module."""
        self.aggregator = aggregator
        self._release, self._temporary = release, temporary
        self._name_parameters = name_parameters
        self._log, self._evaluate, self._tell_losses = log, evaluate, tell_losses
        self._keep_finite = keep_finite
        self.discarded = 0
        """Steps that were discarded, over the whole run."""
        self.metrics: dict[str, float] = {}
        """Metrics of the last central evaluation."""
        self.evaluated = -1
        """The last version that was evaluated."""
        self.broadcasts: dict[int, Broadcast] = {}
        self.published: Callable[[int, Broadcast], None] = lambda version, broadcast: None
        """Called with each new version when clients may download it."""
        self._losses: list[float] = []
        self._closed: deque[ClosedStep] = deque()  # full buffers whose steps are not made yet
        self._early: set[int] = set()  # versions that nobody will start from, and that are not made yet
        self._unlogged: deque[list[Event] | Future[ModelEvaluated]] = deque()  # not yet in the log
        self._log_lock = threading.RLock()
        self._log_error: OSError | None = None  # the log could not be written; nothing is appended after that
        self._evaluator = ThreadPoolExecutor(1, "evaluation")
        self._evaluation_slots = threading.Semaphore(MOST_EVALUATIONS)
        self._publish()

    def do(self, effects: Effects, upload: Callable[[], Upload] | None) -> None:
        """Apply the effects of an entry to the model. `upload` is called if an upload was accepted, or masks
        were released."""
        if effects.released is not None or effects.receipted is not None:
            self._hear_helpers(effects, upload)
            return
        if isinstance(effects.delivery, Accepted):
            assert upload is not None
            self._add(effects.delivery, upload())
        self.tell(effects.events)
        if effects.moved:
            self.aggregator.close()
            self._closed.append(ClosedStep(effects.where, effects.evaluate, self._losses))
            self._losses = []
            self.advance()
        self.tell(effects.reported)
        if effects.evaluate and not effects.moved:
            self.evaluate(effects.where)
        for version in effects.forget:
            if self.broadcasts.pop(version, None) is None:
                self._early.add(version)
        self._move_to_disk()

    def _hear_helpers(self, effects: Effects, upload: Callable[[], Upload] | None) -> None:
        """Make the step whose masks the helpers have released, or note that a version has its receipts."""
        layer = masked_layer(self.aggregator)
        if effects.receipted is not None:
            layer.receipted(effects.receipted - 1)
            return
        assert effects.released is not None
        assert upload is not None
        layer.unmask(effects.released - 1, None if effects.abandoned else released_masks(upload()))
        self.advance()

    def _add(self, delivery: Accepted, upload: Upload) -> None:
        start = self.broadcasts[delivery.ticket.version].vectors["model"]
        self.aggregator.add(delivery, upload, start)
        if self._tell_losses:  # private runs do not keep them
            self._losses.append(upload.loss)

    def _move_to_disk(self) -> None:
        """Move old versions of a large model, from which clients may still start, into files."""
        if self._temporary is None:
            return
        for version, broadcast in self.broadcasts.items():
            if version != self.aggregator.version and broadcast.size >= LARGE and broadcast.in_memory:
                try:
                    broadcast.move_to(self._temporary())
                except StoreError as error:  # the disk is full; it stays in memory
                    log.warning("version %d stays in memory (%s)", version, error, extra={"event": "disk"})
                    return

    @property
    def waiting(self) -> bool:
        """Whether a full buffer waits for its step, because a layer is not ready."""
        return bool(self._closed)

    def advance(self) -> None:
        """Make the steps of full buffers until a layer has to wait, or none is left."""
        while self._closed and self.aggregator.ready:
            closed = self._closed[0]
            metrics, discarded = self._step()
            self._release(self.aggregator.version, self.aggregator.broadcast())
            self._publish()
            loss = sum(closed.losses) / len(closed.losses) if closed.losses else None
            self.tell([ModelMoved(*closed.where, loss, discarded, metrics)])
            if closed.evaluate:
                self.evaluate(closed.where)
            self._closed.popleft()
            version = self.aggregator.version
            self.published(version, self.broadcasts[version])
            if version in self._early:
                self._early.remove(version)
                del self.broadcasts[version]

    def _step(self) -> tuple[Mapping[str, float], bool]:
        """Make the next version; return the algorithm's metrics, and whether the step was discarded."""
        if not self._keep_finite:
            return self.aggregator.step(), False
        held = self.aggregator.held()
        metrics = self.aggregator.step()
        if not self.aggregator.spoilt(held):
            return metrics, False
        self.aggregator.take_back(held)
        self.discarded += 1
        log.warning(
            "the step to version %d is discarded, because the model or the algorithm's state would not be "
            "finite; the model stays as it was", self.aggregator.version, extra={"event": "discarded"},
        )  # fmt: skip
        return {}, True

    def _publish(self) -> None:
        self.broadcasts[self.aggregator.version] = self._broadcast(self.aggregator.broadcast())

    def _broadcast(self, vectors: Vectors, in_memory: bool = True, difference: bool = True) -> Broadcast:
        aggregator = self.aggregator
        return Broadcast(
            vectors, in_memory, aggregator.download_layout(), aggregator.difference() if difference else None
        )

    def current(self) -> tuple[int, Tensor]:
        """Return the last version that was made and its model, as it is evaluated."""
        return self.aggregator.version, self.aggregator.evaluated_model

    def named(self, model: Tensor) -> Future[dict[str, Tensor]]:
        """Return a model under the names of its module, which evaluations use too: it waits for them. May be
        called from any thread."""
        return self._evaluator.submit(self._name_parameters, model)

    # -- events and evaluation ---------------------------------------------------------------------

    def tell(self, events: Sequence[Event]) -> None:
        """Append events to the log, after all earlier ones."""
        if events:
            self._append(list(events))

    def evaluate(self, where: RunPosition) -> None:
        """Begin to evaluate the model as it is now. The event gets its place in the log now, and is written
        when the result is known."""
        if self._evaluate is None:
            return
        self._evaluation_slots.acquire()
        model, version = self.aggregator.evaluated_model, self.aggregator.version
        self.evaluated = version
        evaluation = self._evaluator.submit(self._evaluated, model, version, where)
        self._append(evaluation)
        evaluation.add_done_callback(lambda _: self._flush())

    def _evaluated(self, model: Tensor, version: int, where: RunPosition) -> ModelEvaluated:
        assert self._evaluate is not None
        try:
            metrics = self._evaluate(model, version)
        finally:
            self._evaluation_slots.release()
        self.metrics = metrics
        return ModelEvaluated(*where, metrics=metrics)

    def _append(self, item: list[Event] | Future[ModelEvaluated]) -> None:
        with self._log_lock:
            self._unlogged.append(item)
        self._flush()

    def _flush(self) -> None:
        with self._log_lock:
            while self._unlogged and self._log_error is None:
                first = self._unlogged[0]
                if isinstance(first, Future):
                    if not first.done() or first.exception() is not None:
                        return  # the coordinator asks for the failure
                    first = [first.result()]
                try:
                    self._log.record(first)
                except OSError as error:
                    self._log_error = error
                self._unlogged.popleft()

    def settled(self) -> bool:
        """Return whether all events are in the log."""
        with self._log_lock:
            return not self._unlogged

    def settle(self) -> None:
        """Wait for all evaluations, and raise the error of one that failed."""
        with self._log_lock:
            waiting = [item for item in self._unlogged if isinstance(item, Future)]
        for evaluation in waiting:
            evaluation.result()
        self._flush()
        failure = self.failure()
        if failure is not None:
            raise failure

    def failure(self) -> BaseException | None:
        """Return the error of an evaluation or of the log, or None."""
        with self._log_lock:
            if self._log_error is not None:
                return RunError(
                    f"the events cannot be written ({self._log_error}); make room and start again"
                )
            first = self._unlogged[0] if self._unlogged else None
        return first.exception() if isinstance(first, Future) and first.done() else None

    def finish(self, reason: str, reports: Sequence[ModelEvaluated], where: RunPosition) -> None:
        """Write the last events of the run: the clients' last evaluations, a central one, and the end."""
        self.tell(reports)
        if self.evaluated != self.aggregator.version:
            self.evaluate(where)
        self.settle()
        self.tell([RunEnded(reason, *where)])

    def close(self) -> None:
        """End the evaluator's thread; evaluations that have not begun are cancelled."""
        self._evaluator.shutdown(wait=True, cancel_futures=True)

    # -- snapshots ---------------------------------------------------------------------------------

    def snapshot(self) -> tuple[dict[str, Tensor], ModelDocument]:
        """Return everything as tensors and JSON. They are the live tensors, so the caller writes them before
        it calls another method."""
        tensors, aggregator = self.aggregator.snapshot()
        for version, broadcast in self.broadcasts.items():
            tensors |= {f"broadcast/{version}/{name}": v for name, v in broadcast.vectors.items()}
        return tensors, {
            "aggregator": aggregator,
            "losses": self._losses,
            "closed": [(_document(one.where), one.evaluate, one.losses) for one in self._closed],
            "metrics": self.metrics,
            "evaluated": self.evaluated,
            "discarded": self.discarded,
            "early": sorted(self._early),
        }

    def restore(self, tensors: dict[str, Tensor], document: ModelDocument) -> None:
        """Go on from `snapshot()`. The tensors are removed from the dict, so that none is in memory twice."""
        self.broadcasts = {}
        versions: dict[int, Vectors] = {}
        for path in [path for path in tensors if path.startswith("broadcast/")]:
            _, number, name = path.split("/", 2)
            versions.setdefault(int(number), {})[name] = tensors.pop(path)
        self.aggregator.restore(tensors, document["aggregator"])
        tensors.clear()
        self._losses = list(document["losses"]) if self._tell_losses else []
        self._closed = deque(
            ClosedStep(RunPosition(**where), evaluate, losses)
            for where, evaluate, losses in document["closed"]
        )
        self.metrics = document["metrics"]
        self.evaluated, self.discarded = document["evaluated"], document.get("discarded", 0)
        self._early = set(document.get("early", []))
        current = self.aggregator.broadcast()
        for version, vectors in versions.items():
            ordered = {name: vectors[name] for name in current}  # a file has another order
            self.broadcasts[version] = self._broadcast(ordered, in_memory=False, difference=False)
        self._publish()


def _document(where: RunPosition) -> PositionDocument:
    return {"version": where.version, "trips": where.trips, "time": where.time, "bytes": where.bytes}
