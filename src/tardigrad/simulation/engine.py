"""The engine: follows the plan, has the trips trained, and commits them in virtual-time order."""

from __future__ import annotations

import threading
from collections import Counter, deque
from collections.abc import Callable, Iterator
from typing import NotRequired, TypedDict

import torch
from torch import Tensor

from tardigrad.algorithms.aggregator import Aggregator, AggregatorState
from tardigrad.core.events import (
    CheckInRefused,
    Event,
    ModelEvaluated,
    ModelMoved,
    RunEnded,
    RunPosition,
    TripGivenUp,
    UploadReceived,
)
from tardigrad.core.outcomes import Accepted, GivenUp, Refusal, Rejected, Ticket
from tardigrad.core.participation import ClientId
from tardigrad.core.state import tensor_of
from tardigrad.core.stop import Stop
from tardigrad.core.tensor_names import by_number
from tardigrad.core.upload import Task, Upload, Vectors, size_in_bytes
from tardigrad.data.clients import Clients
from tardigrad.data.evaluation import Evaluation, Evaluator
from tardigrad.errors import RunError, TardigradError
from tardigrad.learning.profile import Profile
from tardigrad.simulation.executors import Executor
from tardigrad.simulation.live_versions import LiveVersions
from tardigrad.simulation.planned import Joined, Planned, PlannedRow, from_row, to_row
from tardigrad.simulation.planner import Planner, PlannerState
from tardigrad.simulation.submissions import Submissions


class EngineState(TypedDict):
    """The contents of a snapshot of an `Engine`, besides the tensors."""

    aggregator: AggregatorState
    planner: PlannerState
    plan: list[PlannedRow]
    """The items that are planned and not committed."""
    plan_error: NotRequired[str]
    """Why nothing can be planned after them."""
    in_buffer: list[int]
    losses: list[float]
    time: float
    trips: int
    given_up: int
    bytes: int
    upload_bytes: int
    downloads: NotRequired[list[tuple[ClientId, int]]]
    """The version that each client has, where differences between versions are sent."""
    refused: dict[str, int]
    metrics: dict[str, float]
    evaluated: int


