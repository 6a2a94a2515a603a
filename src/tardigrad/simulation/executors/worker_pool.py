"""Workers: the messages between them and the dispatcher, and the methods of a pool of workers."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Generic, NamedTuple, Protocol, TypeVar

from tardigrad.core.own_code import own_line
from tardigrad.core.upload import Vectors
from tardigrad.data.clients import Clients
from tardigrad.errors import TardigradError
from tardigrad.learning.local import Trainer
from tardigrad.simulation.executors.inline import train
from tardigrad.simulation.executors.protocol import TrainedTrip, TrainingJob

MOST_TRIPS = 64
"""The most trips in one batch."""


class Flow(NamedTuple):
    """How much work is sent to a worker. The best values depend on what a message costs."""

    batch_seconds: float
    """Trips that take this long together go in one message."""
    queue_seconds: float
    """The amount of work that a worker should have in hand."""
    most_trips: int = MOST_TRIPS
    """Upper bound on the trips in one message."""


class Failure(NamedTuple):
    """The training of a trip raised an error."""

    message: str


R = TypeVar("R")


class BatchReport(NamedTuple, Generic[R]):
    """Results that a worker has sent. Pools encode them in their own way for sending."""

    results: dict[int, R | Failure]
    """By trip: some or all jobs of one batch."""
    seconds: float
    """How long they took, or the processor seconds, which other work on the machine does not increase."""
    profile: dict[str, float]
    used: float
    """The processor seconds of the worker since it started."""

    def decoded(self, decode: Callable[[int, R], TrainedTrip]) -> BatchReport[TrainedTrip]:
        """Return this report with decoded results; `decode` is called with a trip and its result."""
        results = {
            trip: result if isinstance(result, Failure) else decode(trip, result)
            for trip, result in self.results.items()
        }
        return BatchReport(results, self.seconds, self.profile, self.used)


class Lost(NamedTuple):
    """A worker cannot be used any more."""

    what: str
    """The event, as in "a worker died"."""
    reason: str


Message = BatchReport[TrainedTrip] | Lost | None
"""From a worker. None is a message without results: the worker has made progress in starting."""


@dataclass(eq=False)
class Worker:
    """A worker as the dispatcher sees it. Pools derive their own kind from it."""

    batches: deque[dict[int, TrainingJob]] = field(default_factory=deque, init=False)
    """Jobs that it was sent and has not answered, by trip. It is training the first batch."""
    in_hand: int = field(default=0, init=False)
    """How many jobs these are."""
    ready: bool = field(default=True, init=False)
    """Whether it takes jobs; a pool sets it to False while a worker is starting."""
    silent: float = field(default=0.0, init=False)
    """Seconds that were spent waiting for its messages since the last one."""
    used: float = field(default=0.0, init=False)
    """Its processor seconds at its last message, or when it was last found to be computing."""
    failed_starts: int = field(default=0, init=False)
    """How many workers in succession were lost in its place before they were ready."""

    @property
    def pid(self) -> int | None:
        """The process that trains, on its own machine; None if it is not known yet."""
        raise NotImplementedError


W = TypeVar("W", bound=Worker)


class WorkerPool(Protocol[W]):
    """A kind of workers: how they are started and stopped, and how messages reach them."""

    def publish(self, version: int, vectors: Vectors) -> Vectors:
        """Make a version available to the workers; as in `Executor`."""

    def withdraw(self, version: int) -> None:
        """Discard a version; as in `Executor`."""

    def start(self) -> W:
        """Start a worker. It need not be ready when this returns."""

    def added(self) -> int:
        """Return for how many more workers there is room since the last call, because machines were added."""

    def send(self, worker: W, jobs: Sequence[TrainingJob]) -> None:
        """Send a batch of jobs to a worker. Does not fail if the worker is dead: `listen` reports that."""

    def listen(self, workers: Sequence[W], seconds: float) -> list[tuple[W, Message]]:
        """Wait up to `seconds` for messages, and return those that there are."""

    def processor_seconds(self, worker: W) -> float:
        """Return the processor seconds of a worker; 0 if its machine does not answer."""

    def stop(self, worker: W) -> None:
        """End a worker that is lost, and release what its jobs occupied."""

    def release(self, trip: int) -> None:
        """Release the memory of a result, which the caller does not need any more; nothing if no worker has
        trained it."""

    def close(self, workers: Sequence[W]) -> None:
        """End these workers, and release everything."""


def train_or_explain(trainer: Trainer, clients: Clients, job: TrainingJob) -> TrainedTrip | Failure:
    """Train a trip on a worker. An error is returned, because it belongs into another process."""
    try:
        return train(trainer, clients, job)
    except TardigradError as error:
        return Failure(str(error))
    except Exception as error:  # raised by the user's own model, data or rule
        return Failure(
            f"trip {job.task.trip} of client {job.client}: {type(error).__name__}: {error}{own_line(error)}"
        )
