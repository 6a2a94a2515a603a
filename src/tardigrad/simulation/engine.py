"""The engine: takes the plan, has the trips trained, and commits them in virtual-time order."""

from __future__ import annotations

import threading
from collections import Counter, deque
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from tardigrad.algorithms.aggregator import Aggregator
from tardigrad.core.bookkeeping import Delivery, Refusal, Ticket
from tardigrad.core.draws import key
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
from tardigrad.core.participation import ClientId
from tardigrad.core.stop import Stop
from tardigrad.core.upload import Task, Vectors
from tardigrad.data.clients import Clients
from tardigrad.data.evaluation import Evaluation, Evaluator
from tardigrad.errors import RunError, TardigradError
from tardigrad.learning.profile import Profile
from tardigrad.simulation.executors import Executor, TrainingJob
from tardigrad.simulation.planner import GiveUp, Joined, Planned, Planner


class Engine:
    """One simulated run. It contains no algorithm: the aggregator has it.

    A trip is submitted to the executor as soon as its inputs exist: the version it starts from, and, for
    algorithms with client memory, what its client remembers. That may be long before it is committed.
    """

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
    ) -> None:
        self._planner, self._aggregator, self._executor = planner, aggregator, executor
        self._clients, self._evaluator, self._evaluation, self._stop = clients, evaluator, evaluation, stop
        self._seed = seed
        self._tell_losses = tell_losses  # the clients' own: private runs neither tell nor keep them
        self._profile = profile or Profile(on=False)
        self.release: Callable[[int, Vectors], None] = lambda version, vectors: None
        """Called with each new version before anybody trains from it; it may raise to prevent that."""
        self._layers_ready = threading.Event()
        aggregator.notify(self._layers_ready.set)
        self._remembers = aggregator.algorithm.remembers
        self._plan: deque[Planned] = deque()  # planned, not committed
        self._ahead = 0  # accepted uploads among them
        self._broadcasts: dict[int, Vectors] = {}  # by version, while somebody may start from it
        self._tasks: dict[int, Task] = {}  # submitted, not committed
        self._wanted: Counter[int] = Counter()  # by version, trips from it that are not in a step yet
        self._unwanted: set[int] = set()  # versions that no trip needs
        self._in_buffer: list[int] = []  # versions that uploads in the buffer started from
        self._for_version: dict[int, list[Delivery]] = {}  # planned, waiting for their version
        self._for_client: dict[int, deque[Delivery]] = {}  # waiting for what their client remembers
        self._training: set[int] = set()  # clients of submitted trips
        self._memories: dict[int, Vectors] = {}
        self._losses: list[float] = []  # training losses of the uploads in the buffer
        self.time = 0.0
        self.trips = 0
        self.given_up = 0
        self.bytes = 0
        """Sent so far, both ways: a download for each trip that began, an upload for each that came back."""
        self._download_bytes = _size(aggregator.broadcast())  # of one; all are alike
        self._upload_bytes = 0
        self.refused: Counter[str] = Counter()
        self.metrics: dict[str, float] = {}
        """Of the last evaluation."""
        self._trouble: TardigradError | None = None  # what the planner ran into, ahead of us
        self._evaluated = -1  # the version of the last evaluation
        self._resumed = False
        self._publish()

    @property
    def version(self) -> int:
        """The version that the model is at."""
        return self._aggregator.version

    def run(self) -> Iterator[list[Event]]:
        """Run, and yield all events. Events that belong together are in one list, and between two lists
        the engine can be snapshotted."""
        if not self._resumed:
            yield [self._evaluate()]
        reason = self._reason_to_stop()
        while reason is None:
            with self._profile.part("planning"):
                self._look_ahead()
            if not self._plan and self._trouble is not None:
                raise self._trouble
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
        accuracy = self.metrics.get("accuracy", 0.0)
        return self._stop.reason(self.trips, self.version, self.time, accuracy, self._aggregator.objection)

    def _position(self) -> RunPosition:
        return RunPosition(self.version, self.trips, self.time, self.bytes)

    # -- looking ahead ---------------------------------------------------------------------------

    def _look_ahead(self) -> None:
        """Plan until enough trips are known, and submit those that are ready."""
        while self._trouble is None and (self._ahead < self._executor.ahead or not self._plan):
            try:
                planned = self._planner.advance()
            except TardigradError as error:  # a run that ends before it comes to that does not mind
                self._trouble = error
                break
            if not planned:
                break
            for item in planned:
                self._note(item)
            self._plan.extend(planned)

    def _note(self, item: Planned) -> None:
        if isinstance(item, Ticket):
            self._want(item.version, 1)
        elif isinstance(item, GiveUp):
            self._want(item.ticket.version, -1)
        elif isinstance(item, Delivery):
            if item.accepted:
                self._ahead += 1
                if _start(item) in self._broadcasts:
                    self._version_exists(item)
                else:
                    self._for_version.setdefault(_start(item), []).append(item)
            else:
                self._want(_start(item), -1)

    def _version_exists(self, item: Delivery) -> None:
        """Submit a trip whose version exists, unless its client must first hear of an earlier one."""
        client = _client(item)
        if self._remembers and client in self._training:
            self._for_client.setdefault(client, deque()).append(item)
        else:
            self._submit(item)

    def _submit(self, item: Delivery) -> None:
        client, version = _client(item), _start(item)
        self._training.add(client)
        task = Task(item.trip, client, version, self._broadcasts[version], float(item.staleness or 0))
        self._tasks[item.trip] = task
        seed = key(self._seed, "trip", item.trip)
        memory = self._memories.get(client, {})
        self._executor.submit(TrainingJob(item.time, task, client, memory, seed))

    def _client_returned(self, client: int) -> None:
        """What the client remembers is committed: its next trip may be trained."""
        self._training.discard(client)
        waiting = self._for_client.get(client)
        if waiting:
            self._submit(waiting.popleft())
            if not waiting:
                del self._for_client[client]

    def _publish(self) -> None:
        """Make the newest version available, and submit the trips that waited for it."""
        self._broadcasts[self.version] = self._executor.publish(self.version, self._aggregator.broadcast())
        self._want(self.version, 0)
        for item in self._for_version.pop(self.version, []):
            self._version_exists(item)
        self._forget_versions()

    def _want(self, version: int, trips: int) -> None:
        """So many more trips need this version, or so many fewer."""
        self._wanted[version] += trips
        if self._wanted[version]:
            self._unwanted.discard(version)
        else:
            self._unwanted.add(version)

    def _forget_versions(self) -> None:
        """Let go of versions that nobody will start from any more."""
        open_version = self._planner.book.version
        for version in [v for v in self._unwanted if v < open_version and v in self._broadcasts]:
            self._executor.withdraw(version)
            del self._broadcasts[version], self._wanted[version]
            self._unwanted.discard(version)

    # -- committing ------------------------------------------------------------------------------

    def _commit(self, item: Planned) -> Iterator[Event]:
        moved = ended = False
        if isinstance(item, Delivery):
            self.time, ended, moved = item.time, True, item.closes
            self.trips += 1
            uploaded = self._upload(item)
            self.bytes += self._upload_bytes
            yield uploaded
        elif isinstance(item, GiveUp):
            self.time, moved = item.time, item.closes
            self.given_up += 1
            ticket = item.ticket
            yield TripGivenUp.of(ticket, self._name(ticket.client), item.time)
        elif isinstance(item, Refusal):
            self.refused[item.reason] += 1
            yield CheckInRefused(client=self._name(item.client), time=item.time, reason=item.reason)
        elif isinstance(item, Joined):
            self.time, moved = item.time, item.closes
        else:
            self.bytes += self._download_bytes
        if moved:
            yield self._step()
        if self._evaluation.due(self.version, moved, self.trips, ended):
            yield self._evaluate()

    def _upload(self, item: Delivery) -> Event:
        if item.accepted:
            client = _client(item)
            upload, memory = self._executor.result(item.trip)
            task = self._tasks.pop(item.trip)
            for layer in self._aggregator.layers:
                upload = layer.client(upload, task)
            self._upload_bytes = _size(upload.vectors)
            self._aggregator.add(item, upload, task.vectors["model"])
            self._in_buffer.append(task.version)
            if self._tell_losses:
                self._losses.append(upload.loss)
            self._ahead -= 1
            if self._remembers:
                self._memories[client] = memory
            self._client_returned(client)
        else:
            assert item.reason is not None
            self.refused[item.reason] += 1
        return UploadReceived.of(item, None if item.client is None else self._name(item.client))

    def _step(self) -> Event:
        with self._profile.part("step"):
            self._aggregator.close()
            while not self._aggregator.ready:  # a layer waits for somebody else
                self._layers_ready.wait()
                self._layers_ready.clear()
            metrics = self._aggregator.step()
        self.release(self.version, self._aggregator.broadcast())
        for version in self._in_buffer:
            self._want(version, -1)
        self._in_buffer = []
        self._publish()
        losses, self._losses = self._losses, []
        loss = sum(losses) / len(losses) if losses else None
        return ModelMoved(*self._position(), training_loss=loss, metrics=metrics)

    def _evaluate(self) -> Event:
        with self._profile.part("evaluation"):
            self.metrics = self._evaluator(self._aggregator.evaluated_model, self.version)
        self._evaluated = self.version
        return ModelEvaluated(*self._position(), metrics=self.metrics)

    def _name(self, client: ClientId) -> ClientId:
        return self._clients.name(client) if isinstance(client, int) else client

    # -- snapshots -------------------------------------------------------------------------------

    def snapshot(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Everything that is needed to go on exactly: tensors, and the rest as JSON. Write it before going
        on: the tensors are the live ones."""
        tensors, aggregator = self._aggregator.snapshot()
        for version, vectors in self._broadcasts.items():
            tensors |= {f"broadcast/{version}/{name}": v for name, v in vectors.items()}
        for client, vectors in self._memories.items():
            tensors |= {f"memory/{client}/{name}": v for name, v in vectors.items()}
        return tensors, {
            "aggregator": aggregator,
            "planner": self._planner.state(),
            "plan": [[type(item).__name__, *_flat(item)] for item in self._plan],
            "in_buffer": self._in_buffer,
            "losses": self._losses,
            "time": self.time,
            "trips": self.trips,
            "given_up": self.given_up,
            "bytes": self.bytes,
            "upload_bytes": self._upload_bytes,
            "refused": dict(self.refused),
            "metrics": self.metrics,
            "evaluated": self._evaluated,
        }

    def restore(self, tensors: dict[str, Tensor], document: dict[str, Any]) -> None:
        """Go on from `snapshot()`."""
        ours, theirs = self._aggregator.state["model"].shape, tensors["state/model"].shape
        if ours != theirs:
            raise RunError(f"the snapshot is of a model with {theirs.numel()} parameters, not {ours.numel()}")
        device = self._aggregator.state["model"].device
        self._aggregator.restore(tensors, document["aggregator"])
        self._planner.restore(document["planner"])
        for version in self._broadcasts:
            self._executor.withdraw(version)
        self._broadcasts = {
            version: self._executor.publish(version, vectors)
            for version, vectors in _grouped("broadcast/", tensors, device).items()
        }
        self._in_buffer = document["in_buffer"]
        self._memories = _grouped("memory/", tensors, device)
        self._losses = document["losses"] if self._tell_losses else []
        self.time, self.trips, self.given_up = document["time"], document["trips"], document["given_up"]
        self.bytes, self._upload_bytes = document["bytes"], document["upload_bytes"]
        self.refused = Counter(document["refused"])
        self.metrics, self._evaluated = document["metrics"], document["evaluated"]
        plan = [_planned(row) for row in document["plan"]]
        self._wanted, self._unwanted = Counter(), set()
        under_way = [ticket.version for ticket in self._planner.book.in_flight.values()]
        for item in plan:  # uploads in the plan are not under way for the planner any more
            if isinstance(item, Delivery):
                under_way.append(_start(item))
            elif isinstance(item, GiveUp):
                under_way.append(item.ticket.version)
        for version in [*under_way, *self._in_buffer]:
            self._want(version, 1)
        for version in self._broadcasts:
            self._want(version, 0)
        for item in plan:
            if not isinstance(item, Ticket):
                self._note(item)
        self._plan = deque(plan)
        self._resumed = True


def _size(vectors: Vectors) -> int:
    return sum(vector.numel() * vector.element_size() for vector in vectors.values())


def _client(item: Delivery) -> int:
    assert isinstance(item.client, int)
    return item.client


def _start(item: Delivery) -> int:
    assert item.start_version is not None
    return item.start_version


def _flat(item: Planned) -> list[Any]:
    return [list(part) if isinstance(part, Ticket) else part for part in item]


def _planned(row: list[Any]) -> Planned:
    kind, *parts = row
    if kind == "GiveUp":
        return GiveUp(Ticket(*parts[0]), *parts[1:])
    kinds: dict[str, Any] = {"Ticket": Ticket, "Refusal": Refusal, "Delivery": Delivery, "Joined": Joined}
    item: Planned = kinds[kind](*parts)
    return item


def _grouped(prefix: str, tensors: dict[str, Tensor], device: torch.device) -> dict[int, Vectors]:
    groups: dict[int, Vectors] = {}
    for path, tensor in tensors.items():
        if path.startswith(prefix):
            number, name = path.removeprefix(prefix).split("/", 1)
            groups.setdefault(int(number), {})[name] = tensor.to(device)
    return groups