class Engine:
    """One simulated run: the planner decides what happens when, the executor trains the trips, and the
    aggregator has the algorithm and the values."""

    def __init__(
        self,
        planner: Planner,
        aggregator: Aggregator,
        executor: Executor,
        clients: Clients,
        evaluator: Evaluator,
        evaluation: Evaluation,
        stop: Stop,
        seed: int,
        profile: Profile | None = None,
        tell_losses: bool = True,
        remembers: bool | None = None,
    ) -> None:
        """`remembers`: whether clients keep a memory between trips; default: as the algorithm says."""
        if remembers is None:
            remembers = aggregator.algorithm.remembers
        self._planner, self._aggregator, self._executor = planner, aggregator, executor
        self._clients, self._evaluator, self._evaluation, self._stop = clients, evaluator, evaluation, stop
        self._tell_losses = tell_losses  # False in private runs, which neither report nor keep them
        self._profile = profile or Profile(on=False)
        self.release: Callable[[int, Vectors], None] = lambda version, vectors: None
        """Called with each new version before a client trains from it; it may raise to prevent that."""
        self._layers_ready = threading.Event()
        aggregator.notify(self._layers_ready.set)
        self._plan: deque[Planned] = deque()  # planned, not committed
        self._planned_trips = 0  # that ended in an upload, committed or not
        self._versions = LiveVersions(executor)
        self._submissions = Submissions(executor, self._versions, remembers, seed)
        self._in_buffer: list[int] = []  # versions that uploads in the buffer started from
        self._losses: list[float] = []  # training losses of the uploads in the buffer
        self.time = 0.0
        self.trips = 0
        self.given_up = 0
        self.bytes = 0
        """Sent so far, both ways: a download for each trip that began, an upload for each that arrived."""
        self._downloads = aggregator.download_sizes()
        self._upload_bytes = 0
        self._extra_bytes = sum(layer.wire.extra_bytes for layer in aggregator.layers)
        self.refused: Counter[str] = Counter()
        self.metrics: dict[str, float] = {}
        """The metrics of the last evaluation."""
        self._plan_error: TardigradError | None = None  # raised by the planner when it ran ahead
        self._evaluated = -1  # the version of the last evaluation
        self._resumed = False
        self._publish()

    @property
    def version(self) -> int:
        """The version of the model."""
        return self._aggregator.version

    @property
    def memories(self) -> dict[int, Vectors]:
        """The memory of each client, by client."""
        return self._submissions.memories

    def run(self) -> Iterator[list[Event]]:
        """Run, and yield all events. Events that belong together are in one list; a snapshot can be taken
        between two lists."""
        if not self._resumed:
            yield [self._evaluate()]
        reason = self._reason_to_stop()
        while reason is None:
            with self._profile.part("planning"):
                self._look_ahead()
            if not self._plan and self._plan_error is not None:
                raise self._plan_error
            if not self._plan:
                reason = "the script is over"
                break
            limit = self._stop.virtual_time
            if limit is not None and self._plan[0].time > limit:
                self.time, reason = limit, "virtual_time"
                break
            with self._profile.part("commit"):
                events = list(self._commit(self._plan.popleft()))
            yield events
            reason = self._reason_to_stop()
        assert reason is not None
        last = [self._evaluate()] if self._evaluated != self.version else []
        yield [*last, RunEnded(reason, *self._position())]

    def _reason_to_stop(self) -> str | None:
        objection = self._aggregator.objection
        return self._stop.reason(self.trips, self.version, self.time, self.metrics, objection)

    def _position(self) -> RunPosition:
        return RunPosition(self.version, self.trips, self.time, self.bytes)

    # -- looking ahead ---------------------------------------------------------------------------

    def _look_ahead(self) -> None:
        """Plan until enough trips are known or the run ends, and submit those that are ready."""
        while self._plan_error is None and (not self._plan or self._may_plan()):
            try:
                planned = self._planner.advance()
            except TardigradError as error:  # deferred: the run may stop before it gets there
                self._plan_error = error
                break
            if not planned:
                break
            for item in planned:
                self._note(item)
            self._plan.extend(planned)

    def _may_plan(self) -> bool:
        """Return whether more trips are needed, and the run goes on after what is planned."""
        if len(self._submissions) >= self._executor.ahead:
            return False
        time, version = self._plan[-1].time, self._planner.book.version
        return self._stop.reason(self._planned_trips, version, time, {}) is None

    def _note(self, item: Planned) -> None:
        if isinstance(item, Accepted | Rejected):
            self._planned_trips += 1
        if isinstance(item, Ticket):
            self._versions.need(item.version)
        elif isinstance(item, GivenUp | Rejected):
            self._versions.need(item.ticket.version, -1)
        elif isinstance(item, Accepted):
            self._submissions.plan(item)

    def _publish(self) -> None:
        """Make the newest version available, and submit the trips that waited for it."""
        self._versions.publish(self.version, self._aggregator.broadcast())
        self._submissions.published(self.version)
        self._versions.discard_before(self._planner.book.version)

    # -- committing ------------------------------------------------------------------------------

    def _commit(self, item: Planned) -> Iterator[Event]:
        moved = ended = False
        if isinstance(item, Accepted | Rejected):
            self.time, ended, moved = item.time, True, item.closes
            self.trips += 1
            if isinstance(item, Accepted):
                self._add(item)
            else:
                self.refused[item.reason] += 1
            self.bytes += self._upload_bytes
            assert isinstance(item.client, int), "clients are numbered in a simulation"
            times = self._planner.times(item.trip, item.client)
            yield UploadReceived.of(item, self._name(item.client), times)
        elif isinstance(item, GivenUp):
            self.time, moved = item.time, item.closes
            self.given_up += 1
            yield TripGivenUp.of(item, self._name(item.ticket.client))
        elif isinstance(item, Refusal):
            self.refused[item.reason] += 1
            yield CheckInRefused.of(item, self._name(item.client))
        elif isinstance(item, Joined):
            self.time, moved = item.time, item.closes
        else:
            self.bytes += self._downloads.take(item.client, item.version)
        if moved:
            yield self._step()
        if self._evaluation.due(self.version, moved, self.trips, ended):
            yield self._evaluate()

    def _add(self, item: Accepted) -> None:
        """Add the trained upload of a trip to the buffer, and commit the memory of its client."""
        upload, task = self._submissions.collect(item)
        if self._aggregator.layers:
            upload = self._leaving(upload, task)
        self._upload_bytes = size_in_bytes(upload.vectors) + self._extra_bytes
        self._aggregator.add(item, upload, task.vectors["model"])
        self._in_buffer.append(task.version)
        if self._tell_losses:
            self._losses.append(upload.loss)
        self._submissions.committed(item)

    def _leaving(self, upload: Upload, task: Task) -> Upload:
        """Return an upload as it leaves its client, whose memory the layers may change."""
        assert isinstance(task.client, int), "clients are numbered in a simulation"
        memory = dict(self.memories.get(task.client, {}))
        for layer in self._aggregator.layers:
            upload = layer.client(upload, task, memory)
        if memory:
            self.memories[task.client] = memory
        return upload

    def _step(self) -> Event:
        with self._profile.part("step"):
            self._aggregator.close()
            while not self._aggregator.ready:  # a layer makes the step wait
                self._layers_ready.wait()
                self._layers_ready.clear()
            metrics = self._aggregator.step()
        self.release(self.version, self._aggregator.broadcast())
        for version in self._in_buffer:
            self._versions.need(version, -1)
        self._in_buffer = []
        self._publish()
        losses, self._losses = self._losses, []
        loss = sum(losses) / len(losses) if losses else None
        return ModelMoved(*self._position(), training_loss=loss, metrics=metrics)

    def _evaluate(self) -> Event:
        with self._profile.part("evaluation"):
            self.metrics = self._evaluator(self._aggregator.evaluated_model, self.version, self.memories)
        self._evaluated = self.version
        return ModelEvaluated(*self._position(), metrics=self.metrics)

    def _name(self, client: ClientId) -> ClientId:
        return self._clients.name(client) if isinstance(client, int) else client

    # -- snapshots -------------------------------------------------------------------------------

    def snapshot(self) -> tuple[dict[str, Tensor], EngineState]:
        """Return everything that is needed to continue exactly: tensors, and the rest as JSON. Write it
        before the run goes on, because the tensors are not copied."""
        tensors, aggregator = self._aggregator.snapshot()
        for version, vectors in self._versions.items():
            tensors |= {f"broadcast/{version}/{name}": v for name, v in vectors.items()}
        for client, vectors in self.memories.items():
            tensors |= {f"memory/{client}/{name}": v for name, v in vectors.items()}
        document: EngineState = {
            "aggregator": aggregator,
            "planner": self._planner.state(),
            "plan": [to_row(item) for item in self._plan],
            "in_buffer": self._in_buffer,
            "losses": self._losses,
            "time": self.time,
            "trips": self.trips,
            "given_up": self.given_up,
            "bytes": self.bytes,
            "upload_bytes": self._upload_bytes,
            "downloads": self._downloads.state(),
            "refused": dict(self.refused),
            "metrics": self.metrics,
            "evaluated": self._evaluated,
        }
        if self._plan_error is not None:
            document["plan_error"] = str(self._plan_error)
        return tensors, document

    def restore(self, tensors: dict[str, Tensor], document: EngineState) -> None:
        """Continue from a `snapshot()`."""
        model, stored = tensor_of(self._aggregator.state, "model"), tensors["state/model"]
        if model.shape != stored.shape:
            raise RunError(
                f"the snapshot is of a model with {stored.numel()} parameters, not {model.numel()}"
            )
        self._aggregator.restore(tensors, document["aggregator"])
        self._planner.restore(document["planner"])
        self._in_buffer = document["in_buffer"]
        self._submissions.memories = _on_device(by_number("memory/", tensors), model.device)
        self._losses = document["losses"] if self._tell_losses else []
        self.time, self.trips, self.given_up = document["time"], document["trips"], document["given_up"]
        self.bytes, self._upload_bytes = document["bytes"], document["upload_bytes"]
        self._downloads.restore(document.get("downloads", []))
        self.refused = Counter(document["refused"])
        self.metrics, self._evaluated = document["metrics"], document["evaluated"]
        plan = [from_row(row) for row in document["plan"]]
        self._planned_trips = self.trips
        if (error := document.get("plan_error")) is not None:
            self._plan_error = RunError(error)
        needed = [ticket.version for ticket in self._planner.book.in_flight.values()] + self._in_buffer
        # trips whose end is planned are not under way for the planner any more
        needed += [item.ticket.version for item in plan if isinstance(item, Accepted | Rejected | GivenUp)]
        self._versions.restore(_on_device(by_number("broadcast/", tensors), model.device), needed)
        for item in plan:
            if not isinstance(item, Ticket):
                self._note(item)
        self._plan = deque(plan)
        self._resumed = True


def _on_device(groups: dict[int, Vectors], device: torch.device) -> dict[int, Vectors]:
    return {number: {n: v.to(device) for n, v in vectors.items()} for number, vectors in groups.items()}
