"""The values of a run on a server: the aggregator, the versions that clients may start from, evaluation.

One thread does all of it, in the order in which the course says; evaluation has a thread of its own, and its
results are entered where they belong.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from torch import Tensor

from tardigrad.algorithms.aggregator import Aggregator
from tardigrad.core.events import Event, ModelEvaluated, ModelMoved, RunPosition
from tardigrad.core.outcomes import Accepted
from tardigrad.core.upload import Upload, Vectors
from tardigrad.errors import RunError
from tardigrad.service.protocol.refusals import log
from tardigrad.service.protocol.wire import Layout, layout_of, packed, unpacked
from tardigrad.service.server.run_state import Effects

MOST_EVALUATIONS = 4
"""Models that wait to be evaluated; the run waits for them if there are more."""

Evaluate = Callable[[Tensor, int], dict[str, float]]
Release = Callable[[int, Vectors], None]


class EventLog(Protocol):
    """Where events go."""

    def record(self, events: list[Event]) -> None:
        """Append events."""


@dataclass(frozen=True, slots=True)
class Broadcast:
    """A version as it is downloaded."""

    room: np.ndarray
    layout: Layout
    vectors: Vectors
    """Views into `room`."""


@dataclass(frozen=True, slots=True)
class ClosedStep:
    """A buffer is full, and its step is not made yet."""

    where: RunPosition
    """How far the run had come when it was filled."""
    evaluate: bool
    losses: list[float]
    """Training losses of its uploads."""


class ModelState:
    """Tensors, and the events that tell of them."""

    def __init__(
        self,
        aggregator: Aggregator,
        log: EventLog,
        evaluate: Evaluate | None,
        tell_losses: bool,
        keep_finite: bool,
        release: Release = lambda version, vectors: None,
    ) -> None:
        """`keep_finite`: a step after which the state would not be finite leaves the model as it was.
        `release`: called with each new version before it is published; it may raise to prevent that."""
        self.aggregator = aggregator
        self._release = release
        self._log, self._evaluate, self._tell_losses = log, evaluate, tell_losses
        self._keep_finite = keep_finite
        self.discarded = 0
        """Steps that left the model as it was, over the whole run."""
        self.metrics: dict[str, float] = {}
        """Of the last central evaluation."""
        self.evaluated = -1
        self.broadcasts: dict[int, Broadcast] = {}
        self.published: Callable[[int, Broadcast], None] = lambda version, broadcast: None
        """Called with each version that clients may download from now on."""
        self._losses: list[float] = []
        self._closed: deque[ClosedStep] = deque()  # buffers that are full, and not yet versions
        self._told: deque[list[Event] | Future[ModelEvaluated]] = deque()  # not yet in the log
        self._telling = threading.RLock()
        self._broken: OSError | None = None  # the log could not be written: nothing more may follow
        self._evaluator = ThreadPoolExecutor(1, "evaluation")
        self._waiting = threading.Semaphore(MOST_EVALUATIONS)
        self._publish()

    def do(self, effects: Effects, upload: Upload | None) -> None:
        """What an entry means for the values."""
        delivery = effects.delivery
        if isinstance(delivery, Accepted):
            assert upload is not None
            start = self.broadcasts[delivery.ticket.version].vectors["model"]
            self.aggregator.add(delivery, upload, start)
            if self._tell_losses:  # private runs do not keep them
                self._losses.append(upload.loss)
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
            del self.broadcasts[version]

    @property
    def waiting(self) -> bool:
        """Whether a buffer is full whose step waits for somebody else."""
        return bool(self._closed)

    def advance(self) -> None:
        """Make the steps whose buffers are closed, as far as no layer has to wait."""
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
        vectors = self.aggregator.broadcast()
        layout = layout_of(vectors)
        room = packed(vectors)
        self.broadcasts[self.aggregator.version] = Broadcast(room, layout, unpacked(room, layout))

    # -- telling -----------------------------------------------------------------------------------

    def tell(self, events: Sequence[Event]) -> None:
        """Enter events in the log, after all that came before."""
        if events:
            self._enter(list(events))

    def evaluate(self, where: RunPosition) -> None:
        """Evaluate the model as it is now; the event is entered here, when it is known."""
        if self._evaluate is None:
            return
        self._waiting.acquire()
        model, version = self.aggregator.evaluated_model, self.aggregator.version
        self.evaluated = version
        evaluation = self._evaluator.submit(self._evaluated, model, version, where)
        self._enter(evaluation)
        evaluation.add_done_callback(lambda _: self._flush())

    def _evaluated(self, model: Tensor, version: int, where: RunPosition) -> ModelEvaluated:
        assert self._evaluate is not None
        try:
            metrics = self._evaluate(model, version)
        finally:
            self._waiting.release()
        self.metrics = metrics
        return ModelEvaluated(*where, metrics=metrics)

    def _enter(self, item: list[Event] | Future[ModelEvaluated]) -> None:
        with self._telling:
            self._told.append(item)
        self._flush()

    def _flush(self) -> None:
        with self._telling:
            while self._told and self._broken is None:
                first = self._told[0]
                if isinstance(first, Future):
                    if not first.done() or first.exception() is not None:
                        return  # a failure is the coordinator's to see
                    first = [first.result()]
                try:
                    self._log.record(first)
                except OSError as error:
                    self._broken = error
                self._told.popleft()

    def settled(self) -> bool:
        """Whether all that happened is in the log."""
        with self._telling:
            return not self._told

    def settle(self) -> None:
        """Wait for evaluations; what went wrong with one is raised here."""
        with self._telling:
            waiting = [item for item in self._told if isinstance(item, Future)]
        for evaluation in waiting:
            evaluation.result()
        self._flush()
        failure = self.failure()
        if failure is not None:
            raise failure

    def failure(self) -> BaseException | None:
        """What went wrong with an evaluation or the log, if something did."""
        with self._telling:
            if self._broken is not None:
                return RunError(f"the events cannot be written ({self._broken}); make room and start again")
            first = self._told[0] if self._told else None
        return first.exception() if isinstance(first, Future) and first.done() else None

    def close(self) -> None:
        """No more evaluations."""
        self._evaluator.shutdown(wait=True, cancel_futures=True)

    # -- snapshots ---------------------------------------------------------------------------------

    def snapshot(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Everything, as tensors and JSON; to be written before anything else happens."""
        tensors, aggregator = self.aggregator.snapshot()
        for version, broadcast in self.broadcasts.items():
            tensors |= {f"broadcast/{version}/{name}": v for name, v in broadcast.vectors.items()}
        return tensors, {
            "aggregator": aggregator,
            "losses": self._losses,
            "closed": [[closed.where._asdict(), closed.evaluate, closed.losses] for closed in self._closed],
            "metrics": self.metrics,
            "evaluated": self.evaluated,
            "discarded": self.discarded,
        }

    def restore(self, tensors: dict[str, Tensor], document: dict[str, Any]) -> None:
        """Go on from `snapshot()`. Takes the tensors out of the dict, so that none is in memory twice."""
        self.broadcasts = {}
        versions: dict[int, Vectors] = {}
        for path in [path for path in tensors if path.startswith("broadcast/")]:
            _, number, name = path.split("/", 2)
            versions.setdefault(int(number), {})[name] = tensors.pop(path)
        self.aggregator.restore(tensors, document["aggregator"])
        tensors.clear()
        self._losses = list(document["losses"]) if self._tell_losses else []
        self._closed = deque(ClosedStep(RunPosition(**where), *row) for where, *row in document["closed"])
        self.metrics = document["metrics"]
        self.evaluated, self.discarded = document["evaluated"], document.get("discarded", 0)
        current = layout_of(self.aggregator.broadcast())
        for version in list(versions):
            vectors = versions.pop(version)
            room = packed({name: vectors[name] for name, _ in current})  # a file has them in its own order
            self.broadcasts[version] = Broadcast(room, current, unpacked(room, current))
